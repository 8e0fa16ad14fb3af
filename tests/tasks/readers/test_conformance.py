"""What every reader keeps to, whatever its library; and that a new one is one file."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression

from congruence.kernels.distributions import Laplace
from congruence.tasks import readers as folder
from congruence.tasks.contract.reading import spec_distribution
from congruence.tasks.readers import read
from congruence.tasks.readers.base import Asked, Call, Reader, Spec, UnreadableOutputError

ROWS = 4
FRAME = pd.DataFrame({"a": np.arange(4.0), "b": np.arange(4.0) ** 2})
NAMES = sorted(point.name for point in entry_points(group=read.GROUP))
FOREIGN = {
    "nothing": None,
    "text": "normal",
    "a number": 3.0,
    "an array": np.ones((ROWS, 2)),
    "a frame": FRAME,
    "a mapping": {"first": np.ones(ROWS), "second": np.ones(ROWS)},
    "a list": [1.0, 2.0, 3.0, 4.0],
    "a tuple": (np.ones(ROWS), np.ones(ROWS)),
    "an object": object(),
    "a class": dict,
    "a plain model": LinearRegression().fit(FRAME, FRAME["a"]),
}


@pytest.fixture
def fresh() -> Iterator[None]:
    """Readers are found anew, and forgotten afterwards."""
    read.readers.cache_clear()
    yield
    read.readers.cache_clear()


def test_every_reader_of_the_folder_is_declared_and_every_declared_one_is_there() -> None:
    for module in pkgutil.iter_modules(folder.__path__):
        importlib.import_module(f"{folder.__name__}.{module.name}")
    ours = [kind for kind in Reader.__subclasses__() if kind.__module__.startswith(folder.__name__)]
    written = {f"{kind.__module__}:{kind.__name__}" for kind in ours}
    declared = {value for value in read.installed_readers().values() if value.startswith(folder.__name__)}
    assert declared == written
    assert len(read.readers()) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("foreign", FOREIGN)
def test_a_reader_leaves_alone_what_is_not_its_own(name: str, foreign: str) -> None:
    reader: Reader = entry_points(group=read.GROUP)[name].load()()
    found = FOREIGN[foreign]
    assert reader.known(found) is None
    assert reader.ask(found, Call("predict"), FRAME) is NotImplemented
    for asked in (Asked(), Asked(Call("predict"), found)):
        assert reader.read(found, ROWS, asked) is None


def test_readers_that_go_by_names_and_structure_come_after_those_that_go_by_classes() -> None:
    order = [type(reader).__name__ for reader in read.readers()]
    assert order[0] == "CorrelatedReader"
    assert order[-2:] == ["ScikitLearnReader", "ColumnsReader"]


ACME = """
import numpy as np
from congruence.tasks.readers.base import Call, Known, Reader, spec

class Forecast:
    def __init__(self, middle, width): self.middle, self.width = middle, width

class Model:
    def ask_oracle(self, rows): return Forecast(np.asarray(rows["a"]), np.asarray(rows["b"]) + 1.0)

class AcmeReader(Reader):
    def known(self, model):
        return Known(Call("ask_oracle"), "its oracle") if isinstance(model, Model) else None

    def read(self, output, rows, asked):
        return spec("laplace", loc=output.middle, scale=output.width) if isinstance(output, Forecast) else None
"""


def test_a_reader_is_one_file_of_any_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    (tmp_path / "acme_congruence.py").write_text(ACME)
    metadata = tmp_path / "acme_congruence-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-congruence\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{read.GROUP}]\nacme = acme_congruence:AcmeReader\n")
    monkeypatch.syspath_prepend(tmp_path)
    model = importlib.import_module("acme_congruence").Model()
    found = spec_distribution(read.output_of(model, FRAME), ROWS)
    assert isinstance(found, Laplace)
    np.testing.assert_array_equal(found.loc, FRAME["a"])
    np.testing.assert_array_equal(found.scale, FRAME["b"] + 1.0)
    sys.modules.pop("acme_congruence")


def test_a_reader_that_cannot_be_loaded_is_named_and_the_others_read(
    monkeypatch: pytest.MonkeyPatch, fresh: None, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(read, "_lent", {"broken": "no_such_package_at_all:Reader"})
    np.testing.assert_array_equal(read.read_output(_poisson(), ROWS).parameters["rate"], np.ones(ROWS))
    assert "the reader broken (no_such_package_at_all:Reader) cannot be loaded" in caplog.text


def test_an_installation_without_readers_says_so(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    monkeypatch.setattr(read, "installed_readers", dict)
    with pytest.raises(UnreadableOutputError, match=r"group congruence.readers is empty; install congruence again"):
        read.read_output(_poisson(), ROWS)


def test_what_readers_give_is_lent_to_processes_that_have_none(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    named = read.installed_readers()
    monkeypatch.setattr(read, "installed_readers", dict)
    monkeypatch.setattr(read, "_lent", {})
    read.lend(named)
    assert isinstance(read.read_output(_poisson(), ROWS), Spec)


def _poisson() -> Any:
    import scipy.stats

    return scipy.stats.poisson(np.ones(ROWS))
