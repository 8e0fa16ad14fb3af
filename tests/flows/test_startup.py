"""What a command loads before its first line, and what it does with its home folder and environment first."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import mlflow
import pytest
import yaml
from commands import HEAVY, SERVERS, run_all
from mlflow import MlflowClient

from congruence.flows.cli import options
from congruence.tasks.mlflow.connection import TrackingError, open_experiment, point_mlflow_at
from congruence.tasks.settings.sections import TrackingSettings


def write_file(folder: Path, **changes: object) -> Path:
    split = {"uri": "rows.parquet", "input": ["a"], "input_kind": "features", "target": "y"}
    content = {"models": ["models:/none/1"], "splits": [split], "encoder": {"kind": "identity"}} | changes
    path = folder / "evaluation.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_commands_load_no_more_than_they_need_and_say_once_what_is_wrong(tmp_path: Path) -> None:
    """In one process, the lightest first: of what one has loaded those after it would be accused, too."""
    (tmp_path / "typo").mkdir()
    typo, file = write_file(tmp_path / "typo", encodr={"kind": "identity"}), write_file(tmp_path)
    home = {name: ("--home", str(tmp_path / f"home-{name}")) for name in ("typo", "data", "store", "version")}
    asked = [["--help"], ["--version"], ["init", "--help"], ["evaluate", "--help"]]
    asked += [["evaluate", str(typo), *home["typo"]], ["validate", str(file), *home["data"]]]
    asked += [["list", *home["store"]], ["open", "none/1", "--print", *home["store"]]]
    asked += [["compare", "--split", "rows", "none/1", *home["store"]], ["evaluate", str(file), *home["version"]]]
    said = run_all(asked)
    assert [status for status, _, _ in said[:6] + said[9:]] == [0, 0, 0, 0, 2, 2, 2], said
    assert not any("Traceback" in text for _, _, text in said), said
    helped, (_, of_typo, wrong), (_, of_data, absent), refused, (_, of_version, unknown) = (
        said[3],
        *said[4:6],
        *said[8:],
    )
    assert not helped[1] & {*HEAVY, "yaml", "requests"}
    assert wrong.count("did you mean 'encoder'") == 1
    assert not of_typo & {*SERVERS, "mlflow", "pandas", "scipy"}
    assert not (tmp_path / "home-typo").exists()
    assert absent.count("rows.parquet: no such file or folder") == 1
    assert not of_data & {*SERVERS, "mlflow", "scipy.stats"}
    assert not refused[1] & {*SERVERS, "sklearn", "scipy.stats"}
    assert unknown.count("models:/none/1: not in the registry") == 1
    assert not of_version & {*SERVERS}
    assert not (tmp_path / "home-version" / "mlflow.db").exists()


@pytest.mark.parametrize(
    ("option", "in_file", "variable", "expected"),
    [
        (True, True, True, ("option", "--home")),
        (False, True, True, ("file", "home: in")),
        (False, False, True, ("variable", "$CONGRUENCE_HOME")),
        (False, False, False, (".congruence", "the default")),
    ],
)
def test_the_home_folder_is_that_of_option_file_environment_default_and_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: bool,
    in_file: bool,
    variable: bool,
    expected: tuple[str, str],
) -> None:
    from congruence.flows.cli.options import open_file

    for name in ("PREFECT_HOME", "CONGRUENCE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    if variable:
        monkeypatch.setenv("CONGRUENCE_HOME", str(tmp_path / "variable"))
    file = write_file(tmp_path, **({"home": str(tmp_path / "file")} if in_file else {}))
    settings = open_file(file, tmp_path / "option" if option else None)
    assert settings.home_folder == tmp_path / expected[0]
    assert settings.home_folder.is_dir()
    said = capsys.readouterr().err
    assert str(tmp_path / expected[0]) in said
    assert expected[1] in said


def test_served_runs_keep_their_data_where_serve_was_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from congruence.flows import deployed as scheduled

    file = write_file(tmp_path, home=str(tmp_path / "file"))
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    assert scheduled._settings(file, None).home_folder == tmp_path / "file"
    monkeypatch.setenv("CONGRUENCE_SERVED_HOME", str(tmp_path / "option"))
    assert scheduled._settings(file, None).home_folder == tmp_path / "option"


PIPELINE = [
    "dask", "distributed", "fsspec", "mlflow", "open_clip", "prefect", "pyarrow", "rich", "timm", "torch", "typer",
    "yaml", "zarr",
]  # fmt: skip


def without(packages: list[str]) -> str:
    """Code after which none of these packages can be found."""
    return f"""
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, *place):
        return None if name.split(".")[0] in {packages} else self.finder.find_spec(name, *place)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""


LIGHT = """
import congruence
assert not {"numpy", "pandas", "scipy"} & set(sys.modules), "import congruence loads little"
from congruence.tasks import plots
import congruence.kernels as kernels
for room in (kernels, plots):
    for name in room.__all__: getattr(room, name)
assert "matplotlib.pyplot" not in sys.modules
import numpy as np
rng = np.random.default_rng(0)
x = rng.normal(size=(60, 2))
found = congruence.report(x, x[:, 0] + rng.normal(size=60), {"a": (x[:, 0], 1.0), "b": (x[:, 0], 0.3)})
assert "<html" in found.page and "<html" in found.evaluated["b"].page
try: found.log()
except congruence.InvalidInputError as error: assert "congruence[pipeline]" in str(error)
"""


