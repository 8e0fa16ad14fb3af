"""The evaluation file's `protocol:` and kernels, turned into the values of ``congruence.kernels``."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from congruence.kernels.errors import ProtocolError
from congruence.kernels.kernel_functions import RBF, Kernel, Laplacian, Linear, Matern, OutputScale, Polynomial
from congruence.kernels.protocol import PROTOCOLS, Downsampling, EvaluationProtocol
from congruence.tasks.settings.strict import Strict

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class KernelSettings(Strict):
    """A kernel by name, with scikit-learn's parameters: gamma, degree, coef0; nu and length_scale for Matern."""

    kind: Literal["rbf", "laplacian", "polynomial", "linear", "matern"]
    """Which kernel."""
    gamma: Positive | None = None
    """rbf: exp(-gamma |x - x'|^2); laplacian: of the L1 distance; polynomial: (gamma x.x' + coef0)^degree; linear:
    gamma x.x'. For the last two by default 1 / number of features."""
    degree: int = Field(default=3, ge=1)
    """Of a polynomial."""
    coef0: float = Field(default=1.0, ge=0)
    """Of a polynomial."""
    nu: float = 1.5
    """Of a Matern kernel: 0.5, 1.5 or 2.5."""
    length_scale: Positive = 1.0
    """Of a Matern kernel."""

    @model_validator(mode="after")
    def _bandwidth(self) -> KernelSettings:
        if self.kind in ("rbf", "laplacian") and self.gamma is None:
            raise ValueError(f"gamma: a {self.kind} kernel needs one, for example gamma: 0.5")
        if self.nu not in (0.5, 1.5, 2.5):
            raise ValueError(f"nu: is {self.nu}; a Matern kernel has 0.5, 1.5 or 2.5 here")
        return self

    def kernel(self) -> Kernel:
        """The kernel as a value."""
        if self.kind == "polynomial":
            return Polynomial(self.degree, self.gamma, self.coef0)
        if self.kind == "linear":
            return Linear(self.gamma)
        if self.kind == "matern":
            return Matern(self.nu, self.length_scale)
        assert self.gamma is not None
        return RBF(self.gamma) if self.kind == "rbf" else Laplacian(self.gamma)


class DownsamplingSettings(Strict):
    """Estimate on ``rows`` random reference points, new in each of ``repeats``; all points are still evaluated."""

    rows: int = Field(ge=2)
    repeats: int = Field(default=5, ge=1)


class ProtocolSettings(Strict):
    """A protocol: one of the named ones (``base``), with what is to differ from it.

    Values of different protocols do not compare: each change gives another digest.
    """

    base: Literal["exact", "preprint", "ecai"] = "exact"
    name: str | None = None
    """What numbers under it are called."""
    normalize: bool | None = None
    """Embeddings are scaled to unit norm."""
    input_kernel: KernelSettings | None = None
    output_scale: OutputScale | None = None
    """Of the RBF on the targets: ``marginal`` is gamma = 1/(2 var y), ``residual`` takes the variance that a smooth fit
    leaves, ``multiscale`` is a sum of four gammas from the marginal one up."""
    output_kernel: KernelSettings | None = None
    regularization: Positive | None = None
    """Lambda; the system is K + n lambda I."""
    samples: int | None = Field(default=None, ge=1)
    """Draws from the version per row in place of exact kernel means."""
    draws: int | None = Field(default=None, ge=1)
    """How often these are redrawn, for mean and spread."""
    bootstraps: int | None = Field(default=None, ge=0)
    """Bootstrap samples of the reference split."""
    downsampling: DownsamplingSettings | None = None
    reference: Literal["test", "validation"] | None = None
    """The split that the conditional distribution is estimated on: the evaluated one, or ``reference:`` of the file."""

    @model_validator(mode="after")
    def _one_choice_of_reference_points(self) -> ProtocolSettings:
        try:
            self.protocol()
        except ProtocolError as error:
            raise ValueError(str(error)) from error
        return self

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return {"base": value} if isinstance(value, str) else value

    def protocol(self) -> EvaluationProtocol:
        """The protocol as a value."""
        given = {key: value for key, value in self if value is not None and key not in ("base", "name")}
        changes: dict[str, Any] = {
            key: value.kernel() if isinstance(value, KernelSettings) else value for key, value in given.items()
        }
        if self.downsampling is not None:
            changes["downsampling"] = Downsampling(**self.downsampling.model_dump())
        protocol = PROTOCOLS[self.base]
        if not changes:
            return protocol if self.name is None else replace(protocol, name=self.name)
        return replace(protocol, **changes, name=self.name or f"{self.base} (changed)")
