"""`congruence reproduce --quick`: each experiment says its verdicts and draws; what is certain holds."""

from __future__ import annotations

import json
from pathlib import Path

import commands
import mlflow
import numpy as np
import pandas as pd
import pytest
from databases import mlflow_database
from matplotlib.figure import Figure
from PIL import Image

from congruence.flows.reproduce import run as flow
from congruence.flows.reproduce.experiments import NAMES, load, named
from congruence.kernels import RBF, squared_kernel_calibration_error
from congruence.kernels.plots.style import dressed, figure_of
from congruence.tasks.reproduction.blood_cells import blood_cells
from congruence.tasks.reproduction.laws import uncalibrated_predictions, uncalibrated_skce
from congruence.tasks.reproduction.logged import log_reproduction
from congruence.tasks.reproduction.outcome import MissingDataError, Outcome, Plan, judged
from congruence.tasks.reproduction.record import read_outcome, write_outcome, write_page
from congruence.tasks.runtime.errors import SettingsError

QUICK = Plan(quick=True)
CERTAIN: dict[str, tuple[int, ...]] = {
    "gaussian-trap": (0, 1),
    "general-behaviour": (0, 1, 2, 3),
    "discrete-wave": (1,),
    "counts-ece": (0, 1),
    "settings-study": (0, 1),
    "downsampling": (0,),
    "rejection": (),
    "nll-map": (0, 1),
    "image-regression": (),
    "ols": (0, 1),
    "skce-estimators": (0,),
    "skce-tests": (0, 1),
    "friedman": (),
    "inverse-problem": (0, 1),
}
"""Claims whose verdict does not hang on the size, by place."""


def run(name: str, plan: Plan = QUICK) -> Outcome:
    """The experiment without a Prefect run: a server is started by the test of the command alone."""
    outcome: Outcome = load(name).fn(plan)  # type: ignore[attr-defined]
    return outcome


@pytest.mark.parametrize("name", sorted(CERTAIN))
def test_an_experiment_says_its_verdicts(name: str) -> None:
    outcome = run(name)
    assert outcome.name == name
    assert outcome.claims
    assert outcome.figures
    assert len(outcome.table) > 0
    assert all(claim.found and claim.source for claim in outcome.claims)
    assert [place for place in CERTAIN[name] if outcome.claims[place].verdict != "holds"] == []


def test_every_experiment_is_tested_or_needs_data() -> None:
    assert set(NAMES) == {*CERTAIN, "protein", "blood-cells"}
    assert named("all") == NAMES


def test_protein_without_data_says_what_to_do_and_runs_where_they_are(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"needs protein/data.csv.gz.*--data"):
        run("protein")
    rows = pd.DataFrame({str(k): [((k + 3) * row) % 17 / 5.0 for row in range(400)] for k in range(4)})
    (tmp_path / "protein").mkdir()
    rows.sample(3000, replace=True, random_state=0).to_csv(
        tmp_path / "protein" / "data.csv.gz", header=False, index=False
    )
    outcome = run("protein", Plan(quick=True, data=tmp_path))
    assert {row["model"] for row in outcome.table.to_dict("records")} == {"DN", "MDN"}
    assert set(outcome.figures) == {"figure-2-DN", "figure-2-MDN"}


def test_blood_cells_are_read_where_they_are_and_not_where_nobody_counted(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"needs bccd.*--data"):
        run("blood-cells")
    (tmp_path / "images").mkdir()
    rows = []
    for place, split in enumerate(("train", "train", "val", "test", "test")):
        Image.new("RGB", (40, 30), (place, 0, 0)).save(tmp_path / "images" / f"{place}.png")
        rows.append({"path": f"images/{place}.png", "rbc": 10 + place, "split": split, "rbc_unlabelled": place == 4})
    pd.DataFrame(rows).astype({"rbc_unlabelled": int}).to_csv(tmp_path / "labels.csv", index=False)
    parts = blood_cells(tmp_path)
    assert {split: list(part.y) for split, part in parts.items()} == {"train": [10, 11], "val": [12], "test": [13]}
    assert parts["test"].images[0].getpixel((0, 0)) == (3, 0, 0)
    assert parts["test"].law is None


@pytest.mark.parametrize("dimension", [1, 10])
def test_the_truth_of_the_uncalibrated_model_is_what_unbiased_estimates_come_to(dimension: int) -> None:
    found = []
    for seed in range(12):
        law, y = uncalibrated_predictions(150, dimension, seed)
        found.append(squared_kernel_calibration_error(y, law, estimator="unbiased", output_kernel=RBF(0.5)))
    error = np.std(found, ddof=1) / np.sqrt(len(found))
    assert abs(np.mean(found) - uncalibrated_skce(dimension, 0.5)) < 4.0 * error


def test_an_unknown_experiment_is_named_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match="did you mean 'discrete-wave'"):
        named("discret-wave")


def figure() -> Figure:
    return figure_of(dressed(None, "t", "x", "y"))


def test_verdicts_are_kept_shown_on_one_page_and_logged(tmp_path: Path) -> None:
    claims = (judged("It is <b>so</b>.", "paper", True, "0.1", value=0.1), judged("It is more.", "paper", False, "no"))
    outcome = Outcome("ols", "Least squares", "SKCE", claims, pd.DataFrame({"a": [1.5]}), {"one": figure()}, ("note",))
    recorded = write_outcome(outcome, QUICK, (2.0, 1.0), tmp_path)
    assert read_outcome(tmp_path / "ols") == recorded
    assert (recorded.differing, recorded.quick) == (1, True)
    page = write_page(tmp_path, NAMES).read_text()
    assert "1 hold here, 1 differ" in page
    assert "&lt;b&gt;so" in page
    assert "data:image/png;base64," in page
    assert "http" not in page

    mlflow.set_tracking_uri(mlflow_database(tmp_path))
    logged = mlflow.get_run(log_reproduction(recorded))
    assert logged.data.tags["claim_1"] == "holds"
    assert logged.data.tags["claim_2"] == "differs"
    assert logged.data.metrics["value"] == pytest.approx(0.1)
    kept = tmp_path / "mlartifacts" / "reproduce" / logged.info.run_id / "artifacts"  # none in the working folder
    held = json.loads((kept / "outcome.json").read_text())
    assert [claim["verdict"] for claim in held["claims"]] == ["holds", "differs"]


def test_an_experiment_without_its_data_is_left_out_of_all_and_refused_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "load", lambda name: load(name).fn)  # type: ignore[attr-defined]
    mlflow.set_tracking_uri(mlflow_database(tmp_path))
    done = flow.reproduce.fn(("downsampling", "protein"), QUICK, tmp_path)
    assert [outcome.name for outcome in done.outcomes] == ["downsampling"]
    assert "needs protein/data.csv.gz" in done.left_out["protein"]
    assert "Downsampling" in done.page.read_text()
    with pytest.raises(MissingDataError):
        flow.reproduce.fn(("protein",), QUICK, tmp_path)


def test_the_command_refuses_an_unknown_experiment_before_anything_heavy_is_loaded() -> None:
    status, loaded, said = commands.run("reproduce", "olz")
    assert status == 2
    assert "did you mean 'ols'" in said
    assert not loaded & set(commands.HEAVY)
