"""The papers' experiments run at quick sizes; what is certain there holds, and the losses of the heads are right."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from experiment import main
from kernel_calibration import uncalibrated_predictions, uncalibrated_skce
from networks import BETA, HEADS, FaithfulLayer, distribution

from congruence.kernels import RBF, squared_kernel_calibration_error

PAPERS = Path(__file__).parents[1] / "docs" / "papers"
CERTAIN = {
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
    "protein": (),
}
"""Claims whose verdict does not hang on the size, by place."""


@pytest.mark.exercise
def test_every_experiment_runs_and_what_is_certain_holds(tmp_path: Path) -> None:
    rows = pd.DataFrame({str(k): [((k + 3) * row) % 17 / 5.0 for row in range(400)] for k in range(4)})
    (tmp_path / "data" / "protein").mkdir(parents=True)
    rows.sample(3000, replace=True, random_state=0).to_csv(
        tmp_path / "data" / "protein" / "data.csv.gz", header=False, index=False
    )
    command = [sys.executable, PAPERS, "--quick", "--data", tmp_path / "data", "--output", tmp_path / "kept"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert "blood-cells: left out, bccd is not here; give the folder of the data sets with --data" in done.stdout
    outcomes = json.loads((tmp_path / "kept" / "outcomes.json").read_text())
    assert list(outcomes) == list(CERTAIN)
    for name, outcome in outcomes.items():
        assert all((tmp_path / "kept" / f"{name}-{figure}.png").exists() for figure in outcome["figures"])
        assert [outcome["claims"][k]["found"] for k in CERTAIN[name] if not outcome["claims"][k]["holds"]] == [], name


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    every = runpy.run_path(str(PAPERS / "__main__.py"), run_name="papers")["ALL"]
    monkeypatch.setattr(sys, "argv", ["papers", *arguments])
    main(*every)


@pytest.mark.parametrize("name", ["gaussian-trap", "ols"])
def test_an_experiment_runs_and_is_kept(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, name, "--quick", "--output", str(tmp_path))
    outcome = json.loads((tmp_path / "outcomes.json").read_text())[name]
    assert all((tmp_path / f"{name}-{figure}.png").exists() for figure in outcome["figures"])
    assert all(outcome["claims"][k]["holds"] for k in CERTAIN[name])


def test_what_is_unknown_or_lacks_its_data_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "blood-cells", "--quick")
    assert "blood-cells: left out, bccd is not here" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        run(monkeypatch, "olz")
    assert "no experiment 'olz'; choose from gaussian-trap," in capsys.readouterr().err


@pytest.mark.parametrize("dimension", [1, 10])
def test_the_truth_of_the_uncalibrated_model_is_what_unbiased_estimates_come_to(dimension: int) -> None:
    found = []
    for seed in range(12):
        predicted, y = uncalibrated_predictions(150, dimension, seed)
        found.append(squared_kernel_calibration_error(y, predicted, output_kernel=RBF(0.5)))
    error = np.std(found, ddof=1) / np.sqrt(len(found))
    assert abs(np.mean(found) - uncalibrated_skce(dimension, 0.5)) < 4.0 * error


def raw_outputs(head: str, rows: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    raw = 0.7 * torch.randn((rows, HEADS[head].outputs), generator=generator, dtype=torch.float64)
    return raw, torch.randint(0, 9, (rows,), generator=generator).double()


@pytest.mark.parametrize("head", ["gaussian", "natural", "poisson", "negative_binomial", "mixture"])
def test_a_loss_is_the_negative_log_likelihood_of_what_is_stated(head: str) -> None:
    raw, y = raw_outputs(head)
    stated = {name: value.numpy() for name, value in HEADS[head].parameters(raw).items()}
    log_prob = distribution(HEADS[head].family, stated).log_prob(y.numpy())
    np.testing.assert_allclose(HEADS[head].loss(raw, y).numpy(), -log_prob, rtol=1e-9)


def test_the_double_poisson_loss_is_efron_s_density_without_its_normaliser() -> None:
    """At (10, 2), whose sum over all counts is published."""
    raw = torch.tensor([[np.log(10.0), np.log(2.0)]], dtype=torch.float64).expand(200, 2)
    density = np.exp(-HEADS["double_poisson"].loss(raw, torch.arange(200.0, dtype=torch.float64)).numpy())
    assert density.sum() == pytest.approx(0.9956139101, abs=1e-9)


def test_beta_weighs_each_term_by_a_variance_that_no_gradient_flows_through() -> None:
    raw, y = raw_outputs("beta_gaussian")
    weighed, plain = raw.clone().requires_grad_(), raw.clone().requires_grad_()
    weight = torch.exp(raw[:, 1]) ** BETA
    HEADS["beta_gaussian"].loss(weighed, y).sum().backward()
    HEADS["gaussian"].loss(plain, y).sum().backward()
    torch.testing.assert_close(weighed.grad, plain.grad * weight[:, None])


def test_the_faithful_mean_has_the_gradient_of_least_squares_and_the_variance_spares_the_features() -> None:
    raw, y = raw_outputs("faithful")
    raw.requires_grad_()
    HEADS["faithful"].loss(raw, y).sum().backward()
    torch.testing.assert_close(raw.grad[:, 0], (raw[:, 0] - y).detach())
    features = torch.randn(5, 3, requires_grad=True)
    FaithfulLayer(3, 2)(features)[:, 1].sum().backward()
    assert features.grad is None or not features.grad.any()
