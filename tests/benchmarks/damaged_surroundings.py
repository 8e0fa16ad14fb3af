"""Damaged surroundings, for real: what a command says, after how many seconds, and the numbers of the next run.

Each case starts from the same home folder with one registered model, does one thing to what surrounds the run (before
it starts, or while it works), and runs `congruence evaluate`. Then what the message asks for is done, and the same
command runs again: its numbers must be those of the run that nothing disturbed, to the last bit.

    python tests/benchmarks/damaged_surroundings.py [--once] [FOLDER] [CASE ...]

A case is chosen by part of its name; --once leaves the second run out.

Root is needed for the cases that mount a small or a read-only disk; without it they are left out.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))
from slow_machine import a_quarter_of_the_processor

NUMBERS = ("cce_mean", "cce_noise_floor", "cce_expected", "cce_p_value", "calibration_p_value", "nll_mean", "ece")
ROWS = 600
QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
OWN = ("PREFECT_", "MLFLOW_TRACKING", "MLFLOW_HTTP", "CONGRUENCE_", "PREFECT_API")


def environment(**more: str) -> dict[str, str]:
    base = {key: value for key, value in os.environ.items() if not key.startswith(OWN)}
    return base | QUIET | more


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_until(holds: Callable[[], object], seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError("what the case waits for did not come")
        time.sleep(0.02)


@dataclass
class Place:
    """The folder of the exercise: a home, its untouched copy, the data and the evaluation file."""

    folder: Path
    changes: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    command: subprocess.Popen[str] | None = None
    server: str | None = None
    embedded: bool = False
    """Whether commands start a Prefect server of their own, which takes most of their time; else all share one."""
    elsewhere: str = ""
    """The name of another home folder than the one that is put back before each case."""
    limits: dict[int, int] = field(default_factory=dict)
    """What the system allows a command: RLIMIT_... to a number."""

    @property
    def home(self) -> Path:
        return self.folder / (self.elsewhere or "home")

    @property
    def store(self) -> Path:
        return self.home / "embeddings"

    def prepare(self) -> None:
        """Data and a registered model, made once."""
        kept = self.folder / "registered"
        if kept.exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        draw = np.random.default_rng(1)
        frame = pd.DataFrame(draw.normal(size=(ROWS, 3)), columns=["a", "b", "c"])
        frame["y"] = frame["a"] + np.exp(0.3 * frame["b"]) * draw.normal(size=ROWS)
        frame.to_parquet(self.folder / "rows.parquet")
        shutil.copy2(self.folder / "rows.parquet", self.folder / "rows.kept.parquet")
        code = (
            "import numpy as np, pandas as pd\n"
            "from congruence.tasks.contract import log_predictive_model\n"
            "def predict(x):\n    return pd.DataFrame({'loc': 0.9 * x['a'], 'scale': np.exp(0.3 * x['b'])})\n"
            "log_predictive_model(predict, name='law', family='normal', registered_model_name='law',\n"
            "    input_example=pd.DataFrame({'a': [0.0], 'b': [1.0], 'c': [0.5]}))\n"
        )
        (self.folder / "register.py").write_text(code)
        self.register()
        shutil.copytree(self.home, kept)

    def register(self) -> None:
        """The model, in a home folder that is made."""
        self.home.mkdir()
        command = [sys.executable, str(self.folder / "register.py")]
        variables = environment(CONGRUENCE_HOME=str(self.home))
        subprocess.run(command, env=variables, cwd=self.home, text=True, check=True)

    def reset(self, kept: str = "registered") -> None:
        """The home as it was."""
        if self.elsewhere:
            shutil.rmtree(self.home, ignore_errors=True)
        self.elsewhere, self.limits = "", {}
        shutil.rmtree(self.home, ignore_errors=True)
        if self.home.exists():
            self.home.unlink()
        shutil.copytree(self.folder / kept, self.home)
        self.changes, self.variables, self.embedded = {}, {}, False

    def start(self) -> subprocess.Popen[str]:
        """`congruence evaluate`, started."""
        split = {
            "name": "rows", "uri": str(self.folder / "rows.parquet"), "input": ["a", "b", "c"], "target": "y",
            "input_kind": "features", "model_inputs": ["a", "b", "c"], "shard_rows": 150,
        }  # fmt: skip
        content = {
            "models": ["law"], "splits": [split], "encoder": {"kind": "identity"},
            "cluster": {"kind": "threads", "workers": 2}, "tracking": {"report": False}, **self.changes,
        }  # fmt: skip
        file = self.folder / "evaluation.yaml"
        file.write_text(yaml.safe_dump(content))
        server = {} if self.embedded or not self.server else {"PREFECT_API_URL": self.server}
        self.command = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "congruence.flows.cli.main",
                "evaluate",
                str(file),
                "--home",
                str(self.home),
                "--json",
            ],
            env=environment(**server | self.variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=self._limited if self.limits else None,
        )
        return self.command

    def _limited(self) -> None:
        for what, number in self.limits.items():
            resource.setrlimit(what, (number, resource.getrlimit(what)[1]))

    def run(self, seconds: float = 300.0) -> Told:
        """`congruence evaluate`, to its end."""
        return finish(self.start(), seconds)


@dataclass
class Told:
    """How a command ended."""

    status: int | None
    seconds: float
    said: str
    numbers: dict[str, float]
    failed: str = ""

    @property
    def sentence(self) -> str:
        """What stands behind "Error:", else a failed version's reason, else nothing."""
        lines = self.said.splitlines()
        if "Traceback (most recent call last)" in self.said:
            return f"TRACEBACK ... {lines[-1]}"
        errors = [line for line in lines if line.startswith("Error:")]
        if self.failed:
            return self.failed
        return errors[-1].removeprefix("Error: ") if errors else " / ".join(lines[1:][-2:])


