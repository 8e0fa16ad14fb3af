"""Evaluations as a comparison reads them, without a round through MLflow."""

from dataclasses import replace

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution, Normal
from congruence.kernels.engine.driver import HeldSplit
from congruence.kernels.engine.landmarks import Accuracy
from congruence.kernels.engine.measure import measure_held
from congruence.kernels.engine.plan import Ask
from congruence.kernels.engine.results import CongruenceResult
from congruence.kernels.protocol import EXACT
from congruence.kernels.score_parts import recalibration_gains
from congruence.tasks.comparison.compared import ComparedVersion
from congruence.tasks.settings.sections import ModelVersion

as_compared = ComparedVersion.of


def angle(version: str) -> ModelVersion:
    """A version of the registered model ``angle``."""
    return ModelVersion("angle", version, f"models:/angle/{version}")


def congruence_of(x: Array, y: Array, law: Distribution, seed: int = 0) -> CongruenceResult:
    """The CCE of a law with what targets and errors say of its own error, and without the band of a true version."""
    held = HeldSplit(np.asarray(EXACT.apply(x)), y, dependence=None, systems={})
    return measure_held(held, EXACT, {"": law}, Ask([""], tested=False, band=False), Accuracy(), seed)[""]


def if_honest(version: ComparedVersion) -> ComparedVersion:
    """The version with the scores that it would have if its levels were read anew."""
    scores, valid = version.scores, version.scores["valid"]
    law = Normal(scores.loc[valid, "mean"].to_numpy(), scores.loc[valid, "std"].to_numpy())
    gains = recalibration_gains(scores.loc[valid, "target"].to_numpy(), law)
    for name, gain in zip(("crps", "nll"), gains, strict=True):
        column = np.full(len(scores), np.nan)
        column[valid] = scores.loc[valid, name] - gain
        scores = scores.assign(**{f"{name}_recalibrated": column})
    return replace(version, scores=scores)
