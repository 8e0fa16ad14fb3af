"""The first hour of a new user, step by step: every command that README.md names, on data that are made here.

    python tests/benchmarks/first_hour.py counts [--rows 20000] [--folder F] [--only evaluate] [--profile] [--quick]
    python tests/benchmarks/first_hour.py images [--rows 2000] [--folder F]

`counts`: claims of insurance policies, five versions of scikit-learn and of callables. `images`: pictures of cells
that are to be counted, sixty of them damaged; a Poisson regression on simple features and an ensemble; by an encoder of
one's own and by open_clip from a checkpoint that is made here, nothing downloaded. HOME, the working folder and the
home folder of congruence are fresh; nothing is set in the environment but PYTHONPATH where it was. The kept record is
first_hour.md.

With --profile the processes of `evaluate` are sampled: where its CPU seconds go, process by process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from cpu_of_processes import account, sampled

COMMAND = str(Path(sys.executable).parent / "congruence")

COUNT_MODELS = """
import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import PoissonRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from congruence.kernels import NegativeBinomial, Poisson
from congruence.tasks.contract import log_predictive_model

train = pd.read_parquet("data/train.parquet")
numbers = ["driver_age", "vehicle_age", "power", "log_density", "bonus"]
inputs = [*numbers, "region"]
x, y = train[inputs], train["claims"].to_numpy()

linear = make_pipeline(
    make_column_transformer((StandardScaler(), numbers), (OneHotEncoder(), ["region"])), PoissonRegressor(alpha=1e-4)
).fit(x, y)
boosted = HistGradientBoostingRegressor(loss="poisson", max_iter=120, random_state=0).fit(x[numbers], y)
mean = boosted.predict(x[numbers])
dispersion = float(np.mean((y - mean) ** 2 - mean) / np.mean(mean**2))


def overdispersed(frame):
    return NegativeBinomial(boosted.predict(frame[numbers]), np.full(len(frame), dispersion))


def far_too_wide(frame):
    return NegativeBinomial(boosted.predict(frame[numbers]), np.full(len(frame), 4 * dispersion))


def constant(frame):
    return Poisson(np.full(len(frame), y.mean()))


example = x.head()
log_predictive_model(constant, name="constant", input_example=example, registered_model_name="claims")
log_predictive_model(linear, family="poisson", name="linear", input_example=example, registered_model_name="claims")
log_predictive_model(
    lambda frame: Poisson(boosted.predict(frame[numbers])), name="boosted", input_example=example,
    registered_model_name="claims",
)
log_predictive_model(overdispersed, name="overdispersed", input_example=example, registered_model_name="claims")
log_predictive_model(far_too_wide, name="too-wide", input_example=example, registered_model_name="claims")
"""

IMAGE_MODELS = '''
import io

import numpy as np
import pandas as pd
from PIL import Image
from sklearn.linear_model import PoissonRegressor

from congruence.kernels import Poisson, Samples
from congruence.tasks.contract import log_predictive_model


def features(table):
    """Share of bright pixels, mean and spread of each photo: the model is given the bytes of the images."""
    pixels = [np.asarray(Image.open(io.BytesIO(photo)).convert("L"), float) / 255 for photo in table["photo"]]
    return np.array([[(p > level).mean() for level in (0.2, 0.4, 0.6)] + [p.mean(), p.std()] for p in pixels])


train = pd.read_csv("data/train.csv")
photos = pd.DataFrame({"photo": [open(f"data/{path}", "rb").read() for path in train["photo"]]})
x, y = features(photos), train["cells"].to_numpy()
model = PoissonRegressor(alpha=1e-6, max_iter=2000).fit(x, y)
draw = np.random.default_rng(0)
members = [
    PoissonRegressor(alpha=1e-6, max_iter=2000).fit(x[rows], y[rows])
    for rows in (draw.integers(0, len(y), len(y)) for _ in range(8))
]


def ensemble(table):
    found = features(table)
    return Samples(np.stack([member.predict(found) for member in members], axis=1))


example = photos.head(2)
log_predictive_model(
    lambda table: Poisson(model.predict(features(table))), name="poisson", input_example=example,
    registered_model_name="cells",
)
log_predictive_model(ensemble, name="ensemble", input_example=example, registered_model_name="cells")
'''

OWN_ENCODER = '''
"""An encoder of one's own: pictures pooled to 8 x 8, turned by random orthogonal directions."""
import io

