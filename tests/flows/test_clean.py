"""`congruence clean` removes what no named evaluation needs, and nothing else: on a disk and in an object store."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from congruence.flows.cli.app import app
from congruence.flows.operations.cleanup import clean
from congruence.tasks.data.split import open_split
from congruence.tasks.encoders.loading import load_encoder
from congruence.tasks.evaluate.pieces import embed_each
from congruence.tasks.runtime.files import ENDING, InUseError, in_use
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.store.embeddings import EmbeddingStore

ROWS, LONG_AGO = 50, time.time() - 3 * 24 * 3600


def content(folder: Path, name: str, **changes: Any) -> dict[str, Any]:
    split = {
        "name": name,
        "uri": str(folder / f"{name}.parquet"),
        "input": ["a", "b"],
        "input_kind": "features",
        "target": "y",
        "shard_rows": 20,
    }
    return {"splits": [split], "encoder": {"kind": "identity", "standardise": False, "dimension": 2}, **changes}


def settings(folder: Path, name: str, **changes: Any) -> EvaluationSettings:
    return EvaluationSettings.model_validate({"home": str(folder / "home"), **content(folder, name, **changes)})


def embedded(chosen: EvaluationSettings) -> EmbeddingStore:
    """All embeddings of an evaluation's first split, as its run leaves them."""
    home = chosen.home_folder
    split = open_split(chosen.splits[0], home / "plans")
    encoder = load_encoder(chosen.encoder)
    place, options = chosen.store.uri or str(home / "embeddings"), chosen.store.storage_options
    store = EmbeddingStore.open(place, split, encoder, storage_options=options)
    for shard in split.shards:
        embed_each(split, [shard], encoder, store)
    assert store.pending() == []
    return store


def age(folder: Path) -> None:
    for path in folder.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two splits that share their first 40 rows, and one of other rows."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(2 * ROWS, 3)), columns=["a", "b", "y"])
    frame[:ROWS].to_parquet(tmp_path / "kept.parquet")
    pd.concat([frame[:40], frame[60:70]]).to_parquet(tmp_path / "overlapping.parquet")
    frame[ROWS:].to_parquet(tmp_path / "old.parquet")
    return tmp_path


@pytest.fixture
def home(data: Path) -> Path:
    """A home folder after three evaluations, and a run that was killed long ago."""
    home = data / "home"
    for name in ("kept", "overlapping", "old"):
        embedded(settings(data, name))
    old = open_split(settings(data, "old").splits[0])
    kept = open_split(settings(data, "kept").splits[0])
    for path in (
        f"embeddings/predictions/m-1-abc/{old.shards[0].digest}-1.npz",
        f"embeddings/predictions/m-1-abc/{kept.shards[0].digest}-1.npz",
        f"embeddings/predictions/{kept.digest}/v1-abc/done/0-20.json",
        f"embeddings/{32 * '0'}/shards/{kept.shards[0].digest}-1/0.0",
        f"embeddings/measurements/{old.digest[:16]}/abc.npz",
        f"embeddings/measurements/{kept.digest[:16]}/abc.npz",
        f"embeddings/pictures/{old.digest}/abc.npz",
        f"embeddings/pictures/{kept.digest}/abc.npz",
        f"looks/.seen.parquet.{os.uname().nodename}~4194304.abc{ENDING}",
        f"embeddings/{32 * 'a'}/group/embeddings/c.0.abc{ENDING}",
        "scores/angle-1/scores.parquet",
        "mlflow.db",
        "mlartifacts/1/report.html",
    ):
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_bytes(b"12345")
    age(home)
    return home


def test_what_the_named_evaluation_needs_stays_and_the_rest_goes(data: Path, home: Path) -> None:
    alone = data / "alone"
    embedded(settings(data, "kept", home=str(alone)))
    kept = open_split(settings(data, "kept").splits[0])
    removed = clean([settings(data, "kept")], lambda _: True)
    assert {part.kind for part in removed} == {
        "embeddings",
        "indexes",
        "measurements",
        "picture statistics",
        "predictions",
        "unfinished files of processes that are gone",
    }
    assert files(home) - {".in-use", "embeddings/.in-use"} == files(alone) | {
        f"embeddings/predictions/m-1-abc/{kept.shards[0].digest}-1.npz",
        f"embeddings/measurements/{kept.digest[:16]}/abc.npz",
        f"embeddings/pictures/{kept.digest}/abc.npz",
        "scores/angle-1/scores.parquet",
        "mlflow.db",
        "mlartifacts/1/report.html",
    }
    assert not [path for path in (home / "embeddings").rglob("*") if path.is_dir() and not any(path.iterdir())][1:]
    store = embedded(settings(data, "kept"))
    assert len(store.read()) == store.rows  # as Zarr's checksums say
    assert clean([settings(data, "kept")], lambda _: True) == []
    (left,) = clean_aged(data, home, predictions=True)
    assert left.kind == "predictions"


