"""Containers killed in the midst of evaluations, stage by stage: the numbers are those of one that nobody disturbed."""

import time
from collections.abc import Callable

from client import AnswerError, Client, eventually
from deployment import Deployment

STAGES = ("embed", "predict", "solve", "log")
PARTS = ("dask-worker", "scheduler", "mlflow", "postgres", "prefect", "s3", "worker")
LONGEST = 900.0
LOOK_SECONDS, SCHEDULE_SECONDS = 0.2, 60.0


def plan() -> list[list[tuple[str, str]]]:
    """Every part in every stage, two kills an evaluation; each part and each stage are in the first four."""
    return [
        [(STAGES[number % 2], PARTS[number % 7]), (STAGES[2 + number % 2], PARTS[(number + 4) % 7])]
        for number in range(len(STAGES) * len(PARTS) // 2)
    ]


def evaluate(
    deployment: Deployment, client: Client, name: str, kills: list[tuple[str, str]], expected: dict[str, float]
) -> tuple[dict[str, float], str]:
    """One evaluation by the work pool with kills; its numbers, and when which container died."""
    file = client.file(name, pause=0.1)
    label = client.register(name, seconds=0.3)
    runs: list[str] = []
    began, died = time.monotonic(), []
    for stage, part in kills:
        is_there = _until(client, name, label, file, runs, lambda stage=stage: stage in client.moments(name))
        deployment.kill(part)
        died.append(f"{part} in {stage}{'' if is_there else ' (over before)'} at {time.monotonic() - began:.0f} s")
    _until(client, name, label, file, runs, lambda: False)
    took = time.monotonic() - began
    eventually(lambda: client.unfinished(runs) == [], 300, "the end of its runs")
    for part in PARTS:
        deployment.wait(part)
    numbers = client.require_once(name, label)
    assert not expected or numbers == expected, (numbers, expected)
    said = f"equal numbers, logged once; {client.attempts(name)} attempts before; {len(runs)} runs"
    return numbers, f"{', '.join(died) or 'nobody'}; {took:.0f} s; {said}"


def _until(client: Client, name: str, label: str, file: str, runs: list[str], holds: Callable[[], bool]) -> bool:
    """Whether ``holds`` came before the evaluation's end; runs are started where none is left, and as a schedule does.

    A run whose worker was killed holds the deployment's only place until Prefect's lease of five minutes ends.
    """
    limit, looked, started, last = time.monotonic() + LONGEST, 0.0, time.monotonic(), ""
    while time.monotonic() < limit:
        try:
            if holds():
                return True
            if time.monotonic() - looked > 3.0:
                looked = time.monotonic()
                if client.done(name, label):
                    return False
                if client.unfinished(runs) == [] or time.monotonic() - started > SCHEDULE_SECONDS:
                    started = time.monotonic()
                    runs.append(client.start_run("watch", file=file))
        except AnswerError as error:  # of what is being started again
            last = str(error)
        time.sleep(LOOK_SECONDS)
    raise TimeoutError(f"{name}: not evaluated within {LONGEST:.0f} s; {last}")
