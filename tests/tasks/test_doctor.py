"""What the doctor says of servers, disks, packages, cards and certificates: what is wrong and how to mend it."""

from __future__ import annotations

import datetime
import socket
import threading
import time
from collections.abc import Iterator
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from databases import mlflow_database
from distributed import LocalCluster
from loopback import free_port
from mlflow import MlflowClient
from mlflow.entities import ViewType

from congruence.tasks.doctor import disks as disk_checks
from congruence.tasks.doctor import packages, stores
from congruence.tasks.doctor.answers import clock
from congruence.tasks.doctor.cards import Cards, judged
from congruence.tasks.doctor.certificates import certificates
from congruence.tasks.doctor.dask_cluster import Reach, dask_cluster, sees
from congruence.tasks.doctor.findings import Check, Finding, Look, Step, examine, fine
from congruence.tasks.doctor.mlflow_servers import registry, tracking_server
from congruence.tasks.doctor.plan import written
from congruence.tasks.doctor.prefect_server import PrefectAddress, prefect_server
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.settings.cluster import ClusterSettings, TlsSettings
from congruence.tasks.settings.evaluation import EvaluationSettings


def look(found: Any) -> list[Finding]:
    return list(examine([Check("place", lambda: iter(found))]))


def levels(found: list[Finding]) -> list[str]:
    return [item.level for item in found]


def test_checks_run_side_by_side_and_none_holds_or_breaks_the_others(capfd: pytest.CaptureFixture[str]) -> None:
    def hangs() -> Iterator[Finding | Step]:
        yield fine("slow", "answers at first")
        yield Step("asking", "start it")
        threading.Event().wait()

    def raises() -> Iterator[Finding | Step]:
        yield Step("reading", "mend it")
        raise ZeroDivisionError("at postgresql://me:hunter22@host/db")

    def sleeps() -> Iterator[Finding | Step]:
        time.sleep(0.3)
        yield fine("busy", "done")

    def check(name: str, function: Look) -> Check:
        return Check(name, function, seconds=0.5)

    started = time.monotonic()
    found = list(examine([check("slow", hangs), check("bad", raises), check("b", sleeps), check("c", sleeps)]))
    assert time.monotonic() - started < 0.9
    assert [(item.place, item.level) for item in found] == [
        ("slow", "ok"), ("slow", "wrong"), ("bad", "wrong"), ("busy", "ok"), ("busy", "ok"),
    ]  # fmt: skip
    assert (found[1].said, found[1].remedy) == ("asking: nothing came within 0 s", "start it")
    assert "ZeroDivisionError: at postgresql://***@host" in found[2].said
    assert "hunter22" not in str(found) + capfd.readouterr().err


class _Server(ThreadingHTTPServer):
    """Answers every request as it is told, with a clock of its own."""

    def __init__(self, status: int, text: str, ahead: float = 0.0) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=ahead)
                self.send_response_only(status)
                self.send_header("Date", format_datetime(now, usegmt=True))
                self.end_headers()
                self.wfile.write(text.encode())

            do_HEAD = do_POST = do_GET  # noqa: N815

            def log_message(self, *_: Any) -> None: ...

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def __exit__(self, *_: Any) -> None:
        self.shutdown()
        self.server_close()


@pytest.mark.parametrize(
    ("status", "text", "ahead", "said"),
    [
        (401, "no", 0.0, "does not know the login"),
        (403, "Invalid Host header", 0.0, "--allowed-hosts"),
        (200, "<html>", 0.0, "not as MLflow does"),
        (200, "2.9.0", 0.0, "this client is 3."),
    ],
)
def test_an_mlflow_that_is_not_ours_is_told_with_the_remedy(status: int, text: str, ahead: float, said: str) -> None:
    with _Server(status, text, ahead) as server:
        found = look(tracking_server(TrackingSettings(uri=server.url)))
    assert levels(found) == ["wrong", "ok"], "and its clock agrees"
    assert said in f"{found[0].said}; {found[0].remedy}"


