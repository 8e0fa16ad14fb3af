"""Clusters: by settings, by a file, over TLS and on cards; and what a run says when one is lost under it."""

import datetime
import logging
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import dask
import psutil
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from distributed import LocalCluster
from distributed.comm.core import CommClosedError
from distributed.security import Security
from loopback import Process, free_port
from pydantic import ValidationError

from congruence.tasks.dask import gpus as cards
from congruence.tasks.dask import workers
from congruence.tasks.dask.clusters import (
    ClusterSpec,
    cluster_spec,
    dask_client,
    dask_environment,
    quiet_dask,
    read_cluster_spec,
    start_cluster,
    worker_environment,
)
from congruence.tasks.dask.gpus import (
    WorkerDevice,
    cuda_cluster_options,
    devices_in_words,
    own_device,
    solves_on_cards,
    worker_devices,
)
from congruence.tasks.dask.workers import DASK_SETTINGS, WORKER_ENVIRONMENT, takes_sockets
from congruence.tasks.evaluate import executors
from congruence.tasks.runtime.errors import ClusterError, SettingsError
from congruence.tasks.settings.evaluation import load_settings
from congruence.tasks.settings.parts import CARD_SHARE_VARIABLE, ClusterSettings, TlsSettings


def require_refused(settings: ClusterSettings, message: str, error: type[Exception] = SettingsError) -> None:
    """There is no cluster by these settings, and why is said."""
    with pytest.raises(error, match=message), dask_client(settings):
        pass


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[tuple[Process, ClusterSettings]]:
    """A scheduler without workers, in a process of its own."""
    port = free_port()
    command = [sys.executable, "-m", "dask", "scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
    process = Process(command, tmp_path / "scheduler.log")
    process.start()
    yield process, ClusterSettings(kind="address", address=f"tcp://127.0.0.1:{port}")
    process.stop(9)


KILLED = """
import os, sys
from multiprocessing import util
from pathlib import Path
from congruence.flows.cli.options import embed_servers
from congruence.tasks.dask import workers
embed_servers(Path(sys.argv[1]))
workers._LOADED = "json"
workers.load_for_workers()
print(util.get_temp_dir(), flush=True)
os.kill(os.getpid(), 9)
"""


def test_what_a_killed_command_leaves_of_its_workers_goes_with_its_temporary_files() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="h") as home:
        command = [sys.executable, "-c", KILLED, home]
        left = Path(subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip())
        assert left.is_relative_to(Path(home, "temporary"))
        assert left.is_dir()
        command[2] = KILLED.replace("os.kill(os.getpid(), 9)", "")
        assert not subprocess.run(command, capture_output=True, text=True, check=True).stderr
        assert not list(Path(home, "temporary").glob("process-*"))
        (deep := Path(home, "deep" * 20)).mkdir()
        assert not takes_sockets(str(deep))  # its address would be too long


def test_a_lost_scheduler_is_reported_at_once_with_its_address(scheduler: tuple[Process, ClusterSettings]) -> None:
    process, settings = scheduler
    message = rf"scheduler at {settings.address} was lost.*run the same command"

    def lose_it() -> None:
        with dask_client(settings) as client:
            future = client.submit(time.sleep, 60)
            process.stop(9)
            future.result()

    with pytest.raises(ClusterError, match=message):
        lose_it()


def test_a_cluster_without_workers_is_announced_and_then_given_up(
    scheduler: tuple[Process, ClusterSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "WITHOUT_WORKERS_SECONDS", 0.0)
    said: list[str] = []
    with dask_client(scheduler[1]) as client:
        executor = executors.DaskExecutor(client, said.append)
        since = executor._without_workers(None)
        with pytest.raises(ClusterError, match=r"no worker.*dask worker"):
            executor._without_workers(since)
        monkeypatch.setattr(workers, "WORKERS_SECONDS", 0.1)
        with pytest.raises(ClusterError, match=r"no worker.*dask worker"):
            workers.cluster_memory(client)
    assert ["No workers connected" in line for line in said] == [True]


def test_work_that_kills_its_workers_is_named_with_a_remedy() -> None:
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster,
    ):
        settings = ClusterSettings(kind="address", address=cluster.scheduler_address)
        with pytest.raises(ClusterError, match=r"died.*memory.*run the same command"), dask_client(settings) as client:
            client.submit(os._exit, 1).result()
        with pytest.raises(FileNotFoundError), dask_client(settings):
            Path("/nowhere/at/all").read_bytes()