def finish(command: subprocess.Popen[str], seconds: float = 300.0, started: float | None = None) -> Told:
    begun = time.monotonic() if started is None else started
    try:
        out, said = command.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        command.kill()
        out, said = command.communicate()
        return Told(None, time.monotonic() - begun, said + "\nstill running, killed", {})
    taken = time.monotonic() - begun
    return Told(command.returncode, taken, said, numbers_of(out), reason_of(out))


def reason_of(out: str) -> str:
    """Why a version failed."""
    try:
        return " / ".join(outcome["error"] for outcome in json.loads(out).get("outcomes", []) if outcome.get("error"))
    except ValueError:
        return ""


def numbers_of(out: str) -> dict[str, float]:
    try:
        outcomes = json.loads(out).get("outcomes", [])
    except ValueError:
        return {}
    found: dict[str, float] = {}
    for outcome in outcomes:
        for name in NUMBERS:
            metric = outcome.get("metrics", {}).get(name)
            if metric is not None:
                found[name] = metric["value"] if isinstance(metric, dict) else metric
        if outcome.get("error"):
            found["failed"] = 1.0
    return found


Case = Callable[[Place], "Told"]
CASES: dict[str, tuple[Case, Callable[[Place], None]]] = {}


def case(name: str, mend: Callable[[Place], None] = lambda place: None) -> Callable[[Case], Case]:
    """A case under its name, with what its message asks for."""

    def keep(function: Case) -> Case:
        CASES[name] = (function, mend)
        return function

    return keep


def put_back_mlflow(place: Place) -> None:
    (place.home / "mlflow.db").unlink(missing_ok=True)
    shutil.copy(place.folder / "registered" / "mlflow.db", place.home / "mlflow.db")


def nothing_but_the_store(place: Place) -> None:
    """A finished run's store, of which MLflow knows nothing: the next run uses all of it."""
    place.reset("finished")
    put_back_mlflow(place)


def some(place: Place, pattern: str) -> Path:
    return sorted(path for path in place.home.glob(pattern) if path.is_file())[0]


# --- MLflow's database


@case("mlflow.db is not a database", put_back_mlflow)
def _(place: Place) -> Told:
    (place.home / "mlflow.db").write_text("these are my notes, not a database\n" * 40)
    return place.run()


