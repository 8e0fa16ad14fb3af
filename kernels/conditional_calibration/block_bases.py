"""Bases and null of a split in blocks of rows: what a block adds, and what is made of the sums.

U_h = K_h[:, landmarks] B_h touches rows only through sums of products of columns, so U'U of all bases together is
known without U, and with it the gaussian limit of the null (``null.GaussianNull``): no draw goes over the rows. The
landmarks, the median distance and the regions' centres are read off a uniform sample of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.bases import (
    LANDMARKS_PER_DIRECTION,
    InputBasis,
    distance_name,
    typical_gamma,
)
from congruence.kernels.conditional_calibration.null import GaussianNull
from congruence.kernels.conditional_calibration.prepared import reference_name, shared_evidence
from congruence.kernels.conditional_calibration.regions import number_of_regions, region_centers
from congruence.kernels.conditional_calibration.settings import CalibrationSettings
from congruence.kernels.gram.landmarks import choose_landmarks
from congruence.kernels.gram.operator import RegularizedGram
from congruence.kernels.gram.spectrum import MIN_FILTER, directions_of_sums
from congruence.kernels.gram.tiles import TileMaker, TilePoints, tile_slices
from congruence.kernels.kernel_functions import RBF, Kernel
from congruence.kernels.protocol.protocol import EvaluationProtocol
from congruence.kernels.row_blocks.inputs import protocol_inputs
from congruence.kernels.row_blocks.sums import BlockSums
from congruence.kernels.streams import stream

SAMPLE_ROWS = 5_000
TILE_ROWS = 1024
CONSTANT = "constant"
PROTOCOL = "protocol's kernel"
_RIDGE = 1e-3  # of operators whose columns alone are asked for


def sample_positions(n: int, seed: int) -> Array:
    """Sorted numbers of the rows off which landmarks, distances and regions are read."""
    return np.sort(stream(seed, "calibration sample").choice(n, min(n, SAMPLE_ROWS), replace=False))


@dataclass(frozen=True)
class BlockKernel:
    """One basis' kernel: columns K[rows, landmarks], (rows, m).

    Attributes:
        name: of the basis.
        kernel: k.
        center: subtracted from the inputs; None for none.
        landmarks: (m, d), centred.
    """

    name: str
    kernel: Kernel
    center: Array | None = field(repr=False)
    landmarks: Array = field(repr=False)

    @classmethod
    def of(cls, name: str, kernel: Kernel, landmarks: Array, center: Array | None) -> BlockKernel:
        """With landmarks as the protocol wants them."""
        return cls(name, kernel, center, landmarks if center is None else landmarks - center)


class BlockColumns:
    """Columns of some kernels at the rows of a block, tile by tile; a tile's memory is used again."""

    def __init__(self, x: Array, kernels: Mapping[str, BlockKernel]) -> None:
        self._kernels = kernels
        self._makers = {name: TileMaker(of.kernel, x.shape[1]) for name, of in kernels.items()}
        self._others = {name: TilePoints(of.landmarks) for name, of in kernels.items()}
        plain, moved = TilePoints(x), None
        self._points: dict[str, TilePoints] = {}
        for name, of in kernels.items():
            if of.center is not None and moved is None:
                moved = TilePoints(x - of.center)  # stationary kernels share their centre
            self._points[name] = plain if of.center is None or moved is None else moved

    def at(self, rows: slice) -> dict[str, Array]:
        """By kernel."""
        return {
            name: np.asarray(
                maker.tile(self._points[name], rows, self._others[name], slice(0, len(self._others[name].x)))
            )
            for name, maker in self._makers.items()
        }


@dataclass(frozen=True)
class BlockBases:
    """What every block needs to know of the others' inputs.

    Attributes:
        protocol: brings embeddings to the kernels' inputs.
        settings: of the test.
        kernels: of the bases beside the constant, by name.
        centers: of the regions, (k, d).
        medoids: the sampled row nearest to each, and its input.
        n: rows of the split.
        seed: of the landmarks and of the null.
        dtype: of the arithmetic inside a tile.
    """

    protocol: EvaluationProtocol
    settings: CalibrationSettings
    kernels: Mapping[str, BlockKernel] = field(repr=False)
    centers: Array = field(repr=False)
    medoids: tuple[Array, Array] = field(repr=False)
    n: int
    seed: int
    dtype: Any

    @classmethod
    def of(
        cls, protocol: EvaluationProtocol, settings: CalibrationSettings, x: Array, positions: Array, n: int, seed: int
    ) -> BlockBases:
        """From the sampled rows x, as the protocol wants them, and their positions in the split."""
        gamma = typical_gamma(x, seed)
        center = None if gamma is None else RBF(gamma).center(x)
        kernels: dict[str, tuple[Kernel, Array | None]] = {}
        protocol_center = protocol.input_kernel.center(x)
        kernels[PROTOCOL] = protocol.input_kernel, center if protocol_center is not None else None
        for share in sorted(settings.distances) if gamma is not None else ():
            kernels[distance_name(share)] = RBF(float(gamma) / share**2), center  # type: ignore[arg-type]
        # The landmarks of the narrowest kernel cover the inputs for the wider ones.
        name = PROTOCOL if gamma is None else distance_name(min(settings.distances))
        narrow, moved = kernels[name]
        operator = RegularizedGram(x if moved is None else x - moved, narrow, _RIDGE)
        chosen = x[choose_landmarks(operator, LANDMARKS_PER_DIRECTION * settings.directions, seed=seed)]
        centers = region_centers(x, number_of_regions(n), seed)
        nearest = np.array([int(np.argmin(np.sum((x - one) ** 2, axis=1))) for one in centers])
        told = {name: BlockKernel.of(name, kernel, chosen, moved) for name, (kernel, moved) in kernels.items()}
        return cls(protocol, settings, told, centers, (positions[nearest], x[nearest]), n, seed, x.dtype)

    def inputs(self, inputs: Array, first: int) -> Array:
        """Of a block that begins at row ``first``."""
        return protocol_inputs(self.protocol, inputs, first, self.dtype)

    def tiles(self, x: Array, names: tuple[str, ...] | None = None) -> Iterator[tuple[slice, dict[str, Array]]]:
        """Rows, and the columns of all kernels, or of those named."""
        chosen = self.kernels if names is None else {name: self.kernels[name] for name in names}
        columns = BlockColumns(x, chosen)
        for rows in tile_slices(slice(0, len(x)), TILE_ROWS):
            yield rows, columns.at(rows)

    def regions(self, x: Array) -> Array:
        """The region of each row, (rows,): the nearest centre."""
        distances = np.sum(self.centers**2, axis=1) - 2.0 * x @ self.centers.T
        return np.asarray(np.argmin(distances, axis=1))


