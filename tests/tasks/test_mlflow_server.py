"""On a real MLflow server: what it shows in a browser, and that it may stop and start again in the middle of a run."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import quote

import pytest
import requests
from databases import mlflow_at
from logged_models import log_constants
from loopback import MlflowServer
from mlflow import MlflowClient
from mlflow_pages import CHROMIUM, Browser

from congruence.flows.operations import doctor
from congruence.tasks.mlflow.connection import TrackingError, list_page, run_link
from congruence.tasks.mlflow.evaluations import log_evaluation
from congruence.tasks.mlflow.identity import finished_evaluations, view_key
from congruence.tasks.mlflow.reading import read_version
from congruence.tasks.models.registry import resolve
from congruence.tasks.scores.evaluation import MetricValue
from congruence.tasks.scores.metrics.registry import logged_name, shown
from congruence.tasks.settings.sections import TrackingSettings

HEADLINES = ("headline/cce_mean", "calibration/cce_noise_floor", "headline/nll_mean", "headline/ece")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = MlflowServer(tmp_path_factory.mktemp("server"))
    server.start()
    with mlflow_at(server.uri):
        log_constants("angle", "training 1", "training 2", "training 3")
        yield server
    server.kill()


@pytest.fixture(scope="module")
def settings(server):
    return TrackingSettings(uri=server.uri, report=False, patience=90, link=server.uri)


def version(number):
    return resolve(f"models:/angle/{number}")


def test_a_server_that_stops_and_starts_again_loses_and_doubles_nothing(make_evaluation, server, settings, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # as a command has it: MLflow's own seven take minutes
    evaluation = make_evaluation(model=version(1), split="interrupted")
    other = make_evaluation(model=version(2), split="away")
    client = MlflowClient(server.uri)
    with ThreadPoolExecutor(1) as pool:
        patient = pool.submit(log_evaluation, evaluation, settings.model_copy(update={"report": True}))
        while client.get_experiment_by_name("congruence/evaluations") is None and not patient.done():
            time.sleep(0.05)
        server.kill()
        with pytest.raises(TrackingError, match=r"is unreachable: .* run the same command to resume"):
            log_evaluation(other, settings.model_copy(update={"patience": 1.0}))
        assert not patient.done()
        server.start()
        run_id = patient.result(timeout=90)
    experiment = client.get_experiment_by_name("congruence/evaluations")
    (run,) = client.search_runs([experiment.experiment_id], "tags.`congruence.split` = 'interrupted'")
    assert run.info.run_id == run_id
    assert run.info.status == "FINISHED"
    assert len(client.get_metric_history(run_id, "headline/cce_mean")) == 1
    assert read_version(run_id, settings).scores["cce"].equals(evaluation.scores["cce"].astype("float32"))
    again = log_evaluation(other, settings)
    assert [each.run_id for each in finished_evaluations(settings, "away")] == [again]


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def seen(make_evaluation, server, settings):
    """The runs of three versions: of the one in use and of another with their reports, and of a third without."""
    MlflowClient(server.uri).set_registered_model_alias("angle", "champion", "1")
    skill = {"crps_skill": MetricValue(0.5), "crps_uncertainty": MetricValue(1.2)}
    runs = {}
    for number, scale, more in ((1, 1.0, {}), (2, 2.0, skill), (3, 3.0, {})):
        evaluation = make_evaluation(model=version(number), scale=scale, split="seen")
        evaluation = replace(evaluation, metrics=evaluation.metrics | more)
        runs[str(number)] = log_evaluation(evaluation, settings.model_copy(update={"report": number < 3}))
    return runs


@pytest.fixture(scope="module")
def experiment(server):
    return MlflowClient(server.uri).get_experiment_by_name("congruence/evaluations").experiment_id


def test_the_pages_people_open(seen, experiment, server, browser, tmp_path):
    """The comparison of runs, a run's tables and plots, and the versions' tags; pictures are kept in ``tmp_path``."""
    compared = f"runs={quote(json.dumps(list(seen.values())))}&experiments={quote(json.dumps([experiment]))}"
    page = browser.read(f"{server.uri}/#/compare-runs?{compared}&workflowType=machine_learning", *HEADLINES)
    for word in (*HEADLINES, "angle/1 on seen", "angle/3 on seen", "Parallel Coordinates"):
        assert word in page
    browser.picture(tmp_path / "compare.png")

    def page_of(name=""):
        return run_link(server.uri, experiment, seen["1"], name)

    page = browser.read(page_of(), "cce_mean")
    assert "Model registry" in page  # not the view of language models
    assert "No fault found in" in page
    page = browser.read(page_of("artifacts/tables/points.json"), "highest CCE 1")
    assert "highest CCE 1" in page
    assert "View as table" in page
    browser.picture(tmp_path / "table.png")
    browser.read(page_of("artifacts/plots/cce_histogram.png"), "cce_histogram.png")
    for _ in range(100):
        widths = browser.evaluate("[...document.querySelectorAll('main img, img')].map(image => image.naturalWidth)")
        if any(width > 400 for width in widths):
            break
        time.sleep(0.2)
    assert any(width > 400 for width in widths)
    browser.picture(tmp_path / "plot.png")

    model = version(1)
    training = MlflowClient(server.uri).get_logged_model(model.model_id).experiment_id
    page = browser.read(f"{server.uri}/#/experiments/{training}/models/{model.model_id}", "cce_mean", "angle/1 on seen")
    assert "cce_noise_floor" not in page  # the headline alone
    assert "angle/1 on seen" in page
    browser.picture(tmp_path / "model.png")

    page = browser.read(f"{server.uri}/#/models/angle/versions/1", "cce_status")
    for word in ("cce", "no fault found in", "Report | Run | All versions on this split"):
        assert word in page
    browser.picture(tmp_path / "version.png")


def test_the_artifact_view_draws_the_report_and_its_rows_open(make_evaluation, seen, experiment, server, browser):
    """In a frame that may get its size after its scripts ran; with the score of the version in use."""
    browser.open(run_link(server.uri, experiment, seen["2"], "artifacts/report.html"))
    (frame,) = browser.frames()
    assert frame.wait("document.documentElement.dataset.ready === 'yes'")
    painted = (
        "(map => map.getContext('2d').getImageData(0, 0, map.width, map.height).data)(document.getElementById('map'))"
    )
    assert frame.wait(f"new Set({painted}).size > 10")
    baseline = f"{make_evaluation().metrics['crps_mean'].value:.3g} of angle/1, the baseline"
    assert baseline in frame.evaluate("document.querySelector('.cards').textContent")
    # In one go: MLflow loads its frame again whenever it draws the view around it.
    opened = "document.getElementById('row-title').textContent"
    row, title = frame.evaluate(
        f"(button => (button.click(), [button.textContent, {opened}]))"
        "(document.querySelector('#rows tbody tr:nth-child(2) button'))"
    )
    assert title.startswith(f"Row {row}: ")
    assert frame.errors() == []
    assert frame.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.fixture(scope="module")
def a_listed_run(make_evaluation, settings):
    """The run of the better one of two versions on the split ``listed``."""
    for number, scale in ((1, 3.0), (2, 1.0)):
        evaluation = make_evaluation(model=version(number), scale=scale, split="listed")
        metrics = evaluation.metrics | {"cce_expected": MetricValue(0.05, 0.04, 0.06), "cce_p_value": MetricValue(0.4)}
        metrics["crps_skill"] = MetricValue(0.6 / scale)
        run_id = log_evaluation(replace(evaluation, metrics=metrics), settings)
    return run_id


def test_the_list_of_evaluations_opens_with_its_columns_and_charts(a_listed_run, experiment, server, browser, tmp_path):
    """As `congruence ui` and every link open it; pictures are kept in ``tmp_path``."""
    logged = MlflowClient(server.uri).get_run(a_listed_run).data.metrics
    drawn = sum(logged_name(name) in logged for name in shown("mlflow"))
    assert drawn > 6
    listed = f"{server.uri}/{list_page(experiment, view_key('listed'))}"
    page = browser.read(listed, "cce_mean", "verdict", "angle/1 on listed")
    # In the order in which they are seen, which is not that of the document; only what the window holds is there.
    seen = (
        "[...document.querySelectorAll('.ag-header-cell')]"
        ".sort((a, b) => a.getBoundingClientRect().left - b.getBoundingClientRect().left)"
        ".map(cell => cell.innerText.trim()).filter(name => name).join()"
    )
    assert browser.wait(f"{seen}.includes('verdict,headline/crps_skill,headline/crps_mean')"), browser.evaluate(seen)
    assert page.index("angle/2 on listed") < page.index("angle/1 on listed")  # the better one first
    assert "Choose a split" in page
    assert "does not exist" not in page
    browser.picture(tmp_path / "list.png")
    page = browser.read(f"{listed}&compareRunsMode=CHART", "headline", f"({drawn})")
    assert f"({drawn})" in page  # charts in the section that is unfolded: of the metrics that a run has
    browser.picture(tmp_path / "charts.png")


@pytest.mark.usefixtures("a_listed_run")
def test_the_list_over_the_wire_says_it_in_ten_seconds(server):
    """What MLflow's page asks its server for when the view of a split opens."""

    def ask(path, **body):
        answer = requests.post(f"{server.uri}/api/2.0/mlflow/{path}", json=body, timeout=30)
        answer.raise_for_status()
        return answer.json()

    ours = ask("experiments/search", max_results=100, filter="name LIKE 'congruence/%'")["experiments"]
    (experiment,) = ours
    views = {tag["key"]: tag["value"] for tag in experiment["tags"]}
    view = json.loads(views[f"mlflow.sharedViewState.{view_key('listed')}"])
    order = f"{view['orderByKey']} {'ASC' if view['orderByAsc'] else 'DESC'}"
    asked = {"experiment_ids": [experiment["experiment_id"]], "filter": view["searchFilter"], "order_by": [order]}
    runs = ask("runs/search", **asked)["runs"]
    names = [run["info"]["run_name"] for run in runs]
    assert names == ["angle/2 on listed", "angle/1 on listed"], "the better one first"


def test_the_doctor_finds_it_well_and_leaves_nothing_behind(server, settings, tmp_path):
    before = [each.name for each in MlflowClient(server.uri).search_experiments()]
    (found,) = doctor.mlflow_servers(settings, tmp_path)
    assert found.level == "ok", found
    assert [each.name for each in MlflowClient(server.uri).search_experiments()] == before
