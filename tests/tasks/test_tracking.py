"""What lands in MLflow, on a real SQLite database: once, whole, findable, and without secrets."""

import gc
import io
import itertools
import json
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from databases import mlflow_at, mlflow_database
from distributed import Client
from logged_models import log_constants
from mlflow import MlflowClient
from pydantic import ValidationError

from congruence.kernels.conditional_calibration.local_reading import LocalDistribution
from congruence.kernels.protocol import PREPRINT
from congruence.tasks.evaluate.executors import recorded
from congruence.tasks.mlflow import connection, evaluations, runs
from congruence.tasks.mlflow.connection import TrackingError
from congruence.tasks.mlflow.evaluations import REPORT_FILE, log_evaluation, write_artifacts
from congruence.tasks.mlflow.identity import EvaluationIdentity, evaluation_lists, finished_evaluations, run_metrics
from congruence.tasks.mlflow.reading import list_evaluations, logged_versions, read_scores, read_version
from congruence.tasks.mlflow.runs import RunContent, log_failure, log_once, open_run, write_parquet
from congruence.tasks.models.registry import list_versions
from congruence.tasks.scores.evaluation import SplitSummary, WhatIsWrong
from congruence.tasks.scores.metrics.registry import SECTIONS, shown
from congruence.tasks.settings import sections as tracking_settings
from congruence.tasks.settings.sections import TrackingSettings

counter = itertools.count()


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    with mlflow_at(mlflow_database(tmp_path_factory.mktemp("mlflow"))) as uri:
        yield TrackingSettings(uri=uri, report=False, patience=5)


@pytest.fixture(scope="module")
def versions(settings):
    """Two versions of one model, each logged by a run of its own."""
    log_constants("angle", "first", "second")
    return list_versions("angle")


@pytest.fixture
def client(settings):
    return MlflowClient(settings.uri)


@pytest.fixture
def split():
    return f"split-{next(counter)}"


@pytest.fixture
def evaluation(make_evaluation, versions, split):
    """Of the first version, on a split of its own."""
    return make_evaluation(model=versions[0], split=split)


def runs_of(client, settings, split):
    experiment = client.get_experiment_by_name("congruence/evaluations")
    return client.search_runs([experiment.experiment_id], f"tags.`congruence.split` = '{split}'")


def find_evaluation(identity, settings):
    found = {each.identity: each.run_id for each in finished_evaluations(settings, identity.split_name)}
    return found.get(identity.digest)


def artifacts(client, run_id, folder=None):
    for item in client.list_artifacts(run_id, folder):
        if item.is_dir:
            yield from artifacts(client, run_id, item.path)
        else:
            yield item.path


def test_everything_is_there(evaluation, versions, settings, client, split):
    run_id = log_evaluation(evaluation, settings.model_copy(update={"report": True}))
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == f"angle/1 on {split}"
    cce = evaluation.metrics["cce_mean"]
    assert run.data.metrics["headline/cce_mean"] == float(f"{cce.value:.4g}")
    assert run.data.metrics["intervals/cce_mean_low"] == float(f"{cce.low:.4g}")
    assert run.data.metrics["seconds/embed"] == 1.5
    assert {name.partition("/")[0] for name in run.data.metrics} <= {*SECTIONS, "seconds"}
    assert all(float(f"{value:.4g}") == value for value in run.data.metrics.values() if abs(value) < 1000)
    assert run.data.tags["verdict"].startswith(("wrong", "no fault found", "not judged"))
    assert len([name for name in run.data.metrics if name.startswith("headline/")]) <= 12
    assert len([name for name in run.data.tags if not name.startswith("mlflow.")]) <= 10
    assert run.data.params["protocol_digest"] == evaluation.protocol.digest
    assert run.data.params["split_digest"] == "s" * 64
    assert run.data.params["encoder.id"] == "identity"
    (dataset,) = run.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.dataset.digest) == (split, "s" * 36)
    assert [item.model_id for item in run.inputs.model_inputs] == [versions[0].model_id]
    assert {path for path in artifacts(client, run_id) if not path.startswith("plots/")} == {
        "provenance.json", REPORT_FILE, "scores.parquet", "influence.parquet",
        "tables/points.json", "tables/slices.json",
    }  # fmt: skip
    assert len([path for path in artifacts(client, run_id) if path.startswith("plots/")]) == 6


