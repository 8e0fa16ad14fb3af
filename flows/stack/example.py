"""What an evaluation file on a stack says, for people to begin with."""

from __future__ import annotations

from pathlib import Path

import yaml

from congruence.flows.stack.place import BUCKET, Place

_HEAD = """\
# An evaluation on this machine's stack: write your models and splits, then
#   congruence stack deploy {name}
# MLflow, Prefect and the keys of s3:// are in the environment of the stack's workers; for a shell: . {environment}
"""


def settings_on(place: Place) -> dict[str, object]:
    """The keys of an evaluation file that point at the stack."""
    return {
        "store": {"uri": f"s3://{BUCKET}/embeddings"},
        "tracking": {"uri": place.http("mlflow")},
        "cluster": {"kind": "address", "address": place.scheduler, "tls": place.certificates},
        "home": str(place.home),
    }


def write_example(place: Place) -> Path:
    """An evaluation file with those keys beside models and splits that are to be changed."""
    file = place.folder / "evaluation.yaml"
    split = {"name": "test", "uri": f"s3://{BUCKET}/data/test/*.parquet", "input": "image", "target": "age"}
    example = {"models": ["age-from-face"], "splits": [split], "encoder": {"kind": "open_clip", "model": "compact"}}
    content = yaml.safe_dump(example | settings_on(place) | {"watch": {"every": "1m"}}, sort_keys=False)
    file.write_text(_HEAD.format(name="evaluation.yaml", environment=place.folder / "environment") + content)
    return file
