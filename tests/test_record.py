"""The public record: every table and kind of model stands alone in its file, and the page is made of their results."""

import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

RECORD = Path(__file__).parents[1] / "docs" / "record"


@pytest.fixture(autouse=True)
def _record_is_found(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(RECORD)
    yield
    ours = [name for name, module in sys.modules.items() if str(RECORD) in (getattr(module, "__file__", "") or "")]
    for name in ours:
        del sys.modules[name]


def made_tables() -> dict[str, Any]:
    from table import modules

    return {name: made for name, module in modules("tables").items() if (made := module.table(None)) is not None}


def test_tables_have_rows_to_fit_to_recalibrate_and_to_judge() -> None:
    tables = made_tables()
    assert len({table.name for table in tables.values()}) == len(tables) >= 8
    for table in tables.values():
        parts = table.parts()
        assert len(parts["test"]) >= 2000
        assert len(parts["fit"]) >= 2000
        assert all(np.isfinite(part[table.inputs].to_numpy()).all() for part in parts.values())
        if table.truth is not None:
            truth = table.truth(parts["test"])
            assert np.mean(truth.cdf(parts["test"]["target"].to_numpy())) == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize("target", ["positive", "counts"])
def test_every_kind_of_model_fits_a_table_of_each_kind(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    import network
    import table as tables

    monkeypatch.setattr(tables, "FIT_ROWS", 200)
    monkeypatch.setattr(network, "STEPS", 5)
    table = tables.modules("tables")[{"positive": "durations", "counts": "varying_counts"}[target]].table(None)
    kinds = tables.modules("models")
    if target == "counts":  # those that go by the kind of the target
        kinds = {key: kind for key, kind in kinds.items() if "table.target" in inspect.getsource(kind)}
        assert kinds
    for kind in kinds.values():
        if hasattr(kind, "LEVELS"):
            monkeypatch.setattr(kind, "LEVELS", [0.1, 0.5, 0.9])
        model, flavor = kind.fit(table)
        assert flavor in {"ours", "sklearn", "statsmodels", "catboost", "xgboost", "pytorch"}
        assert model is not None
        assert isinstance(kind, ModuleType)
        assert kind.NAME


def test_the_page_says_who_is_honest_before_and_after(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import page

    monkeypatch.setattr(page, "PAGE", tmp_path / "record.md")
    monkeypatch.setattr(page, "PICTURE", tmp_path / "record.png")
    right = {"verdict": "no fault found in 2,000 rows", "fault": "", "metrics": {"crps_mean": 1.0, "nll_mean": 1.4}}
    wrong = {"verdict": "wrong", "fault": "The spread is too small.", "metrics": {"crps_mean": 1.2}}
    models = [
        {"model": page.TRUTH, "fit_seconds": 0.0, **right},
        {"model": "good", "fit_seconds": 1.0, **right, "recalibrated": {"left": "nothing to recalibrate"}},
        {"model": "mended", "fit_seconds": 1.0, **wrong, "recalibrated": right},
        {"model": "broken", "fit_seconds": None, "failed": "ValueError: no counts"},
    ]
    page.write_page([{"name": "some-table", "about": "a table", "truth": True, "models": models}])
    said = (tmp_path / "record.md").read_text()
    assert "| good | 1 | 0 | 0 |  | 1.00 | 1.00 | 1.0 |" in said
    assert "| mended | 0 | 1 | 0 |  | 1.20 | 1.00 | 1.0 |" in said
    assert "On the 1 tables whose truth is known the truth itself is without a fault on 1;" in said
    assert "ValueError: no counts" in said
    assert (tmp_path / "record.png").stat().st_size > 1000