def test_metrics_reach_the_model_with_their_dataset(evaluation, versions, settings, client, split):
    log_evaluation(evaluation, settings)
    logged = client.get_logged_model(versions[0].model_id).metrics
    mine = {metric.key: metric.value for metric in logged if metric.dataset_name == split}
    assert mine == {
        f"headline/{name}": float(f"{evaluation.metrics[name].value:.4g}")
        for name in shown("mlflow")
        if name in evaluation.metrics
    }
    assert {"headline/cce_mean", "headline/ece"} <= set(mine)
    found = client.search_logged_models(
        [client.get_run(versions[0].run_id).info.experiment_id],
        filter_string="metrics.`headline/cce_mean` < 100",
        datasets=[{"dataset_name": split, "dataset_digest": "s" * 36}],
    )
    assert versions[0].model_id in [model.model_id for model in found]
    source = client.get_run(versions[0].run_id).data.metrics
    assert source[f"{split}/cce_mean"] == mine["headline/cce_mean"]


def test_the_version_shows_what_is_wrong_with_it_until_that_is_no_longer_known(
    make_evaluation, versions, settings, client, split
):
    sentence = "The predictions are wrong (p < 0.001): over all rows, the predicted spread is too small."
    wrong = WhatIsWrong((sentence,), pd.DataFrame(), "region 1", 0, LocalDistribution(*[np.zeros((1, 2))] * 4))
    run_id = log_evaluation(make_evaluation(model=versions[1], split=split, wrong=wrong), settings)
    assert client.get_model_version("angle", "2").tags["what_is_wrong"] == sentence
    assert sentence in client.get_run(run_id).data.tags["mlflow.note.content"]
    log_evaluation(make_evaluation(model=versions[1], split=split, split_digest="t" * 64), settings)
    assert "what_is_wrong" not in client.get_model_version("angle", "2").tags


def test_the_version_shows_its_headline(make_evaluation, versions, settings, client, split):
    evaluation = make_evaluation(model=versions[1], split=split, bias=2.0)
    linked = settings.model_copy(update={"link": "https://mlflow.example/"})
    run_id = log_evaluation(evaluation, linked)
    tags = client.get_model_version("angle", "2").tags
    assert tags["cce"] == f"{evaluation.metrics['cce_mean'].value:.4g}"
    assert tags["cce_status"] == "wrong"
    assert tags["cce_run"] == run_id
    assert tags["cce_link"].startswith("https://mlflow.example/#/experiments/")
    assert "what_is_wrong" not in tags
    elsewhere = settings.model_copy(update={"headline_split": split})
    log_evaluation(make_evaluation(model=versions[1], split=split + "-other"), elsewhere)
    tags = client.get_model_version("angle", "2").tags
    assert tags["cce_split"] == split
    assert tags[f"cce:{split}-other"].endswith("protocol exact)")


def test_a_model_that_is_not_registered_is_logged_without_a_version_in_use_beside_it(
    make_evaluation, versions, settings, split
):
    evaluation = make_evaluation(model=replace(versions[0], name="nobody registered this"), split=split)
    assert log_evaluation(evaluation, settings)


def test_it_is_found_by_what_makes_it_the_same(evaluation, make_evaluation, versions, settings, split):
    identity = EvaluationIdentity.of(evaluation)
    assert find_evaluation(identity, settings) is None
    run_id = log_evaluation(evaluation, settings)
    assert find_evaluation(identity, settings) == run_id
    others = (
        {"model": versions[1]},
        {"split_digest": "t" * 64},
        {"protocol": PREPRINT},
        {"metric_list": ("cce_mean",)},
        {"settings_digest": "other predictions"},
    )
    for change in others:
        other = make_evaluation(**{"model": versions[0], "split": split, **change})
        assert find_evaluation(EvaluationIdentity.of(other), settings) is None
    narrowed = make_evaluation(model=versions[0], split=split, metric_list=tuple(evaluation.metrics))
    assert find_evaluation(EvaluationIdentity.of(narrowed), settings) == run_id


