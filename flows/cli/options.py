"""What every command of `congruence` shares: its environment, its common options, its start, and how it ends.

An error is reported as one message. A signal is answered by one sentence, a few seconds for ``finally``, and no process
is left.

The environment is set before Prefect, MLflow, Dask or a BLAS is imported. Everything embedded lives under one home
folder and talks to nobody: an ephemeral Prefect server on loopback, MLflow on SQLite, no telemetry. Values that the
user has set are kept, so pointing at real servers is a matter of their own variables (PREFECT_API_URL,
MLFLOW_TRACKING_URI).
"""

from __future__ import annotations

import errno
import inspect
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from congruence.kernels.errors import CongruenceError
from congruence.tasks.runtime.errors import ClusterError, SettingsError, SurroundingsError, chain, trouble
from congruence.tasks.runtime.files import DEFAULT_HOME, HOME_VARIABLE, keep_temporary_files_in, tracking_uri
from congruence.tasks.runtime.lines import (
    LOGGER,
    evaluation_file,
    is_json,
    require_known_kind,
    use_json_lines,
    with_file,
)

if TYPE_CHECKING:
    from congruence.tasks.comparison.gate import GateDecision
    from congruence.tasks.settings.evaluation import EvaluationSettings
    from congruence.tasks.settings.sections import TrackingSettings


_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
    "DASK_LOGGING__DISTRIBUTED": "error",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # it would say the address with its password
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # we wait for an MLflow that is away ourselves, and say so
}

_COLLECTED = {
    "PREFECT_LOGGING_LEVEL": "INFO",  # a line for the end of each task, with its stage, version and shards
    "MLFLOW_CONFIGURE_LOGGING": "false",  # its lines go where all others go
}

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_LEAST_BYTES = 16 * 2**20


def embed_servers(home: Path, *, writes: bool = True) -> Path:
    """Point Prefect at ``home`` unless the user has pointed it elsewhere; returns ``home``, made if need be.

    What ``writes`` nothing, but reads or removes alone, a disk that is full or read-only does not stop.

    Raises:
        SettingsError: the folder cannot be made or written to, or its disk is full.
    """
    home = home.resolve()
    quiet_libraries()
    os.environ.setdefault("PREFECT_HOME", str(home / "prefect"))
    try:
        home.mkdir(parents=True, exist_ok=True)
        with suppress(*([] if writes else [OSError])):
            # Taken and given back, so that a full disk is said before a run starts what writes its databases.
            with tempfile.TemporaryFile(dir=home) as probe:
                os.posix_fallocate(probe.fileno(), 0, _LEAST_BYTES)
            keep_temporary_files_in(home / "temporary")
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(home).free / 2**20
            raise SettingsError(
                f"home: the disk of {home} is full ({free:.0f} MiB free, a run needs at least {_LEAST_BYTES // 2**20} "
                "beside what it keeps); make room, or give a folder on another disk with --home"
            ) from error
        remedy = "allow larger ones, see ulimit -f" if error.errno == errno.EFBIG else "give another folder with --home"
        raise SettingsError(f"home: {home} cannot be written ({error.strerror}); {remedy}") from error
    return home


def quiet_libraries() -> None:
    """Have Prefect, MLflow and Dask leave it to us to say what happens, and no proxy asked for servers on loopback."""
    require_known_kind()
    for name, value in (_QUIET | (_COLLECTED if is_json() else {})).items():
        os.environ.setdefault(name, value)
    _exempt_loopback_from_proxies()
    use_json_lines()
    # It tells every single attempt at a server that is away; we tell each pause.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)


def _exempt_loopback_from_proxies() -> None:
    """A proxy answers for no server of this machine, and would be asked for the embedded ones, too."""
    for name in ("NO_PROXY", "no_proxy"):
        given = os.environ.get(name) or os.environ.get(name.swapcase()) or ""
        missing = [host for host in _LOOPBACK if host not in given.split(",")]
        if given != "*" and missing:
            os.environ[name] = ",".join([given, *missing] if given else missing)


