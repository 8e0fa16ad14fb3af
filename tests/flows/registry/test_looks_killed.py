"""Two watchers as processes on a real MLflow server, their clocks an hour apart, killed at random: an exercise."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest

from congruence.tasks.contract import log_predictive_model
from congruence.tasks.mlflow.connection import TrackingError
from congruence.tasks.mlflow.identity import EvaluationIdentity
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.models.registry import resolve
from congruence.tasks.scores.evaluation import MetricValue
from congruence.tasks.watching.account import Accounts
from congruence.tasks.watching.claims import CLAIM, new_owner

MODEL, SPLIT, LOOKS, ROWS, KILLS = "models:/killed/1", "daily", 12, 50, 8


def _identity(look: int) -> EvaluationIdentity:
    return EvaluationIdentity(resolve(MODEL), SPLIT, f"{look:08d}" * 4, "p" * 12, ("cce",))


def _p_value(look: int) -> float:
    return (1 + 7 * look % 13) / 13


def _watch(server: str, folder: Path, ahead: float) -> None:
    """Open and close looks until all are closed: at every step the process may be killed."""
    real = time.time
    time.time = lambda: real() + ahead
    mlflow.set_tracking_uri(server)
    accounts, owner = Accounts(TrackingSettings(uri=server, patience=60), folder), new_owner()
    while True:
        account = accounts.read(resolve(MODEL), SPLIT)
        if len(account.closed) == LOOKS and not account.open:
            return
        try:
            for look in account.open:
                number = int(look.when)
                accounts.close(
                    look, _identity(number), {"cce_p_value": MetricValue(_p_value(number))}, f"run {number}", owner
                )
            rows = np.arange(LOOKS * ROWS, dtype=np.uint64)
            unseen = rows[accounts.unseen(account, rows)]
            if len(unseen):
                number = int(unseen[0]) // ROWS
                accounts.open(_identity(number), rows[number * ROWS : (number + 1) * ROWS], str(number), owner)
        except TrackingError:  # the other one is at the account, or was killed there: its claim ends by itself
            time.sleep(0.5)


@pytest.mark.exercise
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_watchers_that_are_killed_at_random_count_every_look_once(tmp_path: Path) -> None:
    from loopback import MlflowServer, Process  # the watchers run this file without it on their path

    server, before = MlflowServer(tmp_path), mlflow.get_tracking_uri()
    server.start()
    watchers = []
    try:
        mlflow.set_tracking_uri(server.uri)
        log_predictive_model(
            lambda frame: pd.DataFrame({"loc": frame["x"], "scale": 1.0}),
            name="killed",
            family="normal",
            input_example=pd.DataFrame({"x": [0.0, 1.0]}),
            registered_model_name="killed",
            pip_requirements=["mlflow"],
        )
        for number in range(2):
            (tmp_path / str(number)).mkdir()
            command = [sys.executable, __file__, server.uri, str(tmp_path / str(number)), str(3600.0 * number)]
            watchers.append(Process(command, tmp_path / f"{number}.log"))
            watchers[-1].start()
        chance, kills = random.Random(0), 0
        limit = time.monotonic() + 600.0
        while any(watcher.alive for watcher in watchers):
            assert time.monotonic() < limit, [watcher.text()[-2000:] for watcher in watchers]
            time.sleep(chance.uniform(2.0, 9.0))
            victim = chance.choice(watchers)
            if kills < KILLS and victim.alive:
                victim.kill()
                victim.start()
                kills += 1
        assert [watcher.stop() for watcher in watchers] == [0, 0], [watcher.text()[-2000:] for watcher in watchers]
        read = Accounts(TrackingSettings(uri=server.uri), tmp_path / "later").read(resolve(MODEL), SPLIT)
        assert sorted(int(look.when) for look in read.closed) == list(range(LOOKS))
        assert [look.number for look in read.closed] == list(range(1, LOOKS + 1))
        assert {look.when: look.p_value for look in read.monitor.looks} == {str(n): _p_value(n) for n in range(LOOKS)}
        assert kills > 0
        print(f"{kills} kills, claims left: {[key for key in resolve(MODEL).tags if key.startswith(CLAIM)]}")
    finally:
        for watcher in watchers:
            watcher.kill()
        server.kill()
        mlflow.set_tracking_uri(before)


if __name__ == "__main__":
    _watch(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
