"""MLflow's own artifact view, in headless Chromium: the report is drawn there, and one can look around in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import pytest
from loopback import MlflowServer
from mlflow import MlflowClient
from mlflow_pages import CHROMIUM, Browser

from congruence.tasks.mlflow import TrackingSettings, log_evaluation, run_link
from congruence.tasks.models.registry import resolve


class Constant(mlflow.pyfunc.PythonModel):
    def predict(self, context: Any, model_input: list[float]) -> list[float]:
        return model_input


@pytest.mark.exercise  # a server and a browser: beside other tests its page was seen without a drawn map
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_artifact_view_draws_the_report_and_its_rows_open(
    make_evaluation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the score of the version in use beside this one's."""
    server = MlflowServer(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    server.start()
    browser = None
    try:
        mlflow.set_tracking_uri(server.uri)
        for _ in range(2):
            mlflow.pyfunc.log_model(
                name="model", python_model=Constant(), registered_model_name="angle", pip_requirements=[]
            )
        client = MlflowClient(server.uri)
        client.set_registered_model_alias("angle", "champion", "1")
        settings = TrackingSettings(uri=server.uri, link=server.uri)
        in_use = make_evaluation(model=resolve("models:/angle/1"))
        log_evaluation(in_use, settings)
        other = make_evaluation(model=resolve("models:/angle/2"), scale=2.0)
        run_id = log_evaluation(replace(other, settings_digest="other"), settings)
        experiment = client.get_run(run_id).info.experiment_id
        browser = Browser()
        browser.call("Page.enable")
        browser.open(run_link(server.uri, experiment, run_id, "artifacts/report.html"))
        (frame,) = browser.frames()
        assert frame.wait("document.documentElement.dataset.ready === 'yes'")
        whole = "0, 0, document.getElementById('map').width, document.getElementById('map').height"
        painted = f"document.getElementById('map').getContext('2d').getImageData({whole}).data"
        assert frame.wait(f"new Set({painted}).size > 10")  # drawn a frame or two after the page is ready
        baseline = f"{in_use.metrics['crps_mean'].value:.3g} of angle/1, the baseline"
        assert baseline in str(frame.evaluate("document.querySelector('.cards').textContent"))
        frame.evaluate("document.querySelector('#rows tbody tr:nth-child(2) button').click()")
        chosen = frame.evaluate("document.querySelector('#rows tbody tr:nth-child(2) button').textContent")
        assert str(frame.evaluate("document.getElementById('row-title').textContent")).startswith(f"Row {chosen}: ")
        assert frame.errors() == []
        assert frame.evaluate("document.documentElement.scrollWidth <= innerWidth")
    finally:
        if browser is not None:
            browser.close()
        server.kill()
