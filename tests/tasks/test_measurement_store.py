"""What a version was told travels between workers as one object, and comes back as it was."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from congruence.kernels import EXACT, Normal
from congruence.kernels.protocol import ECAI, EvaluationProtocol
from congruence.tasks.dask.clusters import dask_client
from congruence.tasks.settings.computing import ClusterSettings
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.solving import solve
from congruence.tasks.solving.measurement import VersionMeasurement, measure
from congruence.tasks.solving.measurement_store import MeasurementAddress, from_bytes, to_bytes
from congruence.tasks.store.embeddings import StoreError
from congruence.tasks.store.objects import ObjectStore


class Asked:
    seed = 3
    metrics = None


def measured(protocol: EvaluationProtocol) -> VersionMeasurement:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((60, 3))
    y = x[:, 0] + rng.standard_normal(60)
    law = Normal(x[:, 0], np.ones(60))
    query = x[:20] if protocol.reference == "validation" else None
    return measure(Asked(), protocol, x, y, {"angle/1": law}, query=query)["angle/1"]


@pytest.mark.parametrize("protocol", [EXACT, ECAI], ids=["exact", "repeats"])
def test_a_measurement_comes_back_as_it_was(protocol: EvaluationProtocol, tmp_path: Path) -> None:
    made = measured(protocol)
    address = MeasurementAddress(str(tmp_path), "measurements/split/version.npz")
    assert address.read() is None
    address.write(made)
    found = address.require()
    assert type(found.result) is type(made.result)
    for name in ("values", "noise_floor_values", "squared_values"):
        np.testing.assert_array_equal(getattr(found.result, name), getattr(made.result, name))
    assert found.result.interval() == made.result.interval()
    assert found.result.excess_interval() == made.result.excess_interval()
    assert found.test is not None
    assert made.test is not None
    np.testing.assert_array_equal(found.test.point_p_values, made.test.point_p_values)
    assert (found.test.p_value, found.test.band) == (made.test.p_value, made.test.band)
    assert (found.expected, found.repeat_std, found.solver) == (made.expected, made.repeat_std, made.solver)
    assert found.output_kernel == made.output_kernel
    assert (found.calibration is None) == (made.calibration is None) == (protocol is ECAI)
    if found.calibration is not None and made.calibration is not None:
        assert found.calibration.test.effects == made.calibration.test.effects
        assert found.calibration.test.by_basis == made.calibration.test.by_basis
        assert found.calibration.regions.names == made.calibration.regions.names
        for name, column in made.calibration.reading.columns().items():
            np.testing.assert_array_equal(found.calibration.reading.columns()[name], column)
        np.testing.assert_array_equal(found.calibration.curves.shares, made.calibration.curves.shares)
    address.remove()
    address.remove()
    assert address.read() is None


def test_columns_of_an_interrupted_solve_by_other_blocks_are_not_mixed_with_a_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill after two blocks were written, then a run with other blocks: the version is solved, once."""
    address = MeasurementAddress(str(tmp_path), "measurements/split/version.npz")
    for block in range(2):
        address.write_columns(block, {"cce": np.zeros(30)})
    left = []

    def by_one_block(*_: Any, **__: Any) -> None:
        left.extend(ObjectStore(str(tmp_path), {}).sizes("measurements"))
        address.write(measured(EXACT))

    monkeypatch.setattr(solve, "_solve_by_blocks", by_one_block)
    monkeypatch.setattr(solve, "is_held", lambda *_, **__: False)
    rows: Any = SimpleNamespace(sizes=[60], store=SimpleNamespace(dimension=3))
    settings = EvaluationSettings.model_validate(
        {"splits": [{"name": "s", "uri": "s.parquet", "input": "x", "target": "y"}], "encoder": {"kind": "identity"}}
    )
    work = solve.SolveWork(EXACT, rows, None, {"version": address})
    with dask_client(ClusterSettings(kind="threads", workers=1)) as client:
        solve.solve_versions(client, settings, work, ["version"], print)
    assert left == []
    assert address.read() is not None


def test_what_is_damaged_counts_as_missing(tmp_path: Path) -> None:
    address = MeasurementAddress(str(tmp_path), "version.npz")
    content = to_bytes(measured(EXACT))
    other_zip = content.replace(b"PK\x01\x02\x2d\x03\x2d", b"PK\x01\x02\x2d\x03\xff")
    assert other_zip != content
    for damaged in (b"", b"no archive", content[: len(content) // 2], content[:-40] + bytes(40), other_zip):
        (tmp_path / "version.npz").write_bytes(damaged)
        assert address.read() is None
        with pytest.raises(StoreError, match="run again"):
            address.require()
        with pytest.raises(ValueError, match="NPZ"):
            from_bytes(damaged)
