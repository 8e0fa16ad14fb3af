"""The parts of a stack, in the order in which they start: storage, servers, Dask, the receiver, the runs' worker."""

from __future__ import annotations

import signal
import sys

from congruence.flows.stack.place import BUCKET, POOL, TEMPORARY, Place
from congruence.flows.stack.prepared import clear_abandoned_runs, has_pool, make_bucket, make_webhook
from congruence.kernels.memory import total_memory
from congruence.tasks.dask.clusters import WORKER_ENVIRONMENT, dask_environment
from congruence.tasks.stack import postgresql
from congruence.tasks.stack.part import Part, answers

WORKERS = ("worker-1", "worker-2")
_PYTHON = (sys.executable, "-m")


def topology(place: Place) -> list[Part]:
    """Every part; a part that needs another comes after it."""
    parts = [
        _postgresql(place),
        *([] if place.s3 else [_s3(place)]),
        _scheduler(place),
        _mlflow(place),
        _prefect(place),
    ]
    return [*parts, *(_worker(place, name) for name in WORKERS), _receiver(place), _runs(place)]


def _postgresql(place: Place) -> Part:
    port, word = place.ports["postgresql"], place.words["postgresql"]
    return Part(
        "postgresql",
        postgresql.server_command(place.folder / "postgresql", port),
        f"127.0.0.1:{port}",
        lambda: postgresql.is_well(port, word),
        prepare=lambda: postgresql.make_databases(port, word, "mlflow", "prefect"),
        stop=signal.SIGINT,  # ends the sessions; SIGTERM would wait for them
        grace=30.0,
        user=postgresql.server_user(),
    )


def _s3(place: Place) -> Part:
    return Part(
        "s3",
        (*_PYTHON, "moto.server", "-H", "127.0.0.1", "-p", str(place.ports["s3"])),
        place.http("s3"),
        answers(f"{place.http('s3')}/moto-api/"),
        prepare=lambda: make_bucket(place),
        grace=5.0,
    )


def _scheduler(place: Place) -> Part:
    command = [*_PYTHON, "dask", "scheduler", "--host", "tls://127.0.0.1", "--port", str(place.ports["scheduler"])]
    command += ["--dashboard-address", f"127.0.0.1:{place.ports['dashboard']}", *_tls(place)]
    return Part(
        "scheduler",
        tuple(command),
        place.scheduler,
        answers(f"{place.http('dashboard')}/health"),
        place.quiet_environment() | dask_environment() | _ENCRYPTED,
    )


def _worker(place: Place, name: str) -> Part:
    command = [*_PYTHON, "dask", "worker", place.scheduler, "--host", "tls://127.0.0.1", "--name", name]
    command += ["--nthreads", "1", "--no-nanny", "--memory-limit", str(total_memory() // len(WORKERS))]
    command += [
        "--dashboard-address",
        f"127.0.0.1:{place.ports[name]}",
        "--local-directory",
        str(place.folder / "work"),
    ]
    return Part(
        name,
        (*command, *_tls(place)),
        place.http(name),
        answers(f"{place.http(name)}/health"),
        _evaluating(place) | dask_environment() | _ENCRYPTED,
        needs=("scheduler", "mlflow"),
        grace=10.0,
    )


def _mlflow(place: Place) -> Part:
    store = postgresql.address(place.ports["postgresql"], place.words["postgresql"], "mlflow")
    command = [*_PYTHON, "mlflow", "server", "--host", "127.0.0.1", "--port", str(place.ports["mlflow"])]
    command += ["--workers", "1", "--artifacts-destination", f"s3://{BUCKET}/mlflow"]
    return Part(
        "mlflow",
        tuple(command),
        place.http("mlflow"),
        answers(f"{place.http('mlflow')}/health"),
        place.quiet_environment()
        | place.s3_environment()
        | {
            "MLFLOW_BACKEND_STORE_URI": store,
            "MLFLOW_S3_ENDPOINT_URL": place.s3_endpoint,
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http,https",
            "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true",
            "MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY": place.words["mlflow_webhook_key"],
        },
        needs=("postgresql",) if place.s3 else ("postgresql", "s3"),
    )


def _prefect(place: Place) -> Part:
    word = place.words["postgresql"]
    database = postgresql.address(place.ports["postgresql"], word, "prefect", "postgresql+asyncpg")
    port = str(place.ports["prefect"])
    return Part(
        "prefect",
        (*_PYTHON, "prefect", "server", "start", "--host", "127.0.0.1", "--port", port),
        place.http("prefect"),
        answers(f"{place.http('prefect')}/api/health"),
        place.quiet_environment()
        | {
            "PREFECT_HOME": str(place.folder / "work" / "prefect-server"),
            "PREFECT_SERVER_DATABASE_CONNECTION_URL": database,
            "PREFECT_SERVER_API_AUTH_STRING": f"congruence:{place.words['prefect']}",
        },
        needs=("postgresql",),
    )


def _receiver(place: Place) -> Part:
    return Part(
        "receiver",
        (*_PYTHON, "congruence.flows.cli.app", "receive", "--port", str(place.ports["receiver"])),
        f"{place.http('receiver')}/mlflow",
        answers(f"{place.http('receiver')}/health"),
        _evaluating(place) | {"CONGRUENCE_WEBHOOK_SECRET": place.words["webhook"]},
        needs=("prefect", "mlflow"),
        prepare=lambda: make_webhook(place),
    )


def _runs(place: Place) -> Part:
    """Prefect's worker: carries out the runs of deployments, each as a process of its own."""
    command = [*_PYTHON, "prefect", "worker", "start", "--pool", POOL, "--type", "process", "--name", "stack"]
    health = {"PREFECT_WORKER_WEBSERVER_HOST": "127.0.0.1", "PREFECT_WORKER_WEBSERVER_PORT": str(place.ports["runs"])}
    # Prefect's worker keeps what it needs in "runner_storage" of the temporary folder: the first user of a machine to
    # do so in /tmp shuts out all others.
    temporary = {"TMPDIR": str(place.folder / TEMPORARY)}
    is_healthy = answers(f"{place.http('runs')}/health")  # before it has joined its pool, too
    return Part(
        "runs",
        (*command, "--limit", str(len(WORKERS)), "--with-healthcheck"),
        f"work pool {POOL}",
        lambda: is_healthy() and has_pool(place),
        _evaluating(place)
        | health
        | temporary
        | {"PREFECT_WORKER_QUERY_SECONDS": "5", "PREFECT_WORKER_PREFETCH_SECONDS": "5"},
        needs=("prefect", "mlflow", *WORKERS),
        clear=lambda: clear_abandoned_runs(place),
        grace=30.0,
    )


_ENCRYPTED = {"DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "true"}


def _evaluating(place: Place) -> dict[str, str]:
    own = {"PREFECT_HOME": str(place.home / "prefect"), "PREFECT_LOGGING_EXTRA_LOGGERS": "congruence"}
    return place.quiet_environment() | place.clients_environment() | WORKER_ENVIRONMENT | own


def _tls(place: Place) -> list[str]:
    files = place.certificates
    return ["--tls-ca-file", files["ca_file"], "--tls-cert", files["cert_file"], "--tls-key", files["key_file"]]