def own_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """What Python processes that are started from now on do before anything else."""
    (tmp_path / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


def test_worker_processes_that_do_not_come_up_give_way_to_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_start(tmp_path, monkeypatch, "import os; os._exit(3)")
    forkserver._forkserver._stop()  # it has loaded already what workers of other tests need
    said: list[str] = []
    with dask_client(ClusterSettings(kind="local", workers=1), said.append) as client:
        assert client.submit(os.getpid).result(timeout=60) == os.getpid()
    assert "trying once more" in said[0]
    assert "going on with threads in this process" in said[1]


def test_workers_are_forks_of_what_is_loaded_and_know_the_environment_of_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen() -> dict[str, Any]:  # in here, so that it is sent with its code
        from congruence.tasks.models import processes

        parent = psutil.Process().parent()
        assert "forkserver" in " ".join(parent.cmdline())
        return {
            "number": os.environ["CONGRUENCE_TRIED"],
            "threads": os.environ["OMP_NUM_THREADS"],
            "is_loaded": "congruence.tasks.evaluate.for_workers" in sys.modules,
            "has_nursery": os.getpid() in processes._nurseries,
        }

    deep = tmp_path / ("deep" * 40)
    deep.mkdir()
    forkserver._forkserver._stop()
    held = {name: value for name, value in multiprocessing.current_process()._config.items() if name != "tempdir"}
    monkeypatch.setattr(multiprocessing.current_process(), "_config", held)
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for number in "12":
        monkeypatch.setenv("CONGRUENCE_TRIED", number)
        with dask_client(ClusterSettings(kind="local", workers=1)) as client:
            found = client.submit(seen, pure=False).result(timeout=60)
        assert found == {"number": number, "threads": "1", "is_loaded": True, "has_nursery": True}
    assert tempfile.gettempdir() == str(deep)


def test_a_worker_process_that_is_killed_comes_back_however_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dask_client(ClusterSettings(kind="local", workers=1)) as client:
        first = client.submit(os.getpid, pure=False).result(timeout=60)
        own_start(tmp_path, monkeypatch, "import time; time.sleep(1)")
        os.kill(first, 9)
        second = client.submit(os.getpid, pure=False).result(timeout=60)
        assert second not in (first, os.getpid())


INFRA = Path(__file__).parents[2] / "infra"
IN_PROCESS = {
    "class": "distributed.LocalCluster",
    "arguments": {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": "127.0.0.1:0"},
}


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Any]:
    def written(**content: Any) -> Path:
        file = tmp_path / "cluster.yaml"
        file.write_text(yaml.safe_dump(content))
        return file

    return written


def test_two_evaluations_have_clusters_of_their_own(write: Any) -> None:
    settings = ClusterSettings(kind="spec", file=write(**IN_PROCESS))
    with dask_client(settings) as first:
        with dask_client(settings) as second:
            assert first.cluster.name != second.cluster.name
            assert second.submit(sum, [1, 2]).result() == 3
        assert first.submit(sum, [3, 4]).result() == 7, "the first to finish ended its own cluster alone"
    assert first.cluster.status.name == "closed"


def test_the_name_stands_wherever_the_file_puts_it() -> None:
    arguments = {"custom_cluster_spec": {"metadata": {"name": "${name}"}, "args": ["--tag", "a-${name}"]}}
    spec = ClusterSpec.model_validate({"class": f"{__name__}.Told", "arguments": arguments})
    made = [start_cluster(spec, "here") for _ in range(2)]
    names = [cluster.spec["metadata"]["name"] for cluster in made]
    assert names[0] != names[1]
    assert made[0].spec["args"] == ["--tag", f"a-{names[0]}"]
    assert all(name.startswith("congruence-") and len(name) < 30 for name in names)


class Told:
    scheduler_address = "tcp://nowhere"

    def __init__(self, custom_cluster_spec: dict[str, Any], name: str | None = None) -> None:
        assert name is None, "the resource has the name"
        self.spec = custom_cluster_spec

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"arguments": {}}, r"class: is missing; add it"),
        ({"class": "distributed.LocalCluster", "argument": {}}, r"argument: there is no such key; did you mean"),
        ({"class": "distributed.NoCluster"}, r"class: distributed.NoCluster cannot be imported"),
        ({"class": "no_such_package.Cluster"}, r"install the package that has it"),
        (
            {"class": "subprocess.Popen", "arguments": {"args": "true"}},
            r"subprocess.Popen is no class of Dask clusters",
        ),
        (
            {"class": "distributed.SpecCluster", "arguments": {"sise": 3}},
            r"SpecCluster got an unexpected keyword.*sise",
        ),
        (
            {"class": "distributed.LocalCluster", "arguments": {"name": "shared"}},
            r"arguments.name: 'shared' is fixed.*\$",
        ),
        (
            {"class": "x.Y", "arguments": {"custom_cluster_spec": {"metadata": {"name": "ours"}}}},
            r"metadata.name: 'ours' is fixed: two evaluations would share",
        ),
        ({"class": "x.Y", "arguments": {"custom_cluster_spec": "cluster.yaml"}}, r"write the resource itself"),
    ],
)
def test_what_a_file_has_wrong_is_named(write: Any, content: dict[str, Any], message: str) -> None:
    require_refused(ClusterSettings(kind="spec", file=write(**content)), message)