def test_refused_is_said_at_once_without_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    started = time.monotonic()
    for found in (
        look(tracking_server(TrackingSettings(uri=f"http://me:hunter22@{nobody}"))),
        look(registry(TrackingSettings(uri="sqlite:////none", registry_uri=f"http://{nobody}"), ["angle"])),
        look(prefect_server(PrefectAddress(f"http://{nobody}/api", "3.8.8"), None)),
        look(dask_cluster(ClusterSettings(kind="address", address=f"tcp://{nobody}"), Reach(Path(), "", {}))),
        look(stores.store("s3://bucket/x", {"client_kwargs": {"endpoint_url": f"http://{nobody}"}})),
    ):
        assert levels(found) == ["wrong"]
        assert "refuses connections" in found[0].said
        assert "start" in found[0].remedy
        assert "hunter22" not in str(found)
    assert time.monotonic() - started < 2.0


def test_clocks_are_compared_and_s3_s_quarter_of_an_hour_is_wrong() -> None:
    assert levels(clock("S3", 3.0)) == ["ok"]
    assert levels(clock("S3", 300.0)) == ["warning"]
    assert levels(clock("S3", -901.0)) == ["wrong"]
    assert "NTP" in clock("S3", -901.0)[0].remedy
    assert clock("S3", None) == []
    with _Server(403, "", ahead=1000.0) as server:
        found = look(stores.store("s3://bucket/x", {"endpoint_url": server.url}))
    assert levels(found) == ["wrong"]
    assert "ahead of this machine's" in found[0].said


def test_mlflow_is_written_to_and_left_as_it_was(tmp_path: Path) -> None:
    settings = TrackingSettings(uri=mlflow_database(tmp_path))
    client = MlflowClient(settings.uri, settings.uri)
    before = client.create_registered_model("angle", tags={"team": "a"})
    for _ in range(2):
        found = look(tracking_server(settings))
        assert levels(found) == ["ok", "ok"], found
    found = look(registry(settings, ["models:/angle/3", "angle", "angl"]))
    assert levels(found) == ["ok", "wrong"]
    assert "no model 'angl'" in found[1].said
    assert [experiment.name for experiment in client.search_experiments()] == ["Default"]
    (left,) = (e for e in client.search_experiments(ViewType.ALL) if e.name == "congruence/doctor")
    (run,) = client.search_runs([left.experiment_id], run_view_type=ViewType.ALL)
    assert run.info.lifecycle_stage == "deleted", "one run for all looks, out of sight"
    assert not [file for file in (tmp_path / "mlartifacts").rglob("*") if file.is_file()]
    after = client.get_registered_model("angle")
    assert (after.tags, after.last_updated_timestamp) == (before.tags, before.last_updated_timestamp)


def test_artifacts_that_cannot_be_written_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    place = str(tmp_path / "file" / "below")
    found = look(tracking_server(TrackingSettings(uri=mlflow_database(tmp_path), artifact_location=place)))
    assert levels(found) == ["ok", "wrong"]
    assert "MLflow's artifacts: writing to" in found[1].said


def test_a_store_is_written_to_and_left_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "store"
    assert levels(look(stores.store(str(folder), {}))) == ["ok"]
    assert not [path for path in folder.rglob("*") if path.is_file()]
    (tmp_path / "file").touch()
    (found,) = look(stores.store(str(tmp_path / "file"), {}))
    assert found.level == "wrong"

    def refuse(*_: Any) -> None:
        raise OSError("[Errno 5] An error occurred (RequestTimeTooSkewed): the difference is too large")

    monkeypatch.setattr(stores.ObjectStore, "put", refuse)
    (found,) = look(stores.store(str(folder), {}))
    assert "NTP" in found.remedy