def test_logging_again_changes_nothing_and_replacing_does(evaluation, settings, client, split):
    run_id = log_evaluation(evaluation, settings)
    before = client.get_run(run_id).to_dictionary()
    assert log_evaluation(evaluation, settings) == run_id
    assert client.get_run(run_id).to_dictionary() == before
    replaced = log_evaluation(evaluation, settings, replace=True)
    assert replaced != run_id
    assert [run.info.run_id for run in runs_of(client, settings, split)] == [replaced]


class CutOffError(BaseException):
    """The process dies here."""


def test_a_run_cut_off_at_any_step_is_finished_once(evaluation, versions, settings, client, split, monkeypatch):
    with_retries = evaluations.with_retries
    cuts = itertools.count()
    while True:
        left = next(cuts)

        def cut_off(step, operation, settings):
            nonlocal left
            result = with_retries(step, operation, settings)  # the step is done, but nobody learns of it
            left -= 1
            if left < 0:
                raise CutOffError(step)
            return result

        for module in (connection, evaluations, runs):
            monkeypatch.setattr(module, "with_retries", cut_off)
        try:
            log_evaluation(evaluation, settings)
        except CutOffError:
            continue
        break
    monkeypatch.undo()
    assert log_evaluation(evaluation, settings) is not None
    (run,) = runs_of(client, settings, split)
    assert run.info.status == "FINISHED"
    for name in ("headline/cce_mean", "headline/nll_mean", "seconds/solve"):
        assert len(client.get_metric_history(run.info.run_id, name)) == 1
    assert len(run.inputs.dataset_inputs) == 1
    models = [m for m in client.get_logged_model(versions[0].model_id).metrics if m.dataset_name == split]
    assert len(models) == len({metric.key for metric in models})


def test_a_run_cut_off_under_other_software_is_replaced(
    evaluation, make_evaluation, versions, settings, client, split, monkeypatch
):
    old = make_evaluation(model=versions[0], split=split, provenance={"solver": "older"})

    def die(*_):
        raise CutOffError

    monkeypatch.setattr(evaluations, "write_artifacts", die)
    with pytest.raises(CutOffError):
        log_evaluation(old, settings)
    monkeypatch.undo()
    run_id = log_evaluation(evaluation, settings)
    (run,) = runs_of(client, settings, split)
    assert run.info.run_id == run_id
    assert run.data.params["solver"] == "cholesky"


def test_several_at_once_make_one_run(evaluation, settings, client, split):
    identity = EvaluationIdentity.of(evaluation)
    with ThreadPoolExecutor(4) as pool:
        opened = list(pool.map(lambda _: open_run(identity, settings), range(4)))
    run_id = log_evaluation(evaluation, settings)
    assert [run.info.run_id for run in runs_of(client, settings, split)] == [run_id]
    assert run_id in opened


def test_system_metrics_are_mlflow_s_own_where_its_switch_asks_for_them(evaluation, settings, client, monkeypatch):
    run_id = open_run(EvaluationIdentity.of(evaluation), settings)
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.1")
    with recorded(run_id, None, settings):
        time.sleep(0.3)
    assert client.get_run(run_id).data.metrics == {}
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "true")
    with recorded(run_id, None, settings):
        time.sleep(0.5)
    assert client.get_run(run_id).data.metrics["system/system_memory_usage_megabytes"] > 0
    assert log_evaluation(evaluation, settings) == run_id
    assert set(run_metrics(client.get_run(run_id))) == set(evaluation.metrics)