def test_a_file_that_is_no_text_or_no_mapping_is_no_cluster_file(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    for content, message in ((b"\xff\xfe", "is not text, so it is no cluster file"), (b"- a", "found list")):
        file.write_bytes(content)
        with pytest.raises(SettingsError, match=message):
            read_cluster_spec(file)


def test_a_cluster_that_does_not_start_or_gets_no_workers_says_so(write: Any) -> None:
    fails = {"class": "distributed.LocalCluster", "arguments": {"n_workers": 1, "scheduler_port": "x"}}
    for content, message in (
        (fails, r"cluster.yaml: distributed.LocalCluster did not start"),
        (IN_PROCESS | {"wait_for": 2, "timeout": 0.2}, r"1 of 2 workers came within 0 s"),
    ):
        require_refused(ClusterSettings(kind="spec", file=write(**content)), message, ClusterError)


def test_the_settings_say_which_keys_belong_to_which_kind(tmp_path: Path) -> None:
    tls = dict.fromkeys(("ca_file", "cert_file", "key_file"), "x")
    for wrong, message in (
        ({"kind": "spec"}, "needs file"),
        ({"kind": "local", "file": "x.yaml"}, "no other kind takes one"),
        ({"kind": "spec", "file": "x.yaml", "workers": 3}, "from its file"),
        ({"kind": "address", "address": "tcp://a:1", "tls": tls}, "tls"),
    ):
        with pytest.raises(ValueError, match=message):
            ClusterSettings.model_validate(wrong)
    content = {"splits": [{"uri": "a.parquet", "input": "x", "target": "y"}], "encoder": {"model": "compact"}}
    (tmp_path / "evaluation.yaml").write_text(yaml.safe_dump(content | {"cluster": {"kind": "spec", "file": "c.yaml"}}))
    assert load_settings(tmp_path / "evaluation.yaml").cluster.file == tmp_path / "c.yaml"


def test_schedulers_and_workers_that_others_start_have_dask_s_settings_too() -> None:
    assert dask.config.collect_env(dask_environment())["distributed"] == DASK_SETTINGS["distributed"]
    with dask_client(ClusterSettings(kind="threads", workers=1)):
        assert dask.config.get("distributed.scheduler.worker-ttl") == "1 hour"
        assert dask.config.get("distributed.worker.memory.spill") is False
        assert dask.config.get("distributed.worker.memory.rebalance.sender-min") == 0.3, "what Dask's files say stays"
    assert dask.config.get("distributed.worker.memory.spill") == 0.7


def test_kind_kubernetes_asks_for_memory_in_words_that_kubernetes_knows() -> None:
    pytest.importorskip("dask_kubernetes")
    from dask_kubernetes.operator.kubecluster.kubecluster import make_cluster_spec

    settings = ClusterSettings(kind="kubernetes", image="i", workers=3, memory_per_worker="8 GiB")
    arguments = cluster_spec(settings).arguments
    names = ("image", "n_workers", "env", "worker_command", "resources")
    resource = make_cluster_spec("a", **{key: arguments[key] for key in names} | {"worker_command": ["dask", "worker"]})
    for part in ("worker", "scheduler"):
        (container,) = resource["spec"][part]["spec"]["containers"]
        given = {item["name"]: item["value"] for item in container["env"]}
        assert given.items() >= (WORKER_ENVIRONMENT | dask_environment()).items()
    assert container["resources"]["limits"] == {"memory": str(8 * 2**30)}
    timed = make_cluster_spec("a", idle_timeout=arguments["idle_timeout"])
    assert timed["spec"]["idleTimeout"] == 3600, "so that pods of a command that was killed end by themselves"
    assert "name" not in arguments, "so that each evaluation has one of its own"


@pytest.mark.parametrize("file", sorted((INFRA / "clusters").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_cluster_files_are_read(file: Path) -> None:
    assert read_cluster_spec(file).arguments


def certificates(folder: Path) -> TlsSettings:
    """A certificate that signs for itself, as authority and as what it signs for."""
    folder.mkdir()
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "congruence")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(secret)
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    own = folder / "certificate.pem"
    return TlsSettings(ca_file=own, cert_file=own, key_file=folder / "key.pem")


def test_a_scheduler_with_tls_answers_those_whom_its_authority_knows(tmp_path: Path) -> None:
    ours, other = certificates(tmp_path / "ours"), certificates(tmp_path / "other")
    files = {
        f"tls_{role}_{part}": str(file)
        for role in ("scheduler", "worker", "client")
        for part, file in (("cert", ours.cert_file), ("key", ours.key_file))
    }
    security = Security(tls_ca_file=str(ours.ca_file), require_encryption=True, **files)
    with LocalCluster(**IN_PROCESS["arguments"], protocol="tls://", security=security) as cluster:
        address = cluster.scheduler_address
        assert address.startswith("tls://")
        with dask_client(ClusterSettings(kind="address", address=address, tls=ours)) as client:
            assert client.submit(sum, [1, 2]).result() == 3
        for tls, message in (
            (None, r"asks for TLS, and nothing names ca_file"),
            (other, r"no Dask scheduler answers.*of the same authority"),
        ):
            require_refused(ClusterSettings(kind="address", address=address, tls=tls), message)


def test_a_certificate_that_is_not_there_is_named(tmp_path: Path) -> None:
    tls = certificates(tmp_path / "ours").model_copy(update={"key_file": tmp_path / "absent.pem"})
    settings = ClusterSettings(kind="address", address="tls://127.0.0.1:1", tls=tls)
    require_refused(settings, r"cluster\.tls\.key_file: there is no file .*absent\.pem")


def test_a_worker_leaves_it_to_the_client_to_say_that_the_scheduler_went() -> None:
    def written() -> list[str]:
        """What a worker writes of two errors, one of which is that of a heartbeat whose scheduler has closed."""
        lines: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
        logger = logging.getLogger("distributed.worker")
        logger.addHandler(handler)
        try:
            for error in (CommClosedError("Stream is closed"), ValueError("of the work")):
                try:
                    raise error
                except type(error):
                    logger.exception("%s", error)
        finally:
            logger.removeHandler(handler)
        return lines

    with dask_client(ClusterSettings(kind="local", workers=1)) as client:
        assert list(client.run(written).values()) == [["of the work"]]


@pytest.mark.parametrize("kind", ["local", "threads"])
def test_workers_listen_on_loopback_alone_and_no_process_loads_a_dashboard(kind: Literal["local", "threads"]) -> None:
    def seen() -> tuple[set[str], bool]:
        heard = [each.laddr.ip for each in psutil.Process().net_connections() if each.status == psutil.CONN_LISTEN]
        return set(heard), "bokeh" in sys.modules

    with dask_client(ClusterSettings(kind=kind, workers=1)) as client:
        ((heard, loads),) = client.run(seen).values()
    assert heard == {"127.0.0.1"}
    assert kind == "threads" or not loads


def test_a_nanny_does_not_tell_of_a_worker_that_is_slow_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    handler = logging.StreamHandler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    nanny = logging.getLogger("distributed.nanny")
    monkeypatch.setattr(logging.getLogger("distributed"), "handlers", [handler])
    with quiet_dask():
        nanny.error("Worker process still alive after 4.0 seconds, killing")
    nanny.error("Restarting worker")
    assert lines == ["Restarting worker"]


class _RuntimeError(RuntimeError):
    pass


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """A driver and a CuPy that shows one card with 100 GiB."""
    driver = tmp_path / "nvidiactl"
    driver.touch()
    monkeypatch.setattr(cards, "DRIVER_PATHS", (driver,))
    runtime = SimpleNamespace(
        CUDARuntimeError=_RuntimeError,
        getDeviceCount=lambda: 1,
        getDeviceProperties=lambda _: {"name": b"Card", "totalGlobalMem": 100 * 2**30, "pciBusID": 3},
    )
    for name in ("cupy", "cupyx", "cupyx.scipy", "cupyx.scipy.linalg"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["cupy"].cuda = SimpleNamespace(runtime=runtime)  # type: ignore[attr-defined]
    monkeypatch.delenv("CUPY_TF32", raising=False)
    monkeypatch.delenv(CARD_SHARE_VARIABLE, raising=False)
    return runtime


def test_a_worker_finds_its_card_and_says_why_it_cannot_use_it(
    card: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = own_device()
    assert (device.card, device.memory_bytes) == ("Card", 80 * 2**30)
    monkeypatch.setenv(CARD_SHARE_VARIABLE, "0.4")
    assert own_device().memory_bytes == 40 * 2**30
    monkeypatch.setenv("CUPY_TF32", "1")
    assert "10 bits" in str(own_device())
    monkeypatch.delenv("CUPY_TF32")

    def no_driver() -> int:
        raise _RuntimeError("cudaErrorInsufficientDriver")

    card.getDeviceCount = no_driver
    assert "InsufficientDriver" in str(own_device())
    monkeypatch.setitem(sys.modules, "cupyx.scipy.linalg", None)
    assert "install congruence[gpu] on the workers" in str(own_device())
    monkeypatch.setattr(cards, "DRIVER_PATHS", ())
    assert own_device() == WorkerDevice()


def test_cards_are_asked_of_the_workers_behind_an_address(card: SimpleNamespace) -> None:
    with dask_client(ClusterSettings(kind="threads", workers=1)) as client:
        for kind in ("cuda", "address", "kubernetes"):
            settings = ClusterSettings.model_construct(kind=kind)
            assert solves_on_cards(worker_devices(client, settings))
        assert worker_devices(client, ClusterSettings(kind="local")) == {}


def test_a_run_says_what_computes_what() -> None:
    first, second = WorkerDevice("Card", 2**36, place="a 1"), WorkerDevice("Card", 2**36, place="a 2")
    both = {"tcp://1": first, "tcp://2": second}
    assert solves_on_cards(both)
    assert devices_in_words(both) == "workers: 2 x Card (64 GiB of it); they embed and solve on their cards"
    mixed = both | {"tcp://3": WorkerDevice()}
    assert not solves_on_cards(mixed)
    assert "1 of 3 have no card, so that all solve on their processors" in devices_in_words(mixed)
    shared = {"tcp://1": first, "tcp://2": first}
    assert not solves_on_cards(shared)
    assert "share cards" in devices_in_words(shared)
    assert "dask cuda worker" in devices_in_words(shared)
    assert devices_in_words({"tcp://1": WorkerDevice(reason="no CuPy")}).endswith("they solve on their processors")
    assert devices_in_words({}) == ""
    assert not solves_on_cards({})


def test_evaluations_share_a_card_by_their_settings() -> None:
    alone = cuda_cluster_options(ClusterSettings(kind="cuda"), ["0"])
    assert (alone["rmm_pool_size"], alone["rmm_maximum_pool_size"], alone["protocol"]) == (0.2, 0.8, "tcp")
    settings = ClusterSettings(kind="cuda", card_memory=0.6, evaluations_per_card=3, workers=2)
    options = cuda_cluster_options(settings, ["0", "GPU-a", "2"])
    assert options["rmm_maximum_pool_size"] == pytest.approx(0.2)
    assert (options["n_workers"], options["CUDA_VISIBLE_DEVICES"], options["protocol"]) == (2, ["0", "GPU-a"], "ucx")
    assert cuda_cluster_options(ClusterSettings(kind="cuda", protocol="tcp"), ["0", "1"])["protocol"] == "tcp"
    environment = worker_environment(settings)
    assert float(environment[CARD_SHARE_VARIABLE]) == pytest.approx(0.2)
    assert environment["CUPY_TF32"] == environment["NVIDIA_TF32_OVERRIDE"] == "0"
    with pytest.raises(ValidationError, match=r"card_memory belong to kind 'cuda'.*CONGRUENCE_CARD_SHARE"):
        ClusterSettings(kind="local", card_memory=0.5)


def test_a_cuda_cluster_without_its_packages_or_cards_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rmm", None)
    require_refused(ClusterSettings(kind="cuda"), r"needs the GPU packages.*rmm.*\.\[gpu\]")
    for name in ("rmm", "dask_cuda"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["dask_cuda"].LocalCUDACluster = None  # type: ignore[attr-defined]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    require_refused(ClusterSettings(kind="cuda"), r"finds no NVIDIA card here.*CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1, GPU-b")
    assert cards.visible_cards() == ["1", "GPU-b"]


def test_a_share_of_a_card_that_makes_no_sense_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("all", "0", "-1", "1.5"):
        monkeypatch.setenv(CARD_SHARE_VARIABLE, wrong)
        assert cards.card_share() == cards.CARD_SHARE
