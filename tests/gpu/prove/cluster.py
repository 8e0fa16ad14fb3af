"""From images to logged scores on a cluster of cards, and the same on processors: the demo's own data and versions."""

import tempfile
import time
from pathlib import Path
from typing import Any

SMALL_ROWS = 256
ROWS = 2000, 6000  # for training, and in the split: more than one worker holds in memory
TOLERANCE = 1e-3
COMPARED = "cce_mean"


def run(record: Any, name: str, device: str, small: bool) -> None:
    """Landmarks are named, so that both clusters make the same answer."""
    from congruence.flows.cli.options import embed_servers
    from congruence.tasks.runtime.files import tracking_uri

    kinds = ("cuda", "local") if device == "cuda" else ("threads", "local")
    with tempfile.TemporaryDirectory() as folder:
        home = embed_servers(Path(folder))  # before Prefect and MLflow are imported
        from congruence.flows.operations import demo
        from congruence.flows.operations.demo import evaluation_file
        from congruence.tasks.digits.training import register_versions
        from congruence.tasks.mlflow.connection import point_mlflow_at

        demo.TRAIN_ROWS, demo.TEST_ROWS = (SMALL_ROWS, SMALL_ROWS) if small else ROWS
        demo.EVALUATION["splits"][0]["shard_rows"] = 128 if small else 1024  # type: ignore[index]
        point_mlflow_at(tracking_uri(home))
        with record.sampler.stage("data and versions"):
            demo._write_data(home / "demo")
            register_versions(home / "demo" / "train")
            file = evaluation_file(home / "demo", demo.EVALUATION)
        models = [f"models:/{demo.MODEL_NAME}/{version}" for version in ((1,) if small else (1, 2))]
        found = {kind: _evaluated(record, file, home, kind, models) for kind in kinds}
    first, second = (found[kind] for kind in kinds)
    worst = max(
        abs(values[COMPARED] - second[label][COMPARED]) / abs(second[label][COMPARED])
        for label, values in first.items()
    )
    record.goal(f"largest difference of {COMPARED} between {kinds[0]} and {kinds[1]}", worst, TOLERANCE, at_least=False)
    if worst > TOLERANCE:
        raise AssertionError(f"the scores of {kinds[0]} and {kinds[1]} differ by {worst:.3g}")


def _evaluated(record: Any, file: Path, home: Path, kind: str, models: list[str]) -> dict[str, dict[str, float]]:
    from congruence.flows.cli.session import run_evaluation
    from congruence.tasks.settings.evaluation import load_settings
    from congruence.tasks.settings.parts import ClusterSettings

    settings = load_settings(file, {"home": str(home)})
    store = settings.store.model_copy(update={"uri": str(home / f"embeddings-{kind}")})
    workers = 1 if kind == "local" else None  # each loads its libraries, which takes longest
    cluster = ClusterSettings(kind=kind, workers=workers)  # type: ignore[arg-type]
    solver = settings.solver.model_copy(update={"landmarks": 200})
    settings = settings.model_copy(update={"cluster": cluster, "store": store, "solver": solver})
    settings = settings.model_copy(update={"models": models})
    started = time.perf_counter()
    with record.sampler.stage(f"evaluation on {kind}"):
        outcomes = run_evaluation(settings, again=True)
    record.note(**{f"{kind}_seconds": round(time.perf_counter() - started, 1)})
    failed = [f"{outcome.label}: {outcome.error}" for outcome in outcomes if outcome.status == "failed"]
    if failed or not outcomes:
        raise RuntimeError("; ".join(failed) or "nothing was evaluated")
    scores = {outcome.label: {name: metric.value for name, metric in outcome.metrics.items()} for outcome in outcomes}
    record.note(**{f"{kind}_scores": {label: values[COMPARED] for label, values in scores.items()}})
    return scores