def clean_aged(data: Path, home: Path, **options: Any) -> list[Any]:
    age(home)
    parts = clean([settings(data, "kept")], lambda _: True, **options)
    return list({part.kind: part for part in parts}.values())


def test_rows_of_looks_that_were_made_go(data: Path, home: Path) -> None:
    clean([settings(data, "kept")], lambda _: True)
    names = ["0123.pit.npy", "0123.keys.npy", "ab.parquet", "cd.parquet"]
    (home / "looks").mkdir()
    for name in names:
        (home / "looks" / name).write_bytes(b"12345")
    (left,) = clean_aged(data, home)
    assert (left.kind, left.size) == ("rows of looks", 10)
    assert {path.name for path in (home / "looks").iterdir()} == set(names[:2])


def test_other_encoders_of_the_same_split_go_and_several_files_are_all_kept(data: Path, home: Path) -> None:
    other = {"kind": "identity", "mean": [1.0, 2.0]}
    embedded(settings(data, "kept", encoder=other))
    age(home)
    named = [settings(data, name) for name in ("kept", "overlapping", "old")]
    removed = [part.name for part in clean(named, lambda _: True) if part.kind == "embeddings"]
    assert [name for name in removed if "identity:2" in name] == removed[:1]
    for store in map(embedded, named):
        assert len(store.read()) == store.rows
    assert clean([*named, settings(data, "kept", encoder=other)], lambda _: True) == []


def test_nothing_goes_while_a_run_works_or_that_was_just_written(data: Path, home: Path) -> None:
    before = files(home)
    script = (
        "import sys, time\nfrom congruence.tasks.runtime.files import in_use\n"
        "with in_use(sys.argv[1]):\n    print('here', flush=True)\n    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(home)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    with in_use(home), pytest.raises(InUseError, match="a run is working here; clean it when that has ended"):
        clean([settings(data, "kept")], lambda _: True)
    process.kill()
    process.wait()
    for path in home.rglob("*"):
        os.utime(path)
    (gone,) = clean([settings(data, "kept")], lambda _: True)
    assert gone.kind == "unfinished files of processes that are gone"
    assert files(home) >= {name for name in before if not name.endswith(ENDING)}


def test_the_command_lists_asks_and_says_so(data: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("congruence.flows.cli.registered.embed_servers", lambda folder, **_: folder)
    file = data / "evaluation.yaml"
    file.write_text(yaml.safe_dump(content(data, "kept", home=str(home))))
    before = files(home)
    for options in (["--dry-run", "--yes"], []):
        listed = CliRunner().invoke(app, ["clean", str(file), *options])
        assert listed.exit_code == 0, listed.output
        assert "embeddings by identity:2 (" in listed.output
        assert listed.output.splitlines()[-1] == "nothing was removed"
        assert files(home) >= before
    done = CliRunner().invoke(app, ["clean", str(file), "--home", str(home), "--yes"])
    assert done.output.splitlines()[-1].startswith("removed ")
    again = CliRunner().invoke(app, ["clean", str(file), "--home", str(home), "--yes"])
    assert again.output == "nothing is left over\n"
    (data / "kept.parquet").unlink()
    lost = CliRunner().invoke(app, ["clean", str(file), "--home", str(home), "--yes"])
    assert lost.exit_code == 2
    assert "kept.parquet: no such file" in lost.output


def test_a_bucket_is_cleaned_of_what_is_a_day_old(
    data: Path, s3: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = {"uri": "s3://congruence/embeddings", "storage_options": s3}
    for name in ("kept", "old"):
        embedded(settings(data, name, store=store))
    kept = [settings(data, "kept", store=store)]
    assert clean(kept, lambda _: True) == []
    now = time.time()
    monkeypatch.setattr("congruence.flows.operations.cleanup.time.time", lambda: now + 25 * 3600)
    removed = clean(kept, lambda _: True)
    assert [part.kind for part in removed] == ["embeddings", "indexes"]
    assert len(embedded(kept[0]).read()) == ROWS
    monkeypatch.undo()
    again = embedded(settings(data, "old", store=store))
    assert len(again.read()) == again.rows
