"""The containers of infra/, built and run; see tests/benchmarks/containers.md.

    make exercise-containers

Root, Docker or podman, and as far as registries of images cannot be reached Debian's debootstrap. Where one of them is
missing, the exercise says so and ends with "not run". What it makes is gone after it, but for images
and the folder of --keep.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

import contents
import evaluations
import kills
import pods
import safety
from client import AnswerError, Client
from deployment import Deployment
from engine import OWN, Engine, NotHereError, find_engine, scratch
from images import Bases, bases, build, export

IMAGE = "congruence:cpu"
NEW, FORMER = f"{OWN}/present", f"{OWN}/former"
OF_IMAGES = ("image", "cards", "bill", "former")
OF_SERVICES = ("start", "upgrade", "evaluations", "kills", "restart", "safety")
STEPS = (*OF_IMAGES, *OF_SERVICES, "pods")
LARGE = "cards-image"
"""A step that downloads some 4 GB, and is gone through where it is asked for."""


class Record:
    """What was done, in how many seconds, and what came of it."""

    def __init__(self) -> None:
        self.failed = 0

    @contextmanager
    def step(self, name: str, *, must: bool = False) -> Iterator[Callable[[Any], None]]:
        """Time a step and print its line; what it gives ``say`` stands beside. The end, where one that must fails."""
        said: list[str] = []
        began, failed = time.monotonic(), self.failed
        try:
            yield lambda what: said.append(str(what))
        except (AnswerError, AssertionError, RuntimeError, TimeoutError, subprocess.TimeoutExpired) as error:
            self.failed += 1
            said.append(f"**failed**: {error}")
        print(f"| {name} | {time.monotonic() - began:.0f} | {'; '.join(said) or 'well'} |", flush=True)
        if must and self.failed > failed:
            sys.exit(1)


def prepare(tree: Path) -> None:
    """Secrets, and an evaluation file to come, beside compose.yaml."""
    subprocess.run([sys.executable, tree / "infra" / "make_secrets.py"], check=True, capture_output=True)
    (tree / "infra" / "evaluations").mkdir()
    (tree / "infra" / "evaluations").chmod(0o777)
    shutil.copy(tree / "infra" / "examples" / "compose.yaml", tree / "infra" / "evaluation.yaml")


def evaluation_file(deployment: Deployment, client: Client) -> None:
    """infra/evaluation.yaml on a split in the bucket, watching its one model."""
    path = Path(client.file(evaluations.SPLIT))
    made = deployment.infra / "evaluations" / path.name
    content = yaml.safe_load(made.read_text())
    (deployment.infra / "evaluation.yaml").write_text(yaml.safe_dump(content))


def main() -> int:
    """Run the exercise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=STEPS, choices=[*STEPS, LARGE])
    parser.add_argument("--kills", type=int, default=4, help="how many of 14 evaluations, each with two kills")
    parser.add_argument("--former", default="HEAD~10", help="the commit from whose image the services are upgraded")
    parser.add_argument("--engine", choices=["docker", "podman"])
    parser.add_argument("--keep", type=Path, help="work in this folder and leave it, and what runs, as they are")
    arguments = parser.parse_args()
    if arguments.keep:
        arguments.keep.mkdir(parents=True, exist_ok=True)
    folder = arguments.keep or scratch()
    record, began = Record(), time.monotonic()
    deployment = None
    try:
        engine = find_engine(folder, arguments.engine)
        print(engine.versions(), f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}", "", sep="\n")
        print("| step | seconds | outcome |", "|---|---|---|", sep="\n")
        with record.step("base images", must=True) as say:
            found = bases(engine)
            origin = "of Debian packages" if found.from_debian else "pulled"
            say(f"{origin}: {found.python} {engine.size(found.python) / 1e6:.0f} MB")
        tree = folder / "tree"
        if not tree.exists():
            prepare(export(tree))
        images(engine, folder, found, record, arguments)
        if set(OF_SERVICES) & set(arguments.only):
            deployment = Deployment(engine, tree, found)
            services(deployment, record, arguments)
            if not arguments.keep:
                with record.step("down, with its volumes") as say:
                    deployment.down(volumes=True)
                    assert not deployment.left(), deployment.left()
                    say("nothing is left")
        if "pods" in arguments.only:
            with record.step("the pods of infra/kubernetes, by podman kube play") as say:
                say(pods.exercise(engine, tree, found, NEW))
    except NotHereError as error:
        print(f"The containers were not run: {error}.\nnot run")
        return 0
    finally:
        if not arguments.keep:
            if deployment is not None:
                deployment.down(volumes=True)
            shutil.rmtree(folder)
    print(f"\n{'not ' if record.failed else ''}well: {record.failed} failed, {time.monotonic() - began:.0f} s")
    return 1 if record.failed else 0