def test_a_bucket_is_written_to_and_one_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    moto = pytest.importorskip("moto.server")
    for name, value in {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        options = {"endpoint_url": "http://{}:{}".format(*server.get_host_and_port())}
        import s3fs

        bucket = s3fs.S3FileSystem(**options)
        bucket.makedirs("there")
        assert levels(look(stores.store("s3://there/embeddings", options)))[-1] == "ok"
        assert bucket.find("there") == []
        found = look(stores.store("s3://elsewhere/embeddings", options))[-1]
        assert (found.level, found.remedy) == ("wrong", "make the bucket, or correct store.uri"), found
    finally:
        server.stop()


def test_a_disk_is_compared_with_what_the_evaluation_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def disks(free: int, plan: dict[Path, int]) -> list[str]:
        monkeypatch.setattr(disk_checks.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
        return [item.level for item in look(disk_checks.disks(tmp_path, plan)) if str(tmp_path) in item.said]

    assert disks(2**40, {}) == ["ok"]
    (found,) = look(disk_checks.disks(tmp_path, {tmp_path: 2**50, tmp_path / "store": 0}))
    assert f"{tmp_path} (home)" in found.said
    assert disks(10 * 2**30, {tmp_path / "store": 11 * 2**30}) == ["warning"]
    assert disks(2**20, {}) == ["wrong"]


def test_what_a_first_run_writes_is_known_from_footers_and_features(tmp_path: Path) -> None:
    import pandas as pd

    pd.DataFrame({"a": [0.0] * 1000, "b": [1.0] * 1000, "y": [2.0] * 1000}).to_parquet(tmp_path / "t.parquet")
    split = {"uri": str(tmp_path / "t.parquet"), "input": ["a", "b"], "input_kind": "features", "target": "y"}
    settings = EvaluationSettings.model_validate({"models": ["m"], "splits": [split], "encoder": {"kind": "identity"}})
    found = written(settings, tmp_path / "home")
    assert found is not None
    assert (found.home, found.store) == (25_000, 1000 * (2 * 4 + 30))
    elsewhere = split | {"uri": str(tmp_path / "*.csv")}
    assert written(settings.model_copy(update={"splits": [type(settings.splits[0])(**elsewhere)]}), tmp_path) is None


def test_packages_that_break_each_other_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert levels(list(packages.package_pairs())) == ["ok"], "what these tests run with fits together"
    real = packages.installed
    changed = {"fastapi": "0.165.0", "sqlalchemy": "2.1.9", "torch": "2.14.0+cpu", "dask-cuda": "26.10.0"}
    monkeypatch.setattr(packages, "installed", lambda name: changed.get(name.lower(), real(name)))
    monkeypatch.setattr(packages, "_CHECKED", ("torchvision",))
    said = [item.said for item in packages.package_pairs()]
    for words in ("prefect 3.8", "scheduled runs are never created", "torchvision", "no rmm-cu13: a cluster of cards"):
        assert any(words in text for text in said), (words, said)


def test_packages_of_workers_are_compared_by_what_matters() -> None:
    ours = {"python": "3.11.4", "torch": "2.13.0+cpu", "numpy": "2.4.6", "zarr": "3.1.6"}
    assert packages.unlike(ours, ours | {"python": "3.11.9", "torch": "2.13.0"}) == {}
    assert packages.unlike(ours, ours | {"python": "3.12.4", "zarr": None}) == {
        "python": "python 3.11 here and 3.12 there",
        "zarr": "zarr 3.1.6 here and missing there",
    }


@pytest.mark.parametrize(
    ("cards", "wanted", "expected", "said"),
    [
        (Cards(), True, ["wrong"], "no NVIDIA driver"),
        (Cards(), False, [], ""),
        (Cards(True, ("H200",), 13, {"cupy": 13, "rmm": 13, "torch": 13}), True, ["ok"], "1 x H200"),
        (Cards(True, ("H200",), 12, {"cupy": 13, "torch": 13}), True, ["wrong"], "driver serves CUDA 12"),
        (Cards(True, ("H200",), 13, {"cupy": 12, "torch": 13}), True, ["wrong"], "do not share"),
        (Cards(True, ("H200",), 13, {"cupy": 13, "torch": 0}), False, ["warning"], "processors alone"),
        (Cards(True, reason="NVML: Driver/library mismatch"), False, ["warning"], "mismatch"),
    ],
)
def test_cards_without_their_packages_are_told(cards: Cards, wanted: bool, expected: list[str], said: str) -> None:
    found = list(judged(cards, "here", wanted))
    assert levels(found) == expected
    assert said in " ".join(item.said for item in found)


def _signed(folder: Path, days: int) -> TlsSettings:
    folder.mkdir()
    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)

    def certificate(name: str, public: ec.EllipticCurvePublicKey) -> bytes:
        subject, issuer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, "authority"))
        builder = x509.CertificateBuilder(issuer, subject, public, x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(days=365))
        builder = builder.not_valid_after(now + datetime.timedelta(days=days))
        return builder.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    files = TlsSettings(ca_file=folder / "ca", cert_file=folder / "cert", key_file=folder / "key")
    files.ca_file.write_bytes(certificate("authority", authority.public_key()))
    files.cert_file.write_bytes(certificate("dask", key.public_key()))
    encoding = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files.key_file.write_bytes(key.private_bytes(*encoding))
    return files