@pytest.mark.parametrize("drawn", [True, False])
def test_dask_s_report_is_an_artifact_where_it_is_asked_for_and_costs_no_evaluation(
    evaluation, settings, client, monkeypatch, caplog, drawn
):
    pytest.importorskip("bokeh")
    run_id = open_run(EvaluationIdentity.of(evaluation), settings)
    asked = settings.model_copy(update={"performance_report": True})
    if not drawn:
        monkeypatch.setattr("distributed.performance_report.__aexit__", lambda *_: 1 / 0)
    with Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0") as dask:
        with recorded(run_id, dask, settings):
            assert dask.submit(sum, [1, 2]).result() == 3
        assert list(artifacts(client, run_id)) == []
        with recorded(run_id, dask, asked):
            assert dask.submit(sum, [1, 2]).result() == 3
    assert list(artifacts(client, run_id)) == (["dask-report.html"] if drawn else [])
    assert ("was not made" in caplog.text) != drawn
    monkeypatch.setattr(tracking_settings, "find_spec", lambda _: None)
    with pytest.raises(ValidationError, match="Dask draws it with Bokeh, which is not installed"):
        TrackingSettings(performance_report=True)


def test_all_rows_are_in_the_scores_and_few_in_the_table(make_evaluation, versions, settings, tmp_path):
    evaluation = make_evaluation(model=versions[0])
    many = pd.concat([evaluation.scores] * 200, ignore_index=True)
    many["key"] = [f"a-rather-long-key-of-a-row-{row:012d}" * 20 for row in range(len(many))]
    large = replace(
        evaluation, scores=many, split=SplitSummary("test", "d", 24_000, 23_600),
        predictive=None, targets=None, embedding_map=None, thumbnails=None,
    )  # fmt: skip
    write_artifacts(large, tmp_path, settings)
    table = tmp_path / "tables" / "points.json"
    assert table.stat().st_size < 200_000
    content = json.loads(table.read_text())
    assert content["columns"][:3] == ["part", "row", "key"]
    assert len(content["data"]) == 50 + 50 + 11
    assert len(pd.read_parquet(tmp_path / "scores.parquet")) == 24_000


def test_scores_come_back_as_they_were(evaluation, settings, split):
    run_id = log_evaluation(evaluation, settings)
    version, scores = read_version(run_id, settings), read_scores(run_id, settings)
    assert set(scores.columns) == set(evaluation.scores.columns)
    for name in scores.columns:
        expected = evaluation.scores[name]
        if name in ("key", "valid", "reason", "target", "half"):
            pd.testing.assert_series_equal(scores[name], expected)
        else:
            assert scores[name].dtype == np.float32
            np.testing.assert_allclose(scores[name], expected, rtol=1e-6)
        pd.testing.assert_series_equal(version.scores[name], scores[name])
        assert name in version.scores
    assert "calibration_region" not in version.scores
    assert list(read_scores(run_id, settings, ["cce", "key"]).columns) == ["cce", "key"]
    with pytest.raises(TrackingError, match="no score cec; there are key, valid"):
        read_scores(run_id, settings, ["cec"])
    assert version.metrics == evaluation.metrics
    assert version.split == evaluation.split
    assert version.label == "angle/1"
    assert list(version.influence["key"]) == list(evaluation.influence["key"])
    for name in ("cce_squared_influence", "cce_influence"):
        assert version.influence[name].dtype == np.float32
        np.testing.assert_allclose(version.influence[name], evaluation.influence[name], rtol=1e-6)
    np.testing.assert_array_equal(version.influence_noise, evaluation.influence_noise)
    finished = finished_evaluations(settings, split)
    assert [item.label for item in logged_versions(split, finished, settings)] == ["angle/1"]
    with pytest.raises(TrackingError, match="no complete evaluation"):
        logged_versions("nowhere", [], settings)


def test_a_table_that_nobody_closed_is_removed_without_a_word(evaluation, settings, monkeypatch, tmp_path):
    run_id = log_evaluation(evaluation, settings)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        scores = read_version(run_id, settings).scores
        assert len(scores["key"])
        assert list(tmp_path.glob("*/scores.parquet"))
        del scores
        gc.collect()
    assert not list(tmp_path.iterdir())
    assert [str(each.message) for each in said if each.category is ResourceWarning] == []


