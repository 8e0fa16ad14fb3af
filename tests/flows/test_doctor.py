"""`congruence doctor` as a person runs it: a line for each thing; exit status and JSON for machines."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from commands import run
from distributed import LocalCluster, versions

from congruence.flows.operations import doctor
from congruence.flows.operations.doctor import Finding, diagnose


def evaluation_file(folder: Path, **sections: Any) -> Path:
    split = {"uri": "nowhere.parquet", "input": "photo", "target": "y"}
    content = {"models": ["angle"], "splits": [split], "encoder": {"kind": "open_clip", "model": "compact"}, **sections}
    file = folder / "evaluation.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def test_the_command_ends_in_seconds_with_its_status(tmp_path: Path) -> None:
    tracking = {"uri": "http://me:hunter22@127.0.0.1:9"}
    file = evaluation_file(tmp_path, tracking=tracking, cluster={"kind": "address", "address": "tcp://127.0.0.1:9"})
    started = time.monotonic()
    status, loaded, said = run("doctor", str(file), "--json", "--home", str(tmp_path / "home"), PREFECT_API_URL="")
    assert time.monotonic() - started < 60, "seconds where the machine is not busy"
    assert status == 1
    assert "torch" not in loaded
    assert "hunter22" not in said
    report = json.loads(said[said.index("{") :])
    levels = {item["place"]: item["level"] for item in report["findings"]}
    assert levels == {
        "evaluation file": "ok", "versions": "ok", "disk": "ok", "loopback": "ok", "store": "ok", "Prefect": "ok",
        "MLflow": "wrong", "Dask": "wrong",
    }  # fmt: skip
    assert report["exit_status"] == 1


def test_a_file_that_cannot_be_read_is_a_line_among_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_within", lambda *_: [])
    monkeypatch.setattr(doctor, "embed_servers", lambda home: home)
    file = tmp_path / "evaluation.yaml"
    file.write_text("models: [a]\nsplit: []\n")
    found = list(diagnose(file, tmp_path))
    assert {(item.place, item.level) for item in found} == {("evaluation file", "wrong")}
    assert any("did you mean 'splits'" in item.said for item in found)


def test_a_check_that_raises_or_hangs_is_a_line_without_secrets(capfd: pytest.CaptureFixture[str]) -> None:
    def raises() -> Iterator[Finding]:
        yield Finding("store", "ok", "answers at first")
        raise ZeroDivisionError("at postgresql://me:hunter22@host/db")

    def hangs() -> Iterator[Finding]:
        threading.Event().wait()
        yield Finding("Dask", "ok", "never")

    first, second = doctor._within(5.0, "store", raises, debug=True)
    assert (first.level, second.level) == ("ok", "wrong")
    assert str(second).startswith("store: ZeroDivisionError: at postgresql://***@host/db; see whether store.uri")
    (late,) = doctor._within(0.2, "Dask", hangs, debug=False)
    assert str(late).startswith("Dask: no answer within 0 s; start it (`dask scheduler`)")
    assert "hunter22" not in capfd.readouterr().err


def test_a_proxy_that_takes_requests_to_loopback_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    (found,) = doctor._within(10.0, "loopback", doctor.loopback, debug=False)
    assert (found.level, found.remedy) == ("wrong", "add 127.0.0.1,localhost to NO_PROXY")


def test_little_space_is_a_warning_and_none_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, level in ((2**20, "wrong"), (500 * 2**20, "warning"), (2**40, "ok")):
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        found = list(doctor.disks(tmp_path / "home", str(tmp_path / "store")))
        assert {each.level for each in found} == {level}


def test_the_store_takes_a_file_and_is_left_empty(tmp_path: Path) -> None:
    (found,) = doctor.object_store(str(tmp_path / "store"), {})
    assert found.level == "ok"
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    (tmp_path / "file").touch()
    (found,) = doctor._within(5.0, "store", lambda: doctor.object_store(str(tmp_path / "file"), {}), debug=False)
    assert found.level == "wrong"


@pytest.mark.parametrize(("theirs", "level"), [("3.4.1", "ok"), ("3.9.0", "warning"), ("2.4.1", "wrong")])
def test_a_server_of_another_version_is_told(theirs: str, level: str) -> None:
    found = doctor._of_versions("MLflow", "http://mlflow", theirs, "3.4.0")
    assert (found.level, bool(found.remedy)) == (level, level != "ok")


def test_a_scheduler_has_workers_of_the_same_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalCluster(n_workers=0, processes=False, protocol="tcp", dashboard_address="127.0.0.1:0") as cluster:
        address = {"kind": "address", "address": cluster.scheduler_address}
        settings = doctor.load_settings(evaluation_file(tmp_path, cluster=address))
        (found,) = doctor.dask_cluster(settings)
        assert (found.level, found.remedy) == ("wrong", f"start some: dask worker {cluster.scheduler_address}")
        cluster.scale(1)
        cluster.wait_for_workers(1)
        (found,) = doctor.dask_cluster(settings)
        assert found.level == "ok", found
        table = "Mismatched versions found\n\n+---+\n| Package | Client | Workers |\n+---+\n| zarr | 3.1 | 3.0 |\n+---+"
        monkeypatch.setattr(versions, "error_message", lambda *_: {"warning": table, "error": ""})
        (found,) = doctor.dask_cluster(settings)
    assert (found.level, found.said) == ("wrong", "versions differ: Package | Client | Workers; zarr | 3.1 | 3.0")