Home = Annotated[
    Path | None,
    typer.Option(
        help="Where runs keep their data; by default home: of the file, else $CONGRUENCE_HOME, else .congruence.",
        show_default=False,
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON on standard output, and nothing else there.")
]


class Format(StrEnum):
    """How the gate's decisions are printed."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


GateFormat = Annotated[
    Format, typer.Option("--format", help="json is --json; github: annotations and a step summary for GitHub Actions.")
]
File = Annotated[Path, typer.Argument(help="The evaluation file (YAML); `congruence init` writes one.")]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", "-m", help="models:/name/3, models:/name@alias, or a name for all versions."),
]

FAILED = 1
REFUSED = 2
GATE_FAILED = 3
GATE_UNDECIDED = 4


def exit_status(decisions: Sequence[GateDecision]) -> int:
    """The status that says what the gate decided: 0 where all versions passed, or none was judged."""
    if not decisions:
        return 0
    from congruence.tasks.comparison.gate import worst  # not at the start: the command line opens without pandas

    outcome = worst(decision.outcome for decision in decisions)
    if outcome == "passed":
        return 0
    return GATE_FAILED if outcome == "failed" else GATE_UNDECIDED


def home_folder(option: Path | None, file: Path | None = None, file_home: Path | None = None) -> tuple[Path, str]:
    """The folder that holds everything a run leaves on disk, and who said so.

    It is that of the option, else of the evaluation file, else of the environment, else the default.
    """
    said = [(option, "--home"), (file_home, f"home: in {file}"), (os.environ.get(HOME_VARIABLE), f"${HOME_VARIABLE}")]
    folder, said_by = next(((given, by) for given, by in said if given), (DEFAULT_HOME, "the default"))
    return Path(folder).resolve(), said_by


def start(home: Path | None, file: Path | None = None, file_home: Path | None = None, *, writes: bool = True) -> Path:
    """The home folder of a command, see ``embed_servers``; which it is is said."""
    folder, said_by = home_folder(home, file, file_home)
    announce(f"home: {folder} ({said_by})")
    return embed_servers(folder, writes=writes)


def use_home_store(home: Path | None, *, writes: bool = False) -> TrackingSettings:
    """Point MLflow at the environment's server, else at the home folder, for commands without an evaluation file."""
    folder = start(home, writes=writes)
    from congruence.tasks.mlflow.connection import point_mlflow_at
    from congruence.tasks.settings.sections import TrackingSettings

    point_mlflow_at(tracking_uri(folder))
    return TrackingSettings()


def open_file(file: Path, home: Path | None, **overrides: Any) -> EvaluationSettings:
    """The settings of an evaluation file, its home folder made if need be, with embedded servers pointed at it.

    Only settings are read: a file that is wrong is refused before anything else is loaded.

    Raises:
        SettingsError: unreadable, not YAML, or with wrong keys or values; or a home folder that cannot be made.
    """
    from congruence.tasks.settings.evaluation import load_settings

    evaluation_file.set(file)
    settings = load_settings(file, {key: value for key, value in overrides.items() if value})
    return settings.model_copy(update={"home": start(home, file, settings.home)})


def print_json(content: Any) -> None:
    """Print one JSON document on standard output."""
    typer.echo(json.dumps(content, indent=2, default=str))


def announce(line: str, *, failed: bool = False) -> None:
    """Show a line on standard error, or log it where lines are JSON."""
    if is_json():
        use_json_lines()
        logging.getLogger(LOGGER).log(logging.ERROR if failed else logging.INFO, "%s", line)
    else:
        typer.secho(line, err=True, fg=typer.colors.RED if failed else None)


def reporting_errors(function: Callable[..., int | None]) -> Callable[..., None]:
    """A command of ``function``, with --debug besides; it ends with the status that the function returns, if any."""

    signature = inspect.signature(function, eval_str=True)
    takes_debug = "debug" in signature.parameters

    @wraps(function)
    def command(*, debug: bool = False, **options: Any) -> None:
        form = options.get("form", Format.TEXT)
        if form is Format.JSON:
            options["as_json"] = True
        annotated = options["file"] if form is Format.GITHUB else None
        token = evaluation_file.set(None)
        try:
            with errors_in_words(debug, options.get("as_json", False), annotated=annotated):
                status = function(**options, **({"debug": debug} if takes_debug else {}))
        finally:
            evaluation_file.reset(token)
        if status:
            raise typer.Exit(status)

    asked = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug)
    parameters = [each for name, each in signature.parameters.items() if name != "debug"]
    command.__signature__ = signature.replace(parameters=[*parameters, asked])  # type: ignore[attr-defined]
    command.__annotations__ = {**function.__annotations__, "debug": Debug}
    return command


