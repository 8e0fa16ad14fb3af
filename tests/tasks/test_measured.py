"""What a version was told travels between workers as one object, and comes back as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from congruence.kernels import EXACT, Normal
from congruence.kernels.protocol.protocol import ECAI, EvaluationProtocol
from congruence.tasks.embeddings.store import StoreError
from congruence.tasks.solving.measured import MeasurementAddress, VersionMeasurement, from_bytes, to_bytes
from congruence.tasks.solving.measurement import measure


class Asked:
    seed = 3
    metrics = None


def measured(protocol: EvaluationProtocol) -> VersionMeasurement:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((60, 3))
    y = x[:, 0] + rng.standard_normal(60)
    law = Normal(x[:, 0], np.ones(60))
    query = x[:20] if protocol.reference == "validation" else None
    return measure(Asked(), protocol, x, y, {"angle/1": law}, query=query).of("angle/1")


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
        with pytest.raises(ValueError, match="measurement"):
            from_bytes(damaged)
