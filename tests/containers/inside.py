"""What the exercise asks of the services from one of their containers: a call a line on stdin, its answer on stdout."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from client_stage import BUCKET, ROWS, SHARD_ROWS, Stage
from mlflow import MlflowClient
from mlflow.entities import ViewType

from congruence.tasks.settings.evaluation import load_settings

FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


class Inside(Stage):
    """A stage whose answers are JSON."""

    def moments(self, name: str) -> list[str]:
        """The stages that have left something behind: of an evaluation with a store of its own."""
        store = f"embeddings/{name}/"
        keys = self.keys(store)
        predicted = sum(key.startswith(f"{store}predictions/") for key in keys)
        found = {
            "embed": any("/embeddings/c." in key for key in keys),
            "predict": predicted >= 1,
            "solve": predicted >= ROWS // SHARD_ROWS,
            "log": any("rows" in run.data.params for run in self.evaluations(name)),
        }
        return [stage for stage, is_reached in found.items() if is_reached]

    def unfinished(self, runs: list[str]) -> list[str]:
        """Those of these flow runs that are yet to end."""
        return [run for run in runs if self.prefect(f"flow_runs/{run}", method="GET")["state_type"] not in FINAL]

    def attempts(self, split: str) -> int:
        """Evaluations that were begun and given up."""
        return len(self.evaluations(split, ViewType.DELETED_ONLY))

    def deployments(self) -> list[str]:
        """The names of the work pool's deployments."""
        return sorted(each["name"] for each in self.prefect("deployments/filter", {}))

    def tag(self, label: str, key: str, value: str) -> str:
        """Set a version's tag and read it back."""
        client = MlflowClient(self.known["MLFLOW_TRACKING_URI"])
        client.set_model_version_tag(*label.split("/"), key, value)
        return str(client.get_model_version(*label.split("/")).tags[key])

    def bucket(self) -> None:
        """The bucket, where no service makes it."""
        self.s3().create_bucket(Bucket=BUCKET)

    def webhook(self, url: str) -> str:
        """Have MLflow tell a receiver of new versions; what the command printed."""
        done = subprocess.run(["congruence", "webhook", url], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def events(self, name: str) -> int:
        """How many events of a name Prefect has."""
        body = {"filter": {"event": {"name": [name]}, "occurred": {}}, "limit": 10}
        return int(self.prefect("events/filter", body)["total"])


def main() -> None:
    """Answer until stdin ends."""
    cluster = load_settings(Path("/etc/congruence/evaluation.yaml")).cluster.model_dump(mode="json", exclude_unset=True)
    stage = Inside(Path("/data"), os.environ, cluster)
    stage.files = Path("/evaluations")
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, Any]
        try:
            with contextlib.redirect_stdout(sys.stderr):
                given = getattr(stage, asked["name"])(*asked["arguments"], **asked["options"])
            answer = {"value": str(given) if isinstance(given, Path) else given}
        except Exception as error:  # the exercise's to judge: a server may be down by its hand
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
