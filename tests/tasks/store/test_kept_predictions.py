"""What was predicted comes back as it was, for every family, whole or not at all, wherever the store lies."""

import json
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stored_places import DAMAGE, Place

from congruence.kernels.distributions import (
    Distribution,
    Histogram,
    Mixture,
    Normal,
    Quantiles,
    Samples,
    WeightedSamples,
)
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split, open_split
from congruence.tasks.runtime.errors import ContractError
from congruence.tasks.settings.sections import ModelVersion, families
from congruence.tasks.store.objects import (
    KeptPredictions,
    NotPredictedError,
    ObjectStore,
    PredictionsError,
    concatenate,
    describe,
    object_name,
    restore,
)

VERSION = ModelVersion("angle", "3", "models:/angle/3", "m-" + 32 * "a")
NAMES = ["a-1", "b-1", "c-1"]


def law(part: int, factor: float = 1.0) -> Normal:
    rows = np.arange(7 * part, 7 * part + 7 - part)
    return Normal(factor * np.sin(rows), 1.0 + rows / 7)


def address(place: Place | Path, contract: str = "c" * 32, version: ModelVersion = VERSION) -> KeptPredictions:
    where = place if isinstance(place, Place) else Place(str(place))
    return KeptPredictions.of(ObjectStore(where.uri, where.options), version, contract)


def filled(place: Place | Path, factor: float = 1.0) -> KeptPredictions:
    where = address(place)
    for part, name in enumerate(NAMES):
        where.write(name, law(part, factor))
    return where


EXPECTED = np.concatenate([law(part).loc for part in range(3)])


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
    arrays: dict[str, np.ndarray] = {}
    description = describe(law, arrays)
    assert_same(restore(json.loads(json.dumps(description)), arrays), law)
    where = address(tmp_path_factory.mktemp("store"))
    for name, part in (("a", law[:3]), ("b", law[3:])):
        where.write(name, part)
    assert_same(where.read(["a", "b"]), law)
    assert_same(where.read(["b"]), law[3:4])


def test_shards_are_read_in_the_order_that_they_are_asked_for(place: Place) -> None:
    where = filled(place)
    assert where.missing([*NAMES, "d-1"]) == ["d-1"]
    np.testing.assert_array_equal(where.read(NAMES).mean(), EXPECTED)
    np.testing.assert_array_equal(where.read([NAMES[2], NAMES[0]]).mean(), np.r_[law(2).loc, law(0).loc])
    with pytest.raises(
        NotPredictedError, match=r"angle/3: predictions are missing \(.*/d-1\.npz\); run the evaluation"
    ):
        where.read([*NAMES, "d-1"])
    with pytest.raises(PredictionsError, match="angle/3: none of these rows is valid"):
        where.read([])


def test_numpy_opens_the_arrays(tmp_path: Path) -> None:
    where = filled(tmp_path)
    with np.load(tmp_path / where.key(NAMES[0]), allow_pickle=False) as file:
        np.testing.assert_array_equal(file["loc"], law(0).loc)
        assert json.loads(str(file["description"])) == {"family": "normal", "parameters": ["loc", "scale"]}


def test_what_would_be_predicted_otherwise_lies_elsewhere(place: Place) -> None:
    where = filled(place)
    others = [
        address(place, "d" * 32),
        address(place, version=ModelVersion("angle", "4", "models:/angle/4", "m-" + 32 * "b")),
        address(place, version=ModelVersion("angle", "3", "models:/angle/3", None, "run")),
    ]
    assert len({other.folder for other in [where, *others]}) == 4
    assert all(other.missing(NAMES) == NAMES for other in others)


def test_what_travels_with_the_work_is_small_and_shows_no_secret(tmp_path: Path) -> None:
    where = filled(tmp_path)
    assert where.missing(NAMES) == []
    carried = pickle.dumps(where)
    assert len(carried) < 1000
    assert pickle.loads(carried).missing(NAMES) == []
    secret = address(Place("s3://bucket", {"secret": "hush"}))
    assert "hush" not in repr(secret)


def test_damage_is_named_and_what_is_deleted_is_asked_again(place: Place) -> None:
    where = filled(place)
    before = place.content()
    damaged(place, where, DAMAGE["cut off"])
    place.objects.remove(where.key(NAMES[1]))
    assert where.missing(NAMES) == [NAMES[1]]
    where.write(NAMES[1], law(1))
    assert place.content() == before


def test_no_changed_byte_gives_other_predictions(tmp_path: Path) -> None:
    """Each byte of an object in turn: those that the format does not read change nothing."""
    where = filled(tmp_path)
    path = tmp_path / where.key(NAMES[0])
    content, noticed = path.read_bytes(), 0
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :])
        try:
            np.testing.assert_array_equal(where.read(NAMES[:1]).loc, law(0).loc)  # type: ignore[attr-defined]
        except PredictionsError:
            noticed += 1
    assert noticed > len(content) / 2