def with_constant(columns: Mapping[str, Array]) -> Array:
    """[1, K_1, K_2, ...] of a tile, (rows, 1 + sum m), in the order of the bases."""
    parts = list(columns.values())
    return np.concatenate([np.ones((len(parts[0]), 1), dtype=parts[0].dtype), *parts], axis=1)


def basis_sums(told: BlockBases, inputs: Array, first: int) -> BlockSums:
    """Products of all columns with each other, over the rows of a block that begins at row ``first``."""
    sums = BlockSums()
    for _, columns in told.tiles(told.inputs(inputs, first)):
        # float64: the small matrices made of it have the squared condition number of the columns.
        stacked = with_constant(columns).astype(np.float64)
        sums.add("products", stacked.T @ stacked)
    return sums


@dataclass(frozen=True)
class PreparedBlocks:
    """Bases and null of a split in blocks: tests as many versions as wanted, each from its own sums.

    Attributes:
        told: what blocks know.
        bases: names and eigenvalues; no vectors.
        coordinates: B_h of each, (m, k); of the constant its one column of length 1 / sqrt(n).
        products: of all columns, (1 + sum m, 1 + sum m).
        null: the gaussian limit.
        null_evidence: of the shared bases in every draw, (bases, 5, B).
    """

    told: BlockBases
    bases: tuple[InputBasis, ...] = field(repr=False)
    coordinates: tuple[Array, ...] = field(repr=False)
    products: Array = field(repr=False)
    null: GaussianNull = field(repr=False)
    null_evidence: Array = field(repr=False)

    @cached_property
    def places(self) -> dict[str, slice]:
        """Of each basis' columns among all."""
        found, start = {}, 0
        for basis, one in zip(self.bases, self.coordinates, strict=True):
            found[basis.name] = slice(start, start + len(one))
            start += len(one)
        return found

    def of(self, name: str) -> tuple[Array, Array]:
        """Eigenvalues of K_h / n and B_h."""
        index = [basis.name for basis in self.bases].index(name)
        return self.bases[index].eigenvalues, self.coordinates[index]

    def between(self, name: str) -> Array:
        """U_h'U_h."""
        _, coordinates = self.of(name)
        place = self.places[name]
        return np.asarray(coordinates.T @ self.products[place, place] @ coordinates)

    def total(self, name: str) -> Array:
        """U_h'1."""
        _, coordinates = self.of(name)
        return np.asarray(coordinates.T @ self.products[self.places[name], 0])

    def coefficients(self, columns: Array) -> list[Array]:
        """U_h'v of every basis from [1, K_1, ...]'v (1 + sum m, r)."""
        return [one.T @ columns[place] for one, place in zip(self.coordinates, self.places.values(), strict=True)]

    @property
    def reference(self) -> str:
        """The basis of the effects."""
        name = reference_name(self.told.settings)
        return name if name in self.places else PROTOCOL if PROTOCOL in self.places else CONSTANT

    @property
    def smoother(self) -> tuple[Array, Array]:
        """Filters e / (e + n lambda) of the protocol's kernel, (k,), and B, (m, k), of the directions it keeps."""
        eigenvalues, coordinates = self.of(PROTOCOL)
        filters = eigenvalues / (eigenvalues + self.told.protocol.regularization)
        keep = max(1, int(np.count_nonzero(filters >= MIN_FILTER)))
        return filters[:keep].astype(np.float32), coordinates[:, :keep]


def prepared_blocks(told: BlockBases, sums: BlockSums) -> PreparedBlocks:
    """The spectra, and the null from the directions' products."""
    n, settings = told.n, told.settings
    products = sums.added["products"]
    bases = [InputBasis(CONSTANT, np.ones(1), _unread(1))]
    coordinates = [np.array([[n**-0.5]])]
    start = 1
    for name, of in told.kernels.items():
        place = slice(start, start + len(of.landmarks))
        start = place.stop
        basis, eigenvalues = directions_of_sums(of.kernel, of.landmarks, products[place, place], n)
        keep = min(settings.directions, len(eigenvalues))
        bases.append(InputBasis(name, eigenvalues[:keep] / n, _unread(keep)))
        coordinates.append(basis[:, :keep])
    stacked = scipy.linalg.block_diag(*coordinates)
    null = GaussianNull.of_products(stacked.T @ products @ stacked, settings.draws_for(n), told.seed)
    evidence = shared_evidence(tuple(bases), null, settings)
    return PreparedBlocks(told, tuple(bases), tuple(coordinates), products, null, evidence)


def _unread(k: int) -> Array:
    return np.empty((0, k), dtype=np.float32)