def test_certificates_expire_and_must_fit(tmp_path: Path) -> None:
    good, soon, gone = (_signed(tmp_path / str(days), days) for days in (400, 10, -1))
    assert levels(list(certificates(good))) == ["ok", "ok"]
    assert levels(list(certificates(soon))) == ["warning", "warning"]
    assert levels(list(certificates(gone))) == ["wrong", "wrong"]
    mixed = TlsSettings(ca_file=soon.ca_file, cert_file=good.cert_file, key_file=soon.key_file)
    said = " ".join(item.said for item in certificates(mixed) if item.level == "wrong")
    assert "is not the key of" in said
    assert "has signed" in said
    absent = TlsSettings(ca_file=good.ca_file, cert_file=tmp_path / "none", key_file=good.key_file)
    assert "cert_file: there is no file" in look(certificates(absent))[0].said


def test_a_scheduler_its_workers_and_what_they_reach(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    reach = Reach(home, str(tmp_path / "store"), {})
    options = {"processes": False, "protocol": "tcp", "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=1, threads_per_worker=2, **options) as cluster:
        found = look(dask_cluster(ClusterSettings(kind="address", address=cluster.scheduler_address), reach))
    said = "\n".join(f"{item.level} {item.place}: {item.said}; {item.remedy}" for item in found)
    assert "wrong" not in levels(found), said
    for words in ("ok Dask: the scheduler at", "1 on 1 host", "have several threads", "reach the home folder",
                  "reach the store", "infra/dask/congruence.yaml"):  # fmt: skip
        assert words in said, said
    assert list(home.iterdir()) == []


def test_a_port_that_is_no_scheduler_and_a_scheduler_without_workers(tmp_path: Path) -> None:
    reach = Reach(tmp_path, str(tmp_path), {})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        check = Check("Dask", lambda: dask_cluster(ClusterSettings(kind="address", address=address), reach), seconds=1)
        (found,) = examine([check])
    assert (found.level, "is a Dask scheduler" in found.remedy) == ("wrong", True)
    with LocalCluster(n_workers=0, processes=False, protocol="tcp", dashboard_address="127.0.0.1:0") as cluster:
        found = look(dask_cluster(ClusterSettings(kind="address", address=cluster.scheduler_address), reach))[-1]
    assert (found.level, found.remedy) == ("wrong", f"start some: dask worker {cluster.scheduler_address}")


def test_a_worker_of_another_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "mark").write_text("this")
    assert sees(str(tmp_path / "mark"), "this") is None
    assert sees(str(tmp_path / "mark"), "that") == "is another folder there"
    assert sees(str(tmp_path / "nowhere" / "mark"), "this") == "is not seen there"


def test_the_current_tracking_of_other_code_is_left_alone(tmp_path: Path) -> None:
    before = mlflow.get_tracking_uri()
    look(tracking_server(TrackingSettings(uri=mlflow_database(tmp_path))))
    assert mlflow.get_tracking_uri() == before