def damaged(place: Place, where: KeptPredictions, how: Callable[[bytes], bytes]) -> None:
    key = where.key(NAMES[1])
    place.objects.put(key, how(place.objects.get(key) or b""))
    with pytest.raises(PredictionsError, match=rf"angle/3: .*{key} is damaged \(.*; delete this file"):
        where.read(NAMES)


def test_what_is_forgotten_is_gone_and_nothing_else(place: Place) -> None:
    where, other = filled(place), address(place, "d" * 32)
    other.write(NAMES[0], law(0))
    where.remove(NAMES[:2])
    assert where.missing(NAMES) == NAMES[:2]
    assert other.missing(NAMES) == NAMES[1:]


def test_writers_at_once_leave_whole_objects(place: Place) -> None:
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda _: filled(place), range(6)))
    np.testing.assert_array_equal(address(place).read(NAMES).mean(), EXPECTED)


def test_parts_that_do_not_fit_together_are_the_versions_fault() -> None:
    with pytest.raises(ContractError, match="the same number of samples"):
        concatenate([Samples(np.ones((2, 3))), Samples(np.ones((2, 4)))])


FRAME = pd.DataFrame(
    {"a": np.arange(25.0), "b": np.arange(25) % 7, "c": [f"c{row}" for row in range(25)], "y": 1.0, "e": 2.0}
)
ROLES = {"input": ["a", "b"], "input_kind": "features", "target": "y", "shard_rows": 10}


def names(folder: Path, frame: pd.DataFrame = FRAME, **roles: Any) -> list[str]:
    """The names of what a version predicts for all rows of a split."""
    frame.to_parquet(folder / "rows.parquet")
    uri = {"uri": str(folder / "rows.parquet")}
    split: Split = open_split(SplitSettings.model_validate({**uri, **ROLES, **roles}))
    return [object_name(split, shard, np.ones(shard.rows, bool)) for shard in split.shards]


def changed(column: str, row: int, value: Any) -> pd.DataFrame:
    frame = FRAME.copy()
    frame.loc[row, column] = value
    return frame


def test_a_version_is_asked_again_for_what_it_would_answer_otherwise_alone(tmp_path: Path) -> None:
    before = names(tmp_path)
    assert len(set(before)) == 3
    longer = names(tmp_path, pd.concat([FRAME, FRAME], ignore_index=True))
    assert longer[:2] == before[:2]
    assert not set(longer[2:]) & set(before)
    assert names(tmp_path, changed("y", 3, 7.0)) == before
    assert names(tmp_path, changed("c", 3, "other")) == before
    for frame in (changed("a", 3, 0.5), changed("b", 3, 5)):
        other = names(tmp_path, frame)
        assert [mine == theirs for mine, theirs in zip(before, other, strict=True)] == [False, True, True]


def test_model_inputs_beside_the_encoders_and_exposures_count(tmp_path: Path) -> None:
    given: dict[str, Any] = {"model_inputs": ["a", "c"]}
    before = names(tmp_path, **given)
    other = names(tmp_path, changed("c", 13, "other"), **given)
    assert [mine == theirs for mine, theirs in zip(before, other, strict=True)] == [True, False, True]
    assert names(tmp_path, changed("y", 3, 7.0), **given) == before
    of_roles = [names(tmp_path, **roles)[0] for roles in ({}, given, {"exposure": "e"}, {"input": ["b", "a"]})]
    assert len(set(of_roles)) == 4
    exposed = names(tmp_path, changed("e", 3, 7.0), exposure="e")
    assert (exposed[0] == of_roles[2], exposed[1:] == names(tmp_path, exposure="e")[1:]) == (False, True)


def test_texts_for_the_model_may_come_from_several_files(tmp_path: Path) -> None:
    frame = FRAME.assign(c=[f"of files {row}" for row in range(25)])  # nobody has asked for these names before
    (tmp_path / "parts").mkdir()
    for number, part in enumerate((frame[:4], frame[4:])):
        part.to_parquet(tmp_path / "parts" / f"{number}.parquet")
    of_parts = names(tmp_path, uri=f"{tmp_path}/parts/*.parquet", model_inputs=["a", "c"])
    assert of_parts == names(tmp_path, frame, model_inputs=["a", "c"])


def test_the_rows_that_are_asked_for_count(tmp_path: Path) -> None:
    FRAME.to_parquet(tmp_path / "rows.parquet")
    split = open_split(SplitSettings.model_validate({"uri": str(tmp_path / "rows.parquet"), **ROLES}))
    masks = [np.ones(10, bool), np.arange(10) > 0, np.arange(10) < 9]
    assert len({object_name(split, split.shards[0], mask) for mask in masks}) == 3