import numpy as np
from PIL import Image

from congruence.tasks.encoders.base import Encoder
from congruence.tasks.encoders.errors import InvalidRow


class Pooled(Encoder):
    id, preprocessing_digest, input_kind = "pooled-8x8-1", "grey-8x8-1", "image"

    def __init__(self, dimension=32):
        self.dimension = dimension
        self.directions = np.linalg.qr(np.random.default_rng(0).normal(size=(64, dimension)))[0]

    def preprocess(self, raw):
        try:
            return np.asarray(Image.open(io.BytesIO(raw)).convert("L").resize((8, 8), Image.BOX), float).ravel() / 255
        except OSError as error:
            raise InvalidRow(str(error)) from error

    def encode(self, batch):
        return (np.stack(batch) @ self.directions).astype(np.float32)
'''

CHECKPOINT = '''
"""A checkpoint of open_clip made without a network: an architecture of open_clip with weights that are drawn here."""
import torch
from safetensors.torch import save_file

from congruence.tasks.encoders.open_clip_import import open_clip

torch.manual_seed(0)
save_file(open_clip.create_model("ViT-S-32-alt", pretrained=None).state_dict(), "weights.safetensors")
'''


@dataclass
class Step:
    """One command and how it ended."""

    name: str
    said: str
    status: int
    seconds: float
    cpu: float


@dataclass
class Trial:
    """A folder, a HOME and an environment as a new user has them, and the steps that were taken there."""

    folder: Path
    steps: list[Step] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        kept = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "TMPDIR", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        found = {name: os.environ[name] for name in kept if name in os.environ} | {"HOME": str(self.folder / "HOME")}
        paths = [*filter(None, [found.get("PYTHONPATH")]), *self.paths]
        return found | ({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})

    def do(self, name: str, *command: str, environment: dict[str, str] | None = None) -> Step:
        """Run a command to its end, show what it said, and keep how long it took."""
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        with (self.folder / "said.txt").open("w") as said:  # to be followed while a long step runs
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=environment or self.environment,
                stdout=said,
                stderr=subprocess.STDOUT,
                check=False,
            )
        after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - started
        cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        return self.keep(Step(name, (self.folder / "said.txt").read_text(), done.returncode, wall, cpu))

    def keep(self, step: Step) -> Step:
        self.steps.append(step)
        print(f"\n$ {step.name}  (exit {step.status}, {step.seconds:.1f} s, {step.cpu:.1f} CPU s)", flush=True)
        print(textwrap.indent(step.said.rstrip(), "    "), flush=True)
        return step

    def congruence(self, *arguments: str, environment: dict[str, str] | None = None) -> Step:
        return self.do("congruence " + " ".join(arguments), COMMAND, *arguments, environment=environment)

    def change(self, changes: dict[str, Any], name: str = "evaluation.yaml", into: str | None = None) -> None:
        """What a user does to the evaluation file in an editor."""
        content = yaml.safe_load((self.folder / name).read_text())
        (self.folder / (into or name)).write_text(yaml.safe_dump(content | changes, sort_keys=False))

    def table(self) -> str:
        lines = ["| step | exit | seconds | CPU seconds |", "|---|---:|---:|---:|"]
        lines += [f"| `{step.name}` | {step.status} | {step.seconds:.1f} | {step.cpu:.1f} |" for step in self.steps]
        whole = sum(step.seconds for step in self.steps), sum(step.cpu for step in self.steps)
        return "\n".join([*lines, f"| all | | {whole[0]:.0f} | {whole[1]:.0f} |"])


def write_claims(folder: Path, rows: int) -> None:
    """Policies whose claims are negative binomial around a rate that bends: train and test, made once."""
    draw = np.random.default_rng(20_260)
    every = rows + 40_000
    age, vehicle = draw.uniform(18, 85, every), draw.integers(0, 21, every)
    power, density = draw.integers(4, 16, every), draw.normal(6.0, 1.8, every)
    bonus = np.clip(50 + draw.exponential(15, every), 50, 200)
    region = draw.choice([f"R{number}" for number in range(8)], every)
    effect = dict(zip(sorted(set(region)), np.linspace(-0.3, 0.3, 8), strict=True))
    young = np.exp(-((age - 18) / 8)) + 0.4 * np.exp(-(((age - 75) / 9) ** 2))
    rate = np.exp(-1.6 + 0.9 * young + 0.012 * (bonus - 50) + 0.08 * (density - 6) - 0.02 * vehicle
                  + pd.Series(region).map(effect).to_numpy())  # fmt: skip
    shape = 1 / 0.7
    claims = draw.poisson(draw.gamma(shape, rate / shape))
    frame = pd.DataFrame(
        {"policy_id": [f"p{number}" for number in range(every)], "driver_age": age, "vehicle_age": vehicle,
         "power": power, "log_density": density, "bonus": bonus, "region": region, "claims": claims}
    )  # fmt: skip
    (folder / "data").mkdir(parents=True)
    frame[:40_000].to_parquet(folder / "data" / "train.parquet")
    frame[40_000:].to_parquet(folder / "data" / "test.parquet")


def write_cells(folder: Path, rows: int) -> None:
    """Pictures of 64 x 64 pixels with up to some twenty cells: PNG files and tables of their numbers."""
    from PIL import Image

    draw = np.random.default_rng(7)
    columns, lines = np.meshgrid(np.arange(64), np.arange(64))
    for part, number in (("train", 2_000), ("test", rows)):
        (folder / "data" / part).mkdir(parents=True)
        found = []
        for place in range(number):
            cells, focus = draw.poisson(draw.choice([3.0, 8.0, 15.0])), draw.choice(["sharp", "blurred"])
            picture = 0.1 + 0.1 * columns / 64 * draw.uniform()
            for _ in range(cells):
                x, y, size = draw.uniform(4, 60), draw.uniform(4, 60), draw.uniform(1.5, 3.0)
                size *= 1.6 if focus == "blurred" else 1.0
                picture += 0.6 * np.exp(-((columns - x) ** 2 + (lines - y) ** 2) / (2 * size**2))
            noisy = np.clip(picture + draw.normal(0, 0.05, picture.shape), 0, 1)
            path = f"{part}/{place:05}.png"
            Image.fromarray((255 * noisy).astype(np.uint8)).save(folder / "data" / path)
            found.append({"photo": path, "cells": cells, "focus": focus})
        pd.DataFrame(found).to_csv(folder / "data" / f"{part}.csv", index=False)
    for place in draw.choice(rows, min(60, rows // 10), replace=False):
        path = folder / "data" / "test" / f"{place:05}.png"
        os.truncate(path, path.stat().st_size // 2)


def counts(trial: Trial, options: argparse.Namespace) -> None:
    write_claims(trial.folder, options.rows)
    (trial.folder / "models.py").write_text(COUNT_MODELS)
    trial.do("python models.py", sys.executable, "models.py")
    trial.congruence("init", "data/test.parquet", "-m", "claims", "--target", "claims")
    evaluated = trial.environment
    if options.profile:
        evaluated = sampled(trial.folder / "profile", evaluated)
    if options.only == "evaluate":
        trial.congruence("evaluate", "evaluation.yaml", environment=evaluated)
    else:
        trial.congruence("validate", "evaluation.yaml")
        trial.congruence("evaluate", "evaluation.yaml", "--quick")
        trial.congruence("evaluate", "evaluation.yaml", environment=evaluated)
        trial.congruence("evaluate", "evaluation.yaml")
        after_the_first(trial, "claims")
        trial.change({"models": ["models:/claims/5"]}, into="too-wide.yaml")
        trial.congruence("recalibrate", "too-wide.yaml", "--version", "5")
        trial.congruence("list")
        pages(trial)
        trial.congruence("clean", "evaluation.yaml")
    if options.profile:
        print("\n" + account(trial.folder / "profile"))


def after_the_first(trial: Trial, name: str) -> None:
    trial.congruence("list")
    trial.congruence("open", f"{name}/1", "--print")
    trial.congruence("compare", "evaluation.yaml")
    gate = {"baseline": 1, "not_worse_on": ["cce_mean", "nll_mean"], "margin": {"cce_mean": "5 %", "nll_mean": 0.02}}
    trial.change({"gate": gate}, into="gated.yaml")
    trial.congruence("gate", "gated.yaml")
    trial.congruence("watch", "gated.yaml", "--once")


def images(trial: Trial, options: argparse.Namespace) -> None:
    write_cells(trial.folder, options.rows)
    for name, code in {"models": IMAGE_MODELS, "own_encoder": OWN_ENCODER, "checkpoint": CHECKPOINT}.items():
        (trial.folder / f"{name}.py").write_text(code)
    trial.do("python models.py", sys.executable, "models.py")
    trial.congruence("init", "data/test.csv", "-m", "cells")
    trial.change({"encoder": {"kind": "custom", "path": "own_encoder:Pooled", "options": {"dimension": 32}}})
    trial.congruence("validate", "evaluation.yaml")
    trial.paths.append(".")  # as the refusal says
    trial.congruence("validate", "evaluation.yaml")
    trial.congruence("evaluate", "evaluation.yaml")
    trial.change({"max_invalid": 0.05})
    trial.congruence("evaluate", "evaluation.yaml")
    after_the_first(trial, "cells")
    trial.do("python checkpoint.py", sys.executable, "checkpoint.py")
    clip = {"kind": "open_clip", "model": "ViT-S-32-alt", "pretrained": "weights.safetensors"}
    trial.change({"encoder": clip}, into="open-clip.yaml")
    trial.congruence("validate", "open-clip.yaml")
    trial.congruence("evaluate", "open-clip.yaml")
    pages(trial)


def pages(trial: Trial) -> None:
    """`congruence ui`: the seconds until it answers, and the pages that it names."""
    started = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    shown = subprocess.Popen(
        [COMMAND, "ui", "--port", "5055"], cwd=trial.folder, env=trial.environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        answered = _wait_for("http://127.0.0.1:5055/health", 180.0)
        seconds = time.monotonic() - started
    finally:
        shown.terminate()
    said = shown.communicate(timeout=60)[0]
    links = re.findall(r"http://\S+", said)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    told = f"{said}health: {answered}; {len(links)} links; ended with {shown.returncode}"
    trial.keep(Step("congruence ui", told, 0 if answered == 200 else 1, seconds, cpu))


def _wait_for(url: str, seconds: float) -> int:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return int(answer.status)
        except OSError:
            time.sleep(0.2)
    return 0


def main() -> None:
    """One trial; the table of its steps comes last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds: dict[str, tuple[Callable[[Trial, argparse.Namespace], None], int]] = {
        "counts": (counts, 20_000), "images": (images, 2_000),
    }  # fmt: skip
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--folder", type=Path, help="a new one; removed and made again where it is there")
    parser.add_argument("--only", choices=["evaluate"], help="models, init and one evaluation")
    parser.add_argument("--profile", action="store_true", help="where the CPU seconds of `evaluate` go")
    options = parser.parse_args()
    run, rows = kinds[options.kind]
    options.rows = options.rows or rows
    folder = options.folder or Path(tempfile.mkdtemp(prefix="first-hour-"))
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "HOME").mkdir(parents=True)
    trial = Trial(folder.resolve())
    run(trial, options)
    load = json.dumps(os.getloadavg())
    print(f"\n{options.kind}, {options.rows:,} rows; Python {platform.python_version()}; load at the end {load}\n")
    print(trial.table())


if __name__ == "__main__":
    main()
