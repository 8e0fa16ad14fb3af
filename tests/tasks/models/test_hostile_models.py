"""A score of hostile models, each asked beside a good one: it fails by itself, the good one stays as it is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest
from loopback import wait_until

from congruence.tasks.contract import ContractError, PredictionSettings
from congruence.tasks.contract.model import PredictiveModel
from congruence.tasks.models.processes import ModelProcess
from congruence.tasks.settings.parts import PredictSettings
from congruence.tasks.settings.sections import ModelVersion

ROWS = pd.DataFrame({"a": np.linspace(0.0, 1.0, 64), "b": np.random.default_rng(0).normal(size=64)})
SCRIPT = """
import ctypes, gc, os, re, signal, sys, threading, time
import mlflow
import numpy as np
import pandas as pd
AT_LOADING
class Model(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        BODY
        return pd.DataFrame({'loc': model_input['a'] + np.mean(model_input['b']), 'scale': 1.0})
mlflow.models.set_model(Model())
"""


@dataclass(frozen=True)
class Hostile:
    """What a model does, when it is loaded or asked, and the error with which it fails; "" where it answers."""

    body: str = ""
    at_loading: str = ""
    error: str = ""


MODELS = {
    "raises": Hostile("raise ValueError('no licence')", error="failed on rows 0 to 63: ValueError: no licence"),
    "raises when loaded": Hostile(at_loading="raise OSError('gone')", error="loading failed: .*Error: gone"),
    "is interrupted": Hostile("raise KeyboardInterrupt", error="KeyboardInterrupt"),
    "hangs": Hostile("time.sleep(600)", error=r"took longer than 1 s \(predict.timeout\)"),
    "hangs when loaded": Hostile(at_loading="time.sleep(600)", error="loading in a separate process took longer"),
    "holds the interpreter": Hostile("re.match(r'(a+)+$', 'a' * 60 + 'b')", error="took longer than 1 s"),
    "waits for its input": Hostile("sys.stdin.read(1); time.sleep(600)", error="took longer than 1 s"),
    "exits": Hostile("sys.exit('out of licences')", error="SystemExit: out of licences"),
    "ends its process": Hostile(
        "os.write(2, b'weights of https://ada:hunter2@host are damaged'); os._exit(7)",
        error=r"ended it with status 7; its .*: .*weights of https://\*\*\*@host are damaged",
    ),
    "exits when loaded": Hostile(at_loading="sys.exit('not here')", error="SystemExit: not here"),
    "ends it when loaded": Hostile(at_loading="os._exit(0)", error="loading .* ended it with status 0"),
    "kills its process": Hostile("os.kill(os.getpid(), signal.SIGKILL)", error="ended it with status -9"),
    "kills its group": Hostile("os.killpg(0, signal.SIGTERM)", error="ended it with status -15"),
    "kills what started it": Hostile("os.kill(os.getppid(), signal.SIGKILL)"),
    "crashes": Hostile("ctypes.string_at(0)", error="ended it with status -11"),
    "overflows its stack": Hostile(
        "sys.setrecursionlimit(10**9); f = lambda: f(); f()",
        error="ended it with status -11|RecursionError|took longer",
    ),
    "closes everything": Hostile("os.closerange(0, 256)", error="ended it with status|took longer than 1 s"),
    "prints": Hostile("print('::stop-commands::x\\n' * 200_000); os.write(1, b'gate passed\\n' * 99)"),
    "patches what all use": Hostile("np.mean = lambda *_, **__: 42.0; pd.DataFrame.__len__ = lambda self: 3"),
    "forgets its modules": Hostile("sys.modules.clear()", error="ContractError|Error|ended it|took longer"),
    "changes its surroundings": Hostile("os.environ.clear(); os.chdir('/'); np.seterr(all='raise'); np.random.seed(0)"),
    "writes into its input": Hostile("model_input['a'] = 5.0; model_input.drop(columns='b', inplace=True); return 3",
                                     error="predict returned int"),
    "leaves children": Hostile("os.fork() or time.sleep(600)"),
    "leaves threads": Hostile("threading.Thread(target=time.sleep, args=(600,)).start()"),
    "says that it is done": Hostile("print('{\"ok\": true}', flush=True); time.sleep(600)", error="took longer"),
    "answers with code": Hostile("return type('Evil', (), {'__reduce__': lambda self: (os._exit, (3,))})()",
                                 error="predict returned Evil"),
    "drops rows": Hostile("return pd.DataFrame({'loc': [1.0], 'scale': [1.0]})", error=r"shape \(1,\) for 64"),
}  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was saved by MLflow, whose code each test replaces."""
    place = tmp_path_factory.mktemp("saved")
    (place / "code.py").write_text(SCRIPT.replace("AT_LOADING", "").replace("BODY", "pass"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mlflow.pyfunc.save_model(place / "model", python_model=str(place / "code.py"), pip_requirements=["numpy"])
    return place / "model"


def copied(saved: Path, folder: Path, hostile: Hostile) -> None:
    shutil.copytree(saved, folder)
    (code,) = folder.rglob("code.py")
    code.write_text(SCRIPT.replace("AT_LOADING", hostile.at_loading).replace("BODY", hostile.body or "pass"))


def start(saved: Path, folder: Path, hostile: Hostile, timeout: float) -> PredictiveModel:
    copied(saved, folder, hostile)
    settings = PredictSettings(timeout=timeout)
    process = ModelProcess(folder, folder.name, settings, folder / "environments")
    return PredictiveModel(ModelVersion(folder.name, "1", "x"), PredictionSettings(family="normal"), process)


@pytest.fixture(scope="module")
def good(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> PredictiveModel:
    return start(saved, tmp_path_factory.mktemp("good") / "good", Hostile(), 60.0)


@pytest.mark.parametrize("name", MODELS)
def test_a_hostile_model_harms_nobody_but_itself(
    name: str, good: PredictiveModel, saved: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hostile = MODELS[name]
    before = good.predict(ROWS)
    given, here = ROWS.copy(), os.getcwd()
    found = None
    try:
        found = start(saved, tmp_path / "hostile", hostile, 60.0 if "longer" not in hostile.error else 1.0)
        answer = found.predict(given)
        assert not hostile.error, f"it answered {answer.mean()[:3]}"
    except ContractError as error:
        text = str(error) if found is not None else f"loading failed: {error}"
        assert hostile.error, text
        assert re.search(hostile.error, text, re.DOTALL), text
    after = good.predict(ROWS)
    np.testing.assert_array_equal(after.mean(), before.mean())
    np.testing.assert_array_equal(after.std(), before.std())
    np.testing.assert_array_equal(before.mean(), ROWS["a"] + np.mean(ROWS["b"]))
    pd.testing.assert_frame_equal(given, ROWS)
    assert os.getcwd() == here
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", ""), "what a model prints is no output of ours"


def test_a_version_whose_process_died_is_started_anew(saved: Path, tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    body = f"if not os.path.exists({mark!r}): open({mark!r}, 'w').close(); os._exit(9)"
    found = start(saved, tmp_path / "dies-once", Hostile(body), 60.0)
    with pytest.raises(ContractError, match="ended it with status 9"):
        found.predict(ROWS)
    np.testing.assert_array_equal(found.predict(ROWS).std(), 1.0)


def test_nothing_of_a_model_outlives_whoever_asked_it(saved: Path, tmp_path: Path) -> None:
    """Also of one that holds the interpreter, whose own threads cannot end it: the nursery does."""
    held = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); re.match(r'(a+)+$', 'a' * 60 + 'b')"
    copied(saved, tmp_path / "model", Hostile(held))
    script = (
        "import sys, pathlib, numpy as np, pandas as pd\n"
        "from congruence.tasks.models.processes import ModelProcess\n"
        "from congruence.tasks.settings.parts import PredictSettings\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "ModelProcess(folder, 'x', PredictSettings(), folder).answer_of(pd.DataFrame({'a': [1.0], 'b': [1.0]}))\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "model")]) as asking:
        wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), 60.0)
        pid = int((tmp_path / "pid").read_text())
        asking.kill()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), 20.0, "the end of the model's process")
