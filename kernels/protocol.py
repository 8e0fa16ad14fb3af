"""Protocols: everything that a CCE value depends on beside the data and the model, with a digest.

CCE values compare only under the same encoder, normalisation, kernels, bandwidths, lambda, number of samples and kind
of reference split. The literature holds two protocols whose numbers do not compare; ``exact`` is ours.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from congruence.kernels.arrays import Array, array_namespace
from congruence.kernels.errors import InvalidInputError, ProtocolError
from congruence.kernels.kernel_functions import Kernel, OutputScale, Polynomial, require_kernel
from congruence.kernels.rng import stream


@dataclass(frozen=True)
class Downsampling:
    """k of n reference points, chosen uniformly, others in each repeat; all points stay queries.

    Attributes:
        rows: k.
        repeats: random choices, uniform over the rows.

    Raises:
        InvalidInputError: fewer than two rows, or no repeats.
    """

    rows: int
    repeats: int = 5

    def __post_init__(self) -> None:
        if self.rows < 2:
            raise InvalidInputError(f"rows: {self.rows} reference points; give at least 2")
        if self.repeats < 1:
            raise InvalidInputError(f"repeats: {self.repeats}; give at least 1")


@dataclass(frozen=True)
class EvaluationProtocol:
    """What a CCE value depends on beside the data and the model.

    Attributes:
        name: its name in reports.
        normalize: bring embeddings to unit norm before the input kernel.
        input_kernel: k_X.
        output_scale: bandwidth of the RBF output kernel: ``marginal`` 1/(2 var y) as in the papers, ``residual``
            1/(2 var of y given x), ``multiscale`` the sum of RBFs at var(y) 4^-k for k = 0..3.
        output_kernel: a fixed k_Y instead.
        regularization: lambda, used as n lambda I.
        reference: the split that conditional embeddings are estimated on: the ``test`` split itself, or ``validation``.
        samples: draws per point that stand for the model's distribution; None for exact kernel means.
        draws: repetitions of the draws.
        bootstraps: resamplings of the reference split; 0 for the split as it is.
        downsampling: estimate on part of the reference split; None for all of it.
        encoder: identity of the encoder and its preprocessing, once it is known.
        reference_split: digest of the reference split, where it is not the evaluated split itself.
    """

    name: str
    normalize: bool
    input_kernel: Kernel
    output_scale: OutputScale = "marginal"
    output_kernel: Kernel | None = None
    regularization: float = 0.1
    reference: Literal["test", "validation"] = "test"
    samples: int | None = None
    draws: int = 1
    bootstraps: int = 0
    downsampling: Downsampling | None = None
    encoder: str | None = None
    reference_split: str | None = None

    def __post_init__(self) -> None:
        require_kernel(self.input_kernel, "input_kernel")
        if self.output_kernel is not None:
            require_kernel(self.output_kernel, "output_kernel")
        if self.bootstraps and self.downsampling is not None:
            raise ProtocolError(
                f"protocol '{self.name}': bootstraps and downsampling both choose the reference points; use one of them"
            )

    def describe(self) -> dict[str, Any]:
        """Plain values, for logs and for the digest (the name is not part of it)."""
        described = {
            "normalize": self.normalize,
            "input_kernel": self.input_kernel.describe(),
            "output_kernel": self.output_scale if self.output_kernel is None else self.output_kernel.describe(),
            "regularization": self.regularization,
            "regularization_convention": "n * lambda",
            "reference": self.reference,
            "samples": self.samples,
            "draws": self.draws,
            "bootstraps": self.bootstraps,
            "encoder": self.encoder,
            "reference_split": self.reference_split,
        }
        # Named only where it is used, so that other protocols keep the digests of runs that are already logged.
        if self.downsampling is None:
            return described
        return described | {"downsampling": {**asdict(self.downsampling), "choice": "uniform"}}

    @property
    def repeats(self) -> int:
        """Evaluations that its numbers are the mean of: draws times choices of the reference points."""
        references = self.bootstraps or (1 if self.downsampling is None else self.downsampling.repeats)
        return references * (self.draws if self.samples is not None else 1)

    @property
    def is_repeated(self) -> bool:
        """Whether samples are drawn, or the reference is not the split as it is."""
        return self.samples is not None or self.bootstraps > 0 or self.downsampling is not None

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that differ wherever two protocols' numbers do not compare."""
        return hashlib.sha256(json.dumps(self.describe(), sort_keys=True).encode()).hexdigest()[:12]

    def apply(self, embeddings: Any) -> Any:
        """The inputs of k_X: embeddings (n, d), at unit norm where the protocol says so.

        Raises:
            ProtocolError: a zero embedding, which has no direction.
        """
        if not self.normalize:
            return embeddings
        xp = array_namespace(embeddings)
        norms = xp.linalg.norm(embeddings, axis=1, keepdims=True)
        if not bool((norms > 0).all()):
            row = int(xp.argmin(norms[:, 0]))
            raise ProtocolError(
                f"embeddings: row {row} is all zeros and has no direction; protocol '{self.name}' needs unit norm. "
                "Mark the row invalid, or use protocol 'preprint'"
            )
        return embeddings / norms


@dataclass(frozen=True)
class ReferenceChoice:
    """Reference rows of one repeat.

    Attributes:
        rows: their numbers, sorted, (k,).
        roots: of their weights of mean 1, (k,); None where they count equally.
    """

    rows: Array = field(repr=False)
    roots: Array | None = field(default=None, repr=False)


def reference_choices(protocol: EvaluationProtocol, n: int, seed: int) -> Iterator[ReferenceChoice]:
    """Yields the reference rows of a protocol's repeats, of n: the split as it is, bootstraps of it, or parts of it.

    A row that a bootstrap drew w times gives the same conditional means as w copies of it.

    Raises:
        InvalidInputError: more rows than there are.
    """
    if protocol.downsampling is not None:
        rows = protocol.downsampling.rows
        if rows > n:
            raise InvalidInputError(f"rows: {rows} of {n} reference points; give a number from 2 to {n}")
        for repeat in range(protocol.downsampling.repeats):
            yield ReferenceChoice(np.sort(stream(seed, "downsampling", repeat).choice(n, rows, replace=False)))
    elif protocol.bootstraps == 0:
        yield ReferenceChoice(np.arange(n))
    for bootstrap in range(protocol.bootstraps):
        drawn = stream(seed, "bootstrapped reference", bootstrap).integers(n, size=n)
        distinct, counts = np.unique(drawn, return_counts=True)
        yield ReferenceChoice(distinct, np.sqrt(counts / np.mean(counts)))


EXACT = EvaluationProtocol("exact", normalize=True, input_kernel=Polynomial(degree=3, gamma=1.0, coef0=1.0))
PREPRINT = EvaluationProtocol(
    "preprint", normalize=False, input_kernel=Polynomial(degree=3, gamma=None, coef0=1.0), samples=1, draws=5
)
ECAI = replace(EXACT, name="ecai", reference="validation", samples=1, draws=5, bootstraps=10)

PROTOCOLS = {protocol.name: protocol for protocol in (EXACT, PREPRINT, ECAI)}


def require_same(digests: dict[str, str], what: str) -> None:
    """Raise ProtocolError if values to compare come from different protocols (or splits).

    Args:
        digests: a digest per thing to compare, by its name.
        what: what the digests are of, for the message.
    """
    if len(set(digests.values())) > 1:
        listed = ", ".join(f"{name} has {digest}" for name, digest in sorted(digests.items()))
        raise ProtocolError(f"{what} differs, so the numbers do not compare: {listed}; evaluate them under one {what}")