def test_a_light_installation_is_enough_for_kernels_plots_and_notebooks() -> None:
    """``pip install congruence``: without Prefect, Dask, MLflow, Arrow, Zarr, and without torch."""
    done = subprocess.run([sys.executable, "-c", without(PIPELINE) + LIGHT], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_tables_need_neither_plots_nor_torch_and_an_encoder_of_pictures_names_what_it_lacks() -> None:
    table = """
import sys
import congruence.flows.cli.app, congruence.flows.evaluate
assert not {"matplotlib", "sklearn", "scipy.signal", "scipy.stats"} & set(sys.modules)
import congruence.flows.operations.demo, congruence.tasks.digits.models  # show and load versions: nothing trains them
assert "sklearn" not in sys.modules
from congruence.kernels.errors import InvalidInputError
from congruence.tasks.encoders.loading import load_encoder
from congruence.tasks.settings.sections import EncoderSettings
from congruence.tasks.scores.version import _installed
assert "numpy" in _installed()
load_encoder(EncoderSettings(kind="identity", standardise=False, dimension=2))
for kind in ("open_clip", "timm"):
    try: load_encoder(EncoderSettings(kind=kind, model="ViT-B-32"))
    except InvalidInputError as error: assert "pip install 'congruence[images]'" in str(error)
    else: raise AssertionError(kind)
"""
    absent = without(["open_clip", "timm", "torch", "torchvision"])
    subprocess.run([sys.executable, "-c", absent + table], check=True)


def test_without_the_pipelines_packages_the_command_says_what_is_missing() -> None:
    code = "import congruence.flows.cli.main as command\ncommand.find_spec = lambda name: None\ncommand.main()"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert said.returncode == 1
    assert "run: pip install 'congruence[pipeline]'" in said.stderr
    assert "Traceback" not in said.stderr


MAKES_FILES = """
import sys, tempfile
from pathlib import Path
from congruence.flows.cli.options import embed_servers
embed_servers(Path(sys.argv[1]))
print(tempfile.mkdtemp(), flush=True)
sys.stdin.read()
"""


def test_temporary_files_live_in_the_home_folder_and_those_of_the_dead_go(tmp_path: Path) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", MAKES_FILES, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    folders = [Path(process.stdout.readline().strip()) for process in started if process.stdout is not None]
    assert {folder.parents[1] for folder in folders} == {tmp_path / "temporary"}
    killed, ended = started
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait(timeout=30)
    assert folders[0].exists()
    third = subprocess.run(
        [sys.executable, "-c", MAKES_FILES, str(tmp_path)], input="", capture_output=True, timeout=60
    )
    assert third.returncode == 0
    assert [folder.exists() for folder in folders] == [False, True], "the other one lives"
    ended.communicate("", timeout=30)
    assert list((tmp_path / "temporary").glob("process-*")) == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "localhost,127.0.0.1,::1"),
        ({"no_proxy": "intern.example,127.0.0.1"}, "intern.example,127.0.0.1,localhost,::1"),
        ({"NO_PROXY": "*"}, "*"),
    ],
)
def test_loopback_is_exempt_from_proxies(given: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    options._exempt_loopback_from_proxies()
    assert {os.environ.get(name) for name in ("NO_PROXY", "no_proxy")} - {None} == {expected}


def test_a_copied_home_refuses_to_write_into_the_original(tmp_path: Path) -> None:
    original, copy = tmp_path / "a home", tmp_path / "copy"
    original.mkdir()
    settings = TrackingSettings(uri=f"sqlite:///{original}/mlflow.db")
    before = mlflow.get_tracking_uri()
    point_mlflow_at(str(settings.uri))
    mlflow.set_tracking_uri(before)
    client = MlflowClient(settings.uri)
    made = open_experiment(client, "congruence/circle/y", settings).experiment_id
    client.create_experiment("elsewhere", str(tmp_path / "elsewhere"))
    client.log_text(client.create_run(made).info.run_id, "first", "note.txt")
    shutil.copytree(original, copy)
    (tmp_path / "link").symlink_to(original)

    linked = TrackingSettings(uri=f"sqlite:///{tmp_path}/link/mlflow.db")
    assert open_experiment(MlflowClient(linked.uri), "congruence/circle/y", linked).experiment_id == made
    copied = TrackingSettings(uri=f"sqlite:///{copy}/mlflow.db")
    there = MlflowClient(copied.uri)
    with pytest.raises(TrackingError, match=rf"{original}/mlartifacts/congruence/circle/y: .*copied or moved.*--home"):
        open_experiment(there, "congruence/circle/y", copied)
    assert open_experiment(there, "elsewhere", copied), "where its owner wanted it"
    new = open_experiment(there, "congruence/circle/z", copied)
    assert new.artifact_location == str(copy / "mlartifacts" / "congruence" / "circle" / "z")