@case("mlflow.db is cut to half", put_back_mlflow)
def _(place: Place) -> Told:
    database = place.home / "mlflow.db"
    os.truncate(database, database.stat().st_size // 2)
    return place.run()


@case("pages of mlflow.db are zeroed", put_back_mlflow)
def _(place: Place) -> Told:
    with open(place.home / "mlflow.db", "r+b") as file:
        for page in range(1, 60):
            file.seek(4096 * page)
            file.write(bytes(4096))
    return place.run()


@case("mlflow.db is a folder", lambda place: (shutil.rmtree(place.home / "mlflow.db"), put_back_mlflow(place))[1])
def _(place: Place) -> Told:
    (place.home / "mlflow.db").unlink()
    (place.home / "mlflow.db").mkdir()
    return place.run()


@case("mlflow.db is locked by another process for good")
def _(place: Place) -> Told:
    place.changes = {"tracking": {"report": False, "patience": 20}}
    holder = sqlite3.connect(place.home / "mlflow.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        return place.run()
    finally:
        holder.execute("ROLLBACK")
        holder.close()


# --- the home folder


@contextmanager
def small_disk(place: Place, size: str) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place.home)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place.home)], check=True)


@case("home is read-only")
def _(place: Place) -> Told:
    subprocess.run(["mount", "--bind", str(place.home), str(place.home)], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", str(place.home)], check=True)
    try:
        return place.run()
    finally:
        subprocess.run(["umount", "-l", str(place.home)], check=True)


@case("home is a file", lambda place: place.reset())
def _(place: Place) -> Told:
    shutil.rmtree(place.home)
    place.home.write_text("x")
    return place.run()


@case("the disk is full before the run")
def _(place: Place) -> Told:
    return on_small_disk(place, 0.05)


@case("the disk is full when Prefect's database grows")
def _(place: Place) -> Told:
    return on_small_disk(place, 0.6)


@case("the disk is full in the middle of the run")
def _(place: Place) -> Told:
    return on_small_disk(place, None)


def on_small_disk(place: Place, spare: float | None) -> Told:
    place.embedded = True
    with small_disk(place, "64m"):
        shutil.copytree(place.folder / "registered", place.home, dirs_exist_ok=True)
        filler = place.home / "filler"

        def fill(spare_mib: float) -> None:
            free = shutil.disk_usage(place.home).free - int(spare_mib * 2**20)
            with filler.open("wb", buffering=0) as file, suppress(OSError):
                for _ in range(max(free, 0) // 4096 + (1 if spare_mib == 0 else 0)):
                    file.write(b"x" * 4096)

        if spare is not None:
            fill(spare)
            return place.run()
        begun = place.start()
        wait_until(lambda: (place.store).exists() and any(place.store.rglob("*")))
        fill(0.0)
        return finish(begun)


@case("files may not grow beyond 700 KiB", lambda place: place.limits.clear())
def _(place: Place) -> Told:
    place.limits = {resource.RLIMIT_FSIZE: 700 * 1024}
    return place.run()


@case("a process may open 48 files", lambda place: place.limits.clear())
def _(place: Place) -> Told:
    place.limits = {resource.RLIMIT_NOFILE: 48}
    return place.run()


@case("HOME is a folder that cannot be made")
def _(place: Place) -> Told:
    place.variables = {"HOME": "/proc/nobody"}
    return place.run()


@case("home is named with blanks, umlauts, % and #")
def _(place: Place) -> Told:
    place.elsewhere = "Größe 100% #1 & 'neu' (ü)"
    place.embedded = True
    place.register()
    return place.run()


@case("every file of home is of the year 2041")
def _(place: Place) -> Told:
    return at_another_time(place, 2_240_000_000)


@case("every file of home is of the year 1970")
def _(place: Place) -> Told:
    return at_another_time(place, 1)


def at_another_time(place: Place, seconds: int) -> Told:
    nothing_but_the_store(place)
    for path in place.home.rglob("*"):
        os.utime(path, (seconds, seconds))
    return place.run()


@case("a quarter of the processor's time, at the lowest priority")
def _(place: Place) -> Told:
    place.changes = {"cluster": {"kind": "local", "workers": 2}}
    place.embedded = True
    begun = place.start()
    os.setpriority(os.PRIO_PROCESS, begun.pid, 19)
    with a_quarter_of_the_processor(psutil.Process(begun.pid)):
        return finish(begun, 900.0)


@case("two commands at once in one home")
def _(place: Place) -> Told:
    first = place.start()
    told = place.run()
    other = finish(first)
    assert other.numbers == told.numbers, other.said
    return told


# --- data


@case("the data are cut to half", lambda place: put_back_data(place))
def _(place: Place) -> Told:
    half(place.folder / "rows.parquet")
    return place.run()


@case("the data are gone in the middle of the run", lambda place: put_back_data(place))
def _(place: Place) -> Told:
    begun = place.start()
    wait_until(lambda: any(place.store.glob("*/done/*")))
    (place.folder / "rows.parquet").unlink()
    return finish(begun)


def put_back_data(place: Place) -> None:
    shutil.copy2(place.folder / "rows.kept.parquet", place.folder / "rows.parquet")


# --- servers


@case("Prefect's embedded server is killed in the run")
def _(place: Place) -> Told:
    place.embedded = True
    begun = place.start()
    wait_until(lambda: place.store.exists())
    kill_server(begun.pid)
    return finish(begun)


def kill_server(pid: int) -> None:
    for child in psutil.Process(pid).children(recursive=True):
        words = " ".join(child.cmdline())
        if "prefect.server.api.server" in words and "tied" not in words:
            child.kill()


@case("Prefect's configured server is not there")
def _(place: Place) -> Told:
    place.variables = {"PREFECT_API_URL": f"http://127.0.0.1:{free_port()}/api"}
    return place.run()


@case("Prefect's configured server goes for good in the run")
def _(place: Place) -> Told:
    server, api = prefect_server(place.folder / "prefect-server-to-end")
    try:
        place.variables = {"PREFECT_API_URL": api}
        begun = place.start()
        wait_until(lambda: place.store.exists())
        os.killpg(server.pid, signal.SIGKILL)
        return finish(begun)
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)


def prefect_server(home: Path) -> tuple[subprocess.Popen[bytes], str]:
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port), "--no-ui"],
        env=environment(PREFECT_HOME=str(home)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_until(lambda: listens(port))
    return server, f"http://127.0.0.1:{port}/api"


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@case("Prefect's own database is not a database", lambda place: shutil.rmtree(place.home / "prefect"))
def _(place: Place) -> Told:
    nothing_but_the_store(place)
    place.embedded = True
    for ending in ("", "-wal", "-shm"):
        (place.home / "prefect" / f"prefect.db{ending}").unlink(missing_ok=True)
    (place.home / "prefect" / "prefect.db").write_text("not a database\n" * 400)
    return place.run()


@case("MLflow's server refuses connections", lambda place: place.changes.clear())
def _(place: Place) -> Told:
    place.changes = {"tracking": {"uri": f"http://127.0.0.1:{free_port()}", "report": False}}
    return place.run()


def dask(place: Place, port: int, stack: ExitStack) -> list[subprocess.Popen[bytes]]:
    started = []
    for arguments in (
        ["scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"],
        ["worker", f"tcp://127.0.0.1:{port}", "--nthreads", "2", "--no-dashboard", "--no-nanny"],
    ):
        process = subprocess.Popen(
            [sys.executable, "-m", "dask", *arguments], env=environment(), cwd=place.folder,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        stack.callback(process.kill)
        started.append(process)
    wait_until(lambda: listens(port))
    return started


@case("the Dask scheduler is restarted in the run", lambda place: place.changes.clear())
def _(place: Place) -> Told:
    port = free_port()
    with ExitStack() as stack:
        scheduler, _worker = dask(place, port, stack)
        place.changes = {"cluster": {"kind": "address", "address": f"tcp://127.0.0.1:{port}"}}
        begun = place.start()
        wait_until(lambda: any(place.store.glob("*/done/*")))
        scheduler.kill()
        scheduler.wait()
        began = time.monotonic()
        dask(place, port, stack)
        return finish(begun, started=began)


@case("the Dask scheduler has no worker", lambda place: place.changes.clear())
def _(place: Place) -> Told:
    port = free_port()
    with ExitStack() as stack:
        _, worker = dask(place, port, stack)
        worker.kill()
        place.changes = {"cluster": {"kind": "address", "address": f"tcp://127.0.0.1:{port}"}}
        return place.run(420.0)


@case("every worker process of the local cluster is killed once", lambda place: place.changes.clear())
def _(place: Place) -> Told:
    place.changes = {"cluster": {"kind": "local", "workers": 2}}
    begun = place.start()
    wait_until(lambda: any(place.store.glob("*/done/*")))
    for child in psutil.Process(begun.pid).children(recursive=True):
        if "spawn_main" in " ".join(child.cmdline()):
            child.kill()
    return finish(begun)


# --- what is kept


def move_folders_away(place: Place, pattern: str) -> None:
    """What `is a folder where a file is needed` asks for."""
    for path in place.home.glob(pattern):
        if path.is_dir() and (path / "something").exists():
            shutil.rmtree(path)


def damaged(name: str, pattern: str, damage: Callable[[Path], None]) -> None:
    @case(name, lambda place: move_folders_away(place, pattern))
    def _(place: Place) -> Told:
        nothing_but_the_store(place)
        damage(some(place, pattern))
        return place.run()


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "something").write_text("x")


def garbage(path: Path) -> None:
    path.write_bytes(b"\x00not what it was" * 20)


def half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


damaged("a file of predictions is cut to half", "embeddings/predictions/*/*/ranges/*/*.npz", half)
damaged("a file of predictions is garbage", "embeddings/predictions/*/*/ranges/*/*.npz", garbage)
damaged("a file of predictions is a folder", "embeddings/predictions/*/*/ranges/*/*.npz", a_folder)
damaged("a marker of predictions is a folder", "embeddings/predictions/*/*/done/*", a_folder)
damaged("a marker of embeddings is garbage", "embeddings/*/done/*", garbage)
damaged("a marker of embeddings is a folder", "embeddings/*/done/*", a_folder)
damaged("a shard of embeddings is garbage", "embeddings/*/shards/*/0.0", garbage)
damaged("the index of the split is garbage", "plans/splits/*", garbage)
damaged("the index of the split is a folder", "plans/splits/*", a_folder)
damaged("the statistics of the features are garbage", "statistics/**/*", garbage)
damaged("the statistics of the features are a folder", "statistics/**/*", a_folder)
damaged("the store's description is garbage", "embeddings/*/zarr.json", garbage)


def gone(path: Path) -> None:
    path.unlink()


damaged("a shard of embeddings is cut to half", "embeddings/*/shards/*/0.0", half)
damaged("a shard of embeddings is gone, its marker is not", "embeddings/*/shards/*/0.0", gone)
damaged("predictions are gone, their marker is not", "embeddings/predictions/*/*/ranges/*/*.npz", gone)
damaged("the description of a shard is garbage", "embeddings/*/shards/*/zarr.json", garbage)
damaged("the plan of a split is garbage", "embeddings/*/splits/*", garbage)
damaged("the plan of a split is a folder", "embeddings/*/splits/*", a_folder)


@case("embeddings of another width, with a marker that fits them")
def _(place: Place) -> Told:
    from congruence.tasks.embeddings.arrays import encoded
    from congruence.tasks.runtime.sealed_records import content_digest, sealed, unsealed

    nothing_but_the_store(place)
    path = some(place, "embeddings/*/shards/*/0.0")
    shard = path.parent.name.partition("-")[0]
    marker = some(place, f"embeddings/*/done/{shard}.json")
    data = encoded(np.zeros((150, 2), np.float32))
    said = unsealed(marker.read_bytes()) | {"content": content_digest(data), "size": len(data)}
    shutil.copytree(path.parent, path.parent.with_name(f"{shard}-{content_digest(data)}"))
    (path.parent.with_name(f"{shard}-{content_digest(data)}") / "0.0").write_bytes(data)
    marker.write_bytes(sealed(said))
    return place.run()


def measured(name: str, damage: Callable[[Path], None]) -> None:
    """A run that is killed once a version is measured and before it is logged; then its measurement is damaged."""

    @case(name, lambda place: move_folders_away(place, "embeddings/measurements/*/*.npz"))
    def _(place: Place) -> Told:
        begun = place.start()
        wait_until(lambda: any(place.home.glob("embeddings/measurements/*/*.npz")))
        begun.kill()
        begun.communicate()
        for path in place.home.glob("embeddings/measurements/*/*.npz"):
            damage(path)
        return place.run()


def another_zip_version(path: Path) -> None:
    content = path.read_bytes()
    for header, place in ((b"PK\x03\x04", 4), (b"PK\x01\x02", 6)):  # the version that is needed to extract a part
        parts = content.split(header)
        content = header.join([parts[0], *(part[: place - 4] + b"\xff" + part[place - 3 :] for part in parts[1:])])
    path.write_bytes(content)


measured("killed between measuring and logging", lambda path: None)
measured("a measurement has another zip version", another_zip_version)
measured("a measurement is cut to half", half)
measured("a measurement is a folder", a_folder)


def a_file(name: str) -> None:
    @case(f"`{name}` is a file", lambda place: (place.home / name).unlink())
    def _(place: Place) -> Told:
        path = place.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
        return place.run()


for name in (
    "embeddings/predictions",
    "embeddings/measurements",
    "embeddings/.incoming",
    "embeddings",
    "plans",
    "solves",
    "statistics",
    "prefect",
    "mlartifacts/congruence",
):
    a_file(name)


def main(arguments: list[str]) -> None:
    once = "--once" in arguments
    arguments = [argument for argument in arguments if argument != "--once"]
    folder = Path(arguments[0]) if arguments else Path("/tmp/congruence-damaged")
    place = Place(folder.resolve())
    place.prepare()
    if not (folder / "finished").exists():
        place.reset()
        undisturbed = place.run()
        assert undisturbed.status == 0, undisturbed.said
        (folder / "undisturbed.json").write_text(json.dumps([undisturbed.seconds, undisturbed.numbers]))
        shutil.copytree(place.home, folder / "finished")
    shared, place.server = prefect_server(folder / "prefect-server")
    try:
        judge(place, arguments[1:], once)
    finally:
        os.killpg(shared.pid, signal.SIGTERM)


def judge(place: Place, chosen: list[str], once: bool) -> None:
    """Every case that was chosen, as a line of a table."""
    folder = place.folder
    seconds, expected = json.loads((folder / "undisturbed.json").read_text())
    print(f"undisturbed: {seconds:.0f} s, {expected}\n", flush=True)
    print("| what | exit | seconds | said | the next run |\n|---|---|---|---|---|")
    for name, (damage, mend) in CASES.items():
        if chosen and not any(part in name for part in chosen):
            continue
        place.reset()
        try:
            told = damage(place)
        except TimeoutError as error:
            assert place.command is not None
            print(f"| {name} | | | {error}: {finish(place.command, 5.0).sentence} | |", flush=True)
            continue
        (folder / "said.txt").open("a").write(f"\n===== {name}: {told.status}, {told.seconds:.0f} s\n{told.said}")
        if told.numbers and told.status == 0:
            after = "not needed: " + ("same numbers" if told.numbers == expected else f"DIFFERS {told.numbers}")
        elif once:
            after = "not tried"
        else:
            mend(place)
            place.variables = {}
            again = place.run()
            same = again.numbers == expected
            after = "same numbers" if same else f"DIFFERS {again.numbers} {again.sentence}"
        print(f"| {name} | {told.status} | {told.seconds:.0f} | {told.sentence} | {after} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