def test_a_flipped_bit_in_a_logged_table_is_found(evaluation, settings, client):
    run_id = log_evaluation(evaluation, settings)
    place = Path(client.get_run(run_id).info.artifact_uri)
    for name in ("scores.parquet", "influence.parquet"):
        content = (place / name).read_bytes()
        pages = pq.read_metadata(place / name).row_group(0).column(0)
        damaged = bytearray(content)
        damaged[(pages.dictionary_page_offset or pages.data_page_offset) + pages.total_compressed_size // 2] ^= 1
        (place / name).write_bytes(damaged)
        version = read_version(run_id, settings)
        table = version.scores if name == "scores.parquet" else version.influence
        with pytest.raises(TrackingError, match=rf"run {run_id}: {name} is damaged .* --again"):
            table["key"]
        (place / name).write_bytes(content)
    assert len(read_scores(run_id, settings)) == 120


def test_rows_have_a_digest_and_reference_rows_of_another_split_are_kept(
    evaluation, make_evaluation, versions, settings, split
):
    elsewhere = replace(evaluation, influence=evaluation.influence.assign(key=lambda table: "other-" + table["key"]))
    version = read_version(log_evaluation(elsewhere, settings), settings)
    assert list(version.influence["key"])[:2] == ["other-image-0", "other-image-1"]
    other = read_version(log_evaluation(make_evaluation(model=versions[1], split=split, bias=1.0), settings), settings)
    assert list(other.influence["key"])[:2] == ["image-0", "image-1"]
    assert not other.shares_rows(version)
    assert other.rows_digest == evaluations.rows_digest(evaluation)


def test_an_evaluation_without_influence_is_read_without_it(make_evaluation, versions, settings, split):
    evaluation = make_evaluation(model=versions[0], split=split, influence=None, influence_noise=None)
    version = read_version(log_evaluation(evaluation, settings), settings)
    assert version.influence is None
    assert version.influence_noise is None


def test_no_secret_is_logged(make_evaluation, versions, settings, client, split, tmp_path):
    secrets = {"store": "s3://ann:hunter2@bucket", "settings": {"password": "hunter2", "uri": "x://a:hunter2@b"}}
    evaluation = make_evaluation(model=versions[0], split=split, provenance=secrets)
    run_id = log_evaluation(evaluation, settings.model_copy(update={"report": True}))
    assert "hunter2" not in json.dumps(client.get_run(run_id).to_dictionary(), default=str)
    folder = client.download_artifacts(run_id, "", str(tmp_path))
    for path in ("provenance.json", REPORT_FILE):
        text = (tmp_path / path).read_text()
        assert "hunter2" not in text, folder
        assert "s3://***@bucket" in text


def test_a_run_of_many_numbers_has_all_of_them(settings, client, split):
    """A comparison of 30 versions has more than the 1,000 that one request takes."""
    content = RunContent({}, {f"metric_{number}": float(number) for number in range(1200)}, {}, "")
    run = log_once(f"many/{split}", "many", {"split": split}, {}, lambda _: content, settings)
    assert len(client.get_run(run.run_id).data.metrics) == 1200


def test_failures_are_shown_and_taken_back(make_evaluation, versions, settings, client, split):
    evaluation = make_evaluation(model=versions[1], split=split)
    log_failure(versions[1], split, "postgresql://ann:hunter2@db is away", settings)
    tags = client.get_model_version("angle", "2").tags
    assert tags["cce_status"] == "failed"
    assert tags["cce_error"] == f"{split}: postgresql://***@db is away"
    log_evaluation(evaluation, settings)
    tags = client.get_model_version("angle", "2").tags
    assert "cce_error" not in tags
    assert tags["cce_status"].startswith("no fault found in ")


def test_what_mlflow_refuses_is_not_tried_again(make_evaluation, versions, settings, split):
    nameless = make_evaluation(model=versions[0], split=split, provenance={"bad\nkey": "x"})
    with pytest.raises(TrackingError, match="refused"):
        log_evaluation(nameless, settings)


def test_the_table_holds_what_a_page_can_show():
    table = pd.DataFrame({"a": [1.0, np.nan], "b": ["x" * 500, None], "c": [np.float32(0.1), np.inf], "d": [True, 2]})
    shown = json.load(io.StringIO(runs.table_json(table)))
    assert shown["data"][0] == [1, "x" * 119 + "…", 0.1, True]
    assert shown["data"][1][:3] == [None, None, None]


def test_evaluations_of_another_target_have_a_view_of_their_own(settings, client, versions, split, make_evaluation):
    earlier, age, claims = (
        replace(make_evaluation(model=versions[0]), split=SplitSummary(split, digest * 64, 120, 118, target))
        for digest, target in (("a", ""), ("b", "age"), ("c", "ClaimNb"))
    )
    made = [log_evaluation(evaluation, settings) for evaluation in (earlier, age, claims)]
    names = {client.get_experiment(client.get_run(run).info.experiment_id).name for run in made}
    assert names == {"congruence/evaluations"}
    for evaluation, run in zip((earlier, age, claims), made, strict=True):
        assert find_evaluation(EvaluationIdentity.of(evaluation), settings) == run
    assert {found.run_id for found in finished_evaluations(settings, split)} == set(made)
    views = [name for name in evaluation_lists(settings) if name.startswith(split)]
    assert views == [split, f"{split}: ClaimNb", f"{split}: age"]


def test_a_run_of_a_former_release_is_found_and_read(evaluation, settings, client, split):
    """As it logged: an experiment a split, short names of metrics, all that identifies in tags."""
    run_id = log_evaluation(evaluation, settings)
    new = client.get_run(run_id)
    identity = EvaluationIdentity.of(evaluation)
    tags = {f"congruence.{name}": value for name, value in identity.params.items()} | identity.tags
    tags |= {"congruence.identity": identity.digest, "congruence.state": "complete", "congruence.model_id": ""}
    tags |= {"congruence.slices": json.dumps(["half"]), "congruence.wrong_places": "[]"}
    kept = {name: new.data.params[name] for name in ("rows", "valid_rows", "protocol", "split_digest")}
    former = client.create_run(client.create_experiment(f"congruence/{split}"), tags=tags).info.run_id
    for name, value in kept.items():
        client.log_param(former, name, value)
    for name, metric in evaluation.metrics.items():
        for suffix, value in (("", metric.value), ("_low", metric.low), ("_high", metric.high)):
            if value is not None:
                client.log_metric(former, name + suffix, value)
    client.log_metric(former, "seconds_solve", 1.0)
    client.log_text(former, "", "report.html")
    client.set_terminated(former)
    client.delete_run(run_id)
    assert find_evaluation(identity, settings) == former
    assert run_metrics(client.get_run(former)) == evaluation.metrics
    assert [item.run_id for item in logged_versions(split, finished_evaluations(settings, split), settings)] == [former]
    version = read_version(former, settings)
    assert (version.metrics, version.slices, version.wrong_places) == (evaluation.metrics, ("half",), ())
    (listed,) = (each for each in list_evaluations(["angle"], settings) if each.model.version == "1")
    assert former in [each.run_id for each in listed.evaluations]


def test_influence_that_a_former_release_logged_is_read(evaluation, settings, client, tmp_path):
    """Its noise in a file, and no keys where those of the valid rows were meant."""
    run_id = log_evaluation(evaluation, settings)
    expected = read_version(run_id, settings)
    keys, noise = expected.influence["key"].tolist(), expected.influence_noise
    provenance = json.loads(Path(client.download_artifacts(run_id, "provenance.json", str(tmp_path))).read_text())
    del provenance["influence_noise"]
    (tmp_path / "provenance.json").write_text(json.dumps(provenance))
    write_parquet(evaluation.influence.drop(columns="key"), tmp_path / "influence.parquet")
    write_parquet(pd.DataFrame({"noise": noise}), tmp_path / "influence_noise.parquet")
    for name in ("provenance.json", "influence.parquet", "influence_noise.parquet"):
        client.log_artifact(run_id, str(tmp_path / name))
    found = read_version(run_id, settings)
    assert found.influence["key"].tolist() == keys
    np.testing.assert_array_equal(found.influence_noise, noise)


def test_a_run_without_a_table_of_scores_names_the_remedy(evaluation, settings, client):
    run_id = log_evaluation(evaluation, settings)
    (Path(client.download_artifacts(run_id, "")) / "scores.parquet").unlink()
    found = read_version(run_id, settings)
    said = rf"run {run_id}: holds no scores\.parquet, .*; evaluate its version again"
    with pytest.raises(TrackingError, match=said):
        found.scores["key"]
