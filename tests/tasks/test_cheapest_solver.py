"""auto takes landmarks where their certificate meets the aim, and an exact solver where it does not, and says why."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from congruence.kernels import Distribution, MultivariateNormal, Normal, prepare
from congruence.kernels.protocol.protocol import EXACT
from congruence.kernels.solvers import planning
from congruence.tasks.dask.clusters import dask_client
from congruence.tasks.data.design import SampleDesign
from congruence.tasks.settings.cluster import ClusterSettings
from congruence.tasks.settings.solver import SolverSettings
from congruence.tasks.solving import plan, solve
from congruence.tasks.solving.measurement_store import MeasurementAddress
from congruence.tasks.solving.plan import BlockAccuracy

N = 700


@dataclass(frozen=True)
class Rows:
    """A split of two blocks in memory."""

    x: np.ndarray
    y: np.ndarray
    laws: dict[str, Distribution] = field(repr=False)

    sizes = (400, N - 400)

    @property
    def store(self):
        return SimpleNamespace(dimension=self.x.shape[1])

    def _of(self, block):
        return slice(0, 400) if block == 0 else slice(400, N)

    def inputs(self, block):
        return self.x[self._of(block)]

    def targets(self, block):
        return self.y[self._of(block)]

    def weights(self, block):
        """See RowBlocks."""

    def predictive(self, block, version):
        return self.laws[version][self._of(block)]

    def keys(self, block):
        return np.arange(N)[self._of(block)]

    def all_keys(self):
        return np.arange(N)

    blocks = (0, 1)

    def embeddings(self):
        return self.x

    def dependence(self):
        """See EvaluatedRows: rows are independent."""

    def all_design(self):
        return SampleDesign()

    def all_targets(self):
        return self.y

    def all_predictive(self, version):
        return self.laws[version]

    def of_versions(self, versions):
        return Rows(self.x, self.y, {version: self.laws[version] for version in versions})


@pytest.fixture
def work(tmp_path, monkeypatch):
    for module in (plan, planning):
        monkeypatch.setattr(module, "DENSE_LIMIT", 500)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((N, 3)).astype(np.float32)
    mean = x[:, 0].astype(float)
    rows = Rows(x, mean + rng.standard_normal(N), {"a": Normal(mean + 0.3, np.ones(N))})
    kept = {"a": MeasurementAddress(f"file://{tmp_path}", "solved/a.npz")}
    return solve.SolveWork(EXACT, rows, None, kept)


def solved(work, tmp_path):
    settings = SimpleNamespace(
        seed=0, metrics=["cce_mean"], solver=SolverSettings(), cluster=ClusterSettings(kind="threads", workers=1),
        home_folder=tmp_path,
    )  # fmt: skip
    said: list[str] = []
    with dask_client(settings.cluster) as client:
        solve.solve_versions(client, settings, work, ["a"], said.append)
    return work.kept["a"].require(), said


def test_landmarks_where_their_certificate_meets_the_aim(work, tmp_path):
    found, said = solved(work, tmp_path)
    assert found.solver == "Nystrom on 16 landmarks, by row blocks"  # the others would add nothing
    assert found.reason.startswith("16 landmarks leave a certificate of")
    split = prepare(EXACT.apply(work.reference.x.astype(float)), input_kernel=EXACT.input_kernel)
    exact = split.congruence_errors(work.reference.y, work.reference.laws)["a"]
    assert abs(found.result.mean - exact.mean) <= found.result.mean_error_bound <= 1e-3 * exact.mean
    assert "512 landmarks" in said[0]


def test_exactly_where_landmarks_do_not_reach_it(work, tmp_path, monkeypatch):
    hopeless = BlockAccuracy(share=1e-12, first=10, largest=40, exact_work=1e12)
    monkeypatch.setattr(BlockAccuracy, "of", lambda *_: hopeless)
    found, said = solved(work, tmp_path)
    assert not found.solver.startswith("Nystrom")
    assert found.reason.startswith("exact, since 16 landmarks leave a certificate of")
    assert any(line == found.reason for line in said)


def test_columns_are_planned_as_they_are():
    rng = np.random.default_rng(0)
    y = rng.standard_normal((N, 2))
    scalar = Rows(y, y[:, 0], {"a": Normal(np.zeros(N), np.ones(N))})
    vector = Rows(y, y, {"a": MultivariateNormal(np.zeros((N, 2)), np.ones((N, 2)))})
    few, many = (solve.expected_columns(EXACT, rows, "a") for rows in (scalar, vector))
    assert few < 60 < 120 < many
    assert solve.versions_at_once(20_000, few, 2**32) == 8
    assert solve.versions_at_once(100_000, many, 2**32) == 1