def images(engine: Engine, folder: Path, found: Bases, record: Record, arguments: argparse.Namespace) -> None:
    """The project's image of the working tree, what it consists of, and one of the former commit."""
    tree = folder / "tree"
    if "image" in arguments.only:
        with record.step("the image for processors", must=True) as say:
            build(engine, tree, tree / "infra" / "Containerfile", NEW, PYTHON_IMAGE=found.python)
            say(f"{engine.size(NEW) / 1e9:.2f} GB")
        with record.step("the same after a changed line, with its packages cached", must=True):
            (tree / "flows" / "a_changed_line.py").write_text("")
            build(engine, tree, tree / "infra" / "Containerfile", NEW, PYTHON_IMAGE=found.python)
    if "cards" in arguments.only:
        with record.step("the packages of the image for cards, resolved") as say:
            say(f"{len(contents.for_cards(folder))} packages")
    if LARGE in arguments.only:
        with record.step("the image for cards, built and its packages imported without one") as say:
            say(contents.image_for_cards(engine, tree, found.python))
    if "bill" in arguments.only:
        with record.step("what the image consists of, in CycloneDX") as say:
            say(contents.bill(engine, NEW))
    if "former" in arguments.only:
        with record.step(f"the image of the former commit {arguments.former}", must=True):
            former = export(folder / "former", arguments.former)
            build(engine, former, former / "infra" / "Containerfile", FORMER, PYTHON_IMAGE=found.python)


def services(deployment: Deployment, record: Record, arguments: argparse.Namespace) -> None:
    """The steps on running services."""
    engine = deployment.engine
    if {"start", "upgrade"} & set(arguments.only):
        is_former = "upgrade" in arguments.only
        engine("tag", FORMER if is_former else NEW, IMAGE)
        with record.step(
            f"up{' with the image of the former commit' * is_former}, until every service is well", must=True
        ):
            deployment.up()
        with record.step("a first version in it, by hand", must=True) as say:
            client = deployment.client()
            evaluation_file(deployment, client)
            expected = evaluations.by_hand(deployment, client)
            client.close()
            say(f"CCE {expected['cce_mean']:.6f}")
    if "upgrade" in arguments.only:
        with record.step("upgrade: down, the present image, up, with the volumes", must=True) as say:
            deployment.down(volumes=False)
            engine("tag", NEW, IMAGE)
            deployment.up()
            client = deployment.client()
            assert client.require_once(evaluations.SPLIT, f"{evaluations.MODEL}/1") == expected
            client.close()
            say("the first version's numbers are there")
    client = deployment.client()
    expected = client.require_once(evaluations.SPLIT, f"{evaluations.MODEL}/1")
    if "evaluations" in arguments.only:
        ways(deployment, client, record, expected)
    if "kills" in arguments.only:
        stage_by_stage(deployment, client, record, arguments.kills)
    if "restart" in arguments.only:
        with record.step("restart: down, up, with the volumes") as say:
            client.close()
            deployment.down(volumes=False)
            deployment.up()
            client = deployment.client()
            assert client.require_once(evaluations.SPLIT, f"{evaluations.MODEL}/1") == expected
            given = evaluations.by_webhook(deployment, client)
            assert given == expected, (given, expected)
            say("the first version's numbers are there, and a new version's by the webhook are equal")
    if "safety" in arguments.only:
        for check in (safety.confined, safety.silent):
            with record.step(str(check.__doc__).rstrip(".")) as say:
                say(check(deployment))
    client.close()


def ways(deployment: Deployment, client: Client, record: Record, expected: dict[str, float]) -> None:
    """Versions with equal predictions, evaluated in every way."""
    with record.step("doctor") as say:
        say(f"{len(evaluations.doctor(deployment).splitlines())} lines, all well")
    with record.step("a tag in several scripts"):
        word = "größer ≥ 好"
        assert client.tag(f"{evaluations.MODEL}/1", "note", word) == word
    for way in (
        evaluations.by_hand,
        evaluations.by_deployment,
        evaluations.on_schedule,
        evaluations.set_webhook,
        evaluations.by_webhook,
    ):
        with record.step(str(way.__doc__).rstrip(".")) as say:
            given = way(deployment, client)
            assert given in (None, expected), (given, expected)
            say("equal numbers" if given else "well")


def stage_by_stage(deployment: Deployment, client: Client, record: Record, most: int) -> None:
    """Evaluations with kills in them, after one without."""
    expected: dict[str, float] = {}
    for number, killed in enumerate([[], *kills.plan()][: most + 1]):
        with record.step(f"evaluation {number} with kills", must=not killed) as say:
            given, said = kills.evaluate(deployment, client, f"killed-{number:02d}", killed, expected)
            expected = expected or given
            say(said)


if __name__ == "__main__":
    sys.exit(main())