@contextmanager
def errors_in_words(debug: bool, as_json: bool = False, *, annotated: Path | None = None) -> Iterator[None]:
    """Prints our own errors as one readable message; others keep their traceback, which a report of a defect needs.

    ``annotated`` is the evaluation file at which GitHub shows the error.
    """
    try:
        yield
    except BaseException as raised:
        error = None if debug else explained(raised)
        if error is None:
            raise
        said = with_file(str(error))
        announce(f"Error: {said}", failed=True)
        if as_json:
            print_json({"error": said, "exit_status": REFUSED})
        if annotated is not None:
            from congruence.flows.operations.gate import annotation

            typer.echo(annotation("error", "nothing was judged", said, annotated))
        sys.exit(REFUSED)


def explained(error: BaseException) -> CongruenceError | None:
    """``error`` where it is one of ours, else ours in its place; None for what nobody foresaw."""
    if isinstance(error, CongruenceError):
        return error
    if not isinstance(error, Exception):
        return None
    if (message := trouble(error)) is not None:
        return SurroundingsError(message)
    causes = [cause for cause in chain(error) if _of_prefect(cause)]
    if any(getattr(getattr(cause, "response", None), "status_code", None) in (401, 403) for cause in causes):
        return ClusterError(
            f"the Prefect server at {_address()} rejected the credentials; set PREFECT_API_AUTH_STRING (user:password) "
            "or PREFECT_API_KEY to one that it knows"
        )
    if causes:
        text = str(error).strip()
        said = f"{type(error).__name__}: {text.splitlines()[0][:150]}" if text else type(error).__name__
        return ClusterError(
            f"the Prefect server at {_address()} was lost, or cannot do its work ({said}); see its log "
            "and its disk, start it again where that is yours to do, or unset PREFECT_API_URL to run without it; "
            "finished work is saved; run the same command to resume"
        )
    return None


@contextmanager
def explaining() -> Iterator[None]:
    """Raises ours in place of the errors inside that can be explained."""
    try:
        yield
    except Exception as error:
        ours = explained(error)
        if ours is None or ours is error:
            raise
        raise ours from error


def _of_prefect(error: BaseException) -> bool:
    """Whether a request to the Prefect server failed: others that speak HTTP fail with the same types."""
    if type(error).__module__.partition(".")[0] not in ("httpx", "httpcore", "prefect"):
        return isinstance(error, RuntimeError) and str(error).startswith("Failed to reach API at")
    try:
        url = str(error.request.url)  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):
        return False
    return bool(_address()) and url.startswith(_address())


def _address() -> str:
    from prefect.settings import PREFECT_API_URL

    return PREFECT_API_URL.value() or ""


END_SECONDS = 3.5
"""How long ``finally`` and ``except`` may take: marking runs as failed in an MLflow that hangs would last minutes."""

_take: list[Callable[[], None]] = []


class Stopped(KeyboardInterrupt):
    """A signal that asks the command to end; raised in the main thread, once."""


@contextmanager
def ended_by_signals(said: str) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP end the body by ``Stopped``, and the process with status 128 + the signal's number.

    The body has ``END_SECONDS`` for its end, or until a second signal; then what this process started is killed. What
    is ``said`` follows "Stopped by SIGTERM.".
    """
    # What nohup, or a shell that starts a job in the background, has switched off stays off.
    stops = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    first: list[int] = []

    def stop(number: int, frame: FrameType | None = None) -> None:  # noqa: ARG001
        if first:
            import psutil  # a command that nobody stops does without

            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            os._exit(128 + first[0])
        first.append(number)
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, END_SECONDS)
        _say(number, said)
        raise Stopped(f"Stopped by {signal.Signals(number).name}.")

    def take() -> None:
        for number in stops:
            signal.signal(number, stop)

    take()
    _take[:] = [take]
    try:
        yield
    finally:
        if first:
            stop(first[0])
        for number in stops:
            signal.signal(number, signal.SIG_DFL)


def take_signals_back() -> None:
    """Put a command's handlers in place again of those that Prefect's flows bring; without a command, nothing."""
    for take in _take:
        take()


def _say(number: int, said: str) -> None:
    """The last line on standard error: what the end of Dask, Prefect and MLflow has libraries say goes nowhere."""
    line = sentence = f"Stopped by {signal.Signals(number).name}. {said}".rstrip()
    if os.environ.get("CONGRUENCE_LOG") == "json":
        now = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
        line = json.dumps({"time": now, "level": "error", "logger": "congruence", "message": sentence})
    elif os.isatty(2):
        line = f"\x1b[?25h\r\n{sentence}"  # a progress bar hides the cursor, and ends in no new line
    with suppress(OSError):  # nobody reads it any more
        os.write(2, f"{line}\n".encode())
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
