"""What was predicted comes back as it was, for every family, whole or not at all, whatever happens meanwhile."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from congruence.kernels.distributions import (
    Distribution,
    Histogram,
    Mixture,
    Normal,
    Quantiles,
    Samples,
    WeightedSamples,
)
from congruence.tasks.contract.errors import ContractError
from congruence.tasks.contract.settings import families
from congruence.tasks.data.split import Shard
from congruence.tasks.models.address import PredictionAddress, mask_digest
from congruence.tasks.models.encoding import describe, restore
from congruence.tasks.models.predictions import (
    PredictionsError,
    concatenate,
    forget,
    pending,
    read_predictions,
    remove_damaged,
    write_range,
)
from congruence.tasks.models.registry import ModelVersion

VERSION = ModelVersion("angle", "3", "models:/angle/3", "m-" + 32 * "a")
SHARD_ROWS = 7
ROWS = 40


def shards(shard_rows: int = SHARD_ROWS) -> list[Shard]:
    starts = range(0, ROWS, shard_rows)
    return [Shard(i, start, min(shard_rows, ROWS - start), f"{start}") for i, start in enumerate(starts)]


VALID = np.arange(ROWS) % 5 != 3
VALID[14:21] = False  # the whole of shard 2


def masks(of: list[Shard]) -> list[np.ndarray]:
    return [VALID[shard.start : shard.stop] for shard in of]


def law(rows: np.ndarray, factor: float = 1.0) -> Normal:
    return Normal(factor * np.sin(rows), 1.0 + rows / 7)


def address(uri: str | Path, **changes: Any) -> PredictionAddress:
    arguments = {"split_digest": "s" * 32, "version": VERSION, "contract": "c" * 32, "valid": VALID}
    return PredictionAddress.of(str(uri), **(arguments | changes))


def write(where: PredictionAddress, of: list[Shard], factor: float = 1.0) -> None:
    rows = np.concatenate([np.arange(shard.start, shard.stop) for shard in of])
    rows = rows[VALID[rows]]
    write_range(where, of, masks(of), law(rows, factor) if len(rows) else None)


def expected(of: list[Shard]) -> np.ndarray:
    rows = np.concatenate([np.arange(shard.start, shard.stop) for shard in of])
    return np.sin(rows[VALID[rows]])


def objects(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


positive = st.floats(1e-3, 1e3)
unit = st.floats(0.01, 0.99)
real = st.floats(-1e6, 1e6)
BOUNDED = {"lower": st.just(-np.inf), "upper": st.floats(1e7, 1e8)}
KINDS: dict[str, dict[str, st.SearchStrategy[float]]] = {
    "normal": {"loc": real, "scale": positive},
    "student_t": {"df": positive, "loc": real, "scale": positive},
    "laplace": {"loc": real, "scale": positive},
    "logistic": {"loc": real, "scale": positive},
    "log_normal": {"s": positive, "scale": positive},
    "gamma": {"a": positive, "scale": positive},
    "beta": {"a": positive, "b": positive},
    "poisson": {"rate": positive},
    "binomial": {"n": st.integers(1, 50), "p": unit},
    "negative_binomial": {"mean": positive, "dispersion": positive},
    "double_poisson": {"mean": positive, "inverse_dispersion": positive},
    "deterministic": {"value": real},
    "truncated_normal": {"loc": real, "scale": positive, **BOUNDED},
    "censored_normal": {"loc": real, "scale": positive, **BOUNDED},
    "uniform": {"loc": real, "scale": positive},
    **{
        f"{kind}_{base}": {**parameters, "inflation" if kind == "zero_inflated" else "zero_probability": unit}
        for kind in ("zero_inflated", "hurdle")
        for base, parameters in {
            "poisson": {"rate": positive},
            "binomial": {"n": st.integers(1, 50), "p": unit},
            "negative_binomial": {"mean": positive, "dispersion": positive},
            "double_poisson": {"mean": positive, "inverse_dispersion": positive},
        }.items()
    },
}


def _column(draw: st.DrawFn, values: st.SearchStrategy[float], rows: int) -> np.ndarray:
    return np.array(draw(st.lists(values, min_size=rows, max_size=rows)), dtype=float)


@st.composite
def laws(draw: st.DrawFn, kind: str, rows: int = 4) -> Distribution:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if kind == "samples":
        return Samples(rng.normal(size=(rows, *draw(st.sampled_from([(1,), (5,), (5, 2)])))))
    if kind == "quantiles":
        levels = np.sort(rng.choice(np.linspace(0.01, 0.99, 99), draw(st.integers(2, 9)), replace=False))
        return Quantiles(levels, np.cumsum(rng.exponential(size=(rows, len(levels))), axis=1))
    if kind in ("histogram", "weighted_samples"):
        points = np.cumsum(rng.exponential(size=draw(st.sampled_from([(6,), (rows, 6)]))), axis=-1)
        masses = rng.dirichlet(np.ones(5), rows)
        return Histogram(points, masses, 0.5) if kind == "histogram" else WeightedSamples(points[..., 1:], masses)
    if kind == "multivariate_normal":
        shape = (rows, draw(st.integers(1, 3)))
        return families()[kind](rng.normal(size=shape), rng.exponential(size=shape) + 0.1)  # type: ignore[call-arg]
    if kind == "mixture":
        alike = draw(st.booleans())
        names = st.sampled_from(["normal", "quantiles", "multivariate_normal"] if alike else ["laplace", "normal"])
        first, count = draw(names), draw(st.integers(1, 3))
        if alike and first == "multivariate_normal":
            parts: list[Any] = [families()[first](rng.normal(size=(rows, 2)), np.ones((rows, 2))) for _ in range(count)]  # type: ignore[call-arg]
        else:
            parts = [draw(laws(first if alike else draw(names), rows)) for _ in range(count)]
        if draw(st.booleans()):
            parts[0] = Mixture(np.ones(1), parts[:1])
        return Mixture(rng.dirichlet(np.ones(count), size=rows), parts)
    return families()[kind](**{name: _column(draw, values, rows) for name, values in KINDS[kind].items()})


def test_every_family_has_its_own_strategy() -> None:
    assert set(families()) == {
        *KINDS,
        "samples",
        "quantiles",
        "histogram",
        "weighted_samples",
        "multivariate_normal",
        "mixture",
    }


def assert_same(found: Distribution, law: Distribution) -> None:
    assert type(found) is type(law)
    if isinstance(law, Mixture):
        assert isinstance(found, Mixture)
        np.testing.assert_allclose(found.weights, law.weights, rtol=1e-15)
        for mine, other in zip(found.components, law.components, strict=True):
            assert_same(mine, other)
        return
    parameters = law.parameters()
    assert list(found.parameters()) == list(parameters)
    for name, values in found.parameters().items():
        np.testing.assert_array_equal(values, parameters[name])


@pytest.mark.parametrize("kind", sorted(families()))
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_family_comes_back_as_it_was(kind: str, data: st.DataObject, tmp_path_factory: Any) -> None:
    law = data.draw(laws(kind))
    description, arrays = describe(law)
    assert_same(restore(json.loads(json.dumps(description)), arrays), law)
    where = address(tmp_path_factory.mktemp("store"), valid=np.ones(4))
    part = [Shard(0, 0, 3, ""), Shard(1, 3, 1, "")]
    write_range(where, part, [np.ones(3), np.ones(1)], law)
    assert_same(read_predictions(where, part), law)
    assert_same(read_predictions(where, part[1:]), law[3:4])


@pytest.fixture
def full(tmp_path: Path) -> tuple[PredictionAddress, Path]:
    where = address(tmp_path)
    plan = shards()
    for part in (plan[:2], plan[2:3], plan[3:]):
        write(where, part)
    return where, tmp_path


def test_any_block_of_shards_is_read_in_its_order(full: tuple[PredictionAddress, Path]) -> None:
    where, _ = full
    plan = shards()
    assert pending(where, plan) == []
    for block in (plan, plan[1:4], plan[3:4], plan[4:], [plan[4], plan[0]], shards(3), shards(40), shards(11)[1:3]):
        np.testing.assert_array_equal(read_predictions(where, block).mean(), expected(block))
    with pytest.raises(PredictionsError, match=r"angle/3: no row of rows 14 to 20 is valid"):
        read_predictions(where, plan[2:3])


def test_numpy_opens_the_arrays(full: tuple[PredictionAddress, Path]) -> None:
    _, folder = full
    (stored,) = [path for path in folder.rglob("*.npz") if "000000000000-000000000014" in str(path)]
    with np.load(stored, allow_pickle=False) as file:
        np.testing.assert_array_equal(file["loc"], expected(shards()[:2]))


def test_what_would_be_predicted_otherwise_lies_elsewhere(full: tuple[PredictionAddress, Path]) -> None:
    where, folder = full
    fewer = VALID.copy()
    fewer[0] = False
    changes: list[dict[str, Any]] = [
        {"contract": "d" * 32},
        {"valid": fewer},
        {"valid": VALID[:-1]},
        {"split_digest": "t" * 32},
        {"version": ModelVersion("angle", "4", "models:/angle/4", "m-" + 32 * "b")},
        {"version": ModelVersion("angle", "3", "models:/angle/3", None, "run")},
    ]
    others = [address(folder, **change) for change in changes]
    assert len({other.folder for other in [where, *others]}) == len(changes) + 1
    assert all(pending(other, shards()) == shards() for other in others)
    assert mask_digest(np.ones(8, bool)) != mask_digest(np.r_[np.ones(8, bool), np.zeros(1, bool)])


def test_an_address_is_small_and_carries_no_open_store(full: tuple[PredictionAddress, Path]) -> None:
    where, _ = full
    assert pending(where, shards()) == []
    carried = pickle.dumps(where)
    assert len(carried) < 1000
    assert pending(pickle.loads(carried), shards()) == []
    secret = address("s3://bucket", storage_options={"secret": "hush"})
    assert "hush" not in repr(secret)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]),
        lambda path: path.unlink(),
    ],
    ids=["cut off", "emptied", "one bit", "removed"],
)
def test_damage_to_any_object_is_noticed_and_made_again(
    damage: Callable[[Path], Any], full: tuple[PredictionAddress, Path]
) -> None:
    where, folder = full
    before = objects(folder)
    stored = [name for name in before if "000000000000-000000000014" in name]
    assert len(stored) == 2  # marker and data
    for name in stored:
        damage(folder / name)
        with pytest.raises(PredictionsError, match=r"angle/3: the predictions of rows 0 to \d+ .*run the evaluation"):
            read_predictions(where, shards())
        assert pending(where, shards()) == shards()[:2], name
        write(where, shards()[:2])
        assert objects(folder) == before
    damage(folder / stored[-1])
    remove_damaged(where, shards())
    assert pending(where, shards()) == shards()[:2]


def test_what_is_forgotten_is_gone_and_nothing_else(full: tuple[PredictionAddress, Path]) -> None:
    where, folder = full
    other = address(folder, contract="d" * 32)
    write(other, shards())
    forget(where)
    assert pending(where, shards()) == shards()
    assert pending(other, shards()) == []
    assert all(other.folder in name for name in objects(folder))
    with pytest.raises(PredictionsError, match="rows 0 to 39 are not predicted"):
        read_predictions(where, shards())


def test_two_that_predict_at_once_leave_whole_ranges(tmp_path: Path) -> None:
    """One by shards of 7 rows, one by shards of 3, in groups of their own, in threads."""
    groups = [(7, 2), (7, 3), (3, 4), (3, 1)]
    failures: list[BaseException] = []

    def work(shard_rows: int, size: int) -> None:
        try:
            plan = shards(shard_rows)
            for start in range(0, len(plan), size):
                write(address(tmp_path), plan[start : start + size])
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=group) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for plan in (shards(7), shards(3), shards(5)):
        assert pending(address(tmp_path), plan) == []
        np.testing.assert_array_equal(read_predictions(address(tmp_path), plan).mean(), expected(plan))


def test_of_two_writers_with_unequal_bytes_the_last_marker_decides(tmp_path: Path) -> None:
    where = address(tmp_path)
    write(where, shards())
    write(where, shards(), factor=2.0)
    np.testing.assert_array_equal(read_predictions(where, shards()).mean(), 2 * expected(shards()))


KILLED = """
import importlib.util, os, sys
from congruence.tasks.embeddings.objects import ObjectStore
spec = importlib.util.spec_from_file_location("predictions_test", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["predictions_test"] = module
spec.loader.exec_module(module)
put = ObjectStore.put

def killed_after(puts, folder):
    done = 0
    def killing(self, key, data):
        nonlocal done
        if done == puts:
            os.kill(os.getpid(), 9)
        done += 1
        put(self, key, data)
    ObjectStore.put = killing
    module.write(module.address(folder), module.shards()[:2])

for argument in sys.argv[2:]:
    puts, _, folder = argument.partition(":")
    if os.fork() == 0:
        killed_after(int(puts), folder)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == -9
"""


def test_a_kill_before_the_marker_leaves_the_range_pending(tmp_path: Path) -> None:
    """Before the data, and between the data and the marker."""
    folders = {puts: tmp_path / str(puts) for puts in (0, 1)}
    arguments = [f"{puts}:{folder}" for puts, folder in folders.items()]
    subprocess.run([sys.executable, "-c", KILLED, __file__, *arguments], check=True)
    for puts, folder in folders.items():
        assert len([path for path in folder.rglob("*") if path.is_file()]) == puts
        where = address(folder)
        assert pending(where, shards()) == shards()
        write(where, shards())
        np.testing.assert_array_equal(read_predictions(where, shards()).mean(), expected(shards()))


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    where, plan = address(tmp_path), shards()
    with pytest.raises(PredictionsError, match=r"3 predictions of 6 valid rows in masks of 7 rows for rows 0 to 6"):
        write_range(where, plan[:1], masks(plan[:1]), law(np.arange(3)))
    with pytest.raises(PredictionsError, match="give shards in a row"):
        write_range(where, [plan[0], plan[3]], masks([plan[0], plan[3]]), law(np.arange(11)))
    ensembles = [Samples(np.ones((2, 3))), Samples(np.ones((2, 4)))]
    with pytest.raises(ContractError, match="the same number of samples"):
        concatenate(ensembles)
    assert pending(where, plan) == plan


def test_predictions_live_in_s3(s3: dict[str, Any]) -> None:
    import s3fs

    where = address("s3://congruence/predicted", storage_options=s3)
    assert pending(where, shards()) == shards()
    for part in (shards()[:2], shards()[2:4]):
        write(where, part)
    again = address("s3://congruence/predicted", storage_options=s3)
    assert pending(again, shards()) == shards()[4:]
    write(again, shards()[4:])
    np.testing.assert_array_equal(read_predictions(again, shards()).mean(), expected(shards()))
    files = s3fs.S3FileSystem(**s3)
    (path,) = [path for path in files.find("congruence/predicted") if "000000000014/" in path]
    files.pipe_file(path, files.cat_file(path)[:-3])
    with pytest.raises(PredictionsError, match="are damaged"):
        read_predictions(again, shards())
    assert pending(where, shards()) == shards()[:2]
    forget(where)
    files.invalidate_cache()
    assert files.find("congruence/predicted/predictions") == []
