"""The experiments by name, in the order of the papers; each is loaded when it is run."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from congruence.tasks.runtime.errors import SettingsError

if TYPE_CHECKING:
    from congruence.tasks.reproduction.outcome import Outcome, Plan

ALL = "all"
NAMES = (
    "gaussian-trap",
    "general-behaviour",
    "discrete-wave",
    "counts-ece",
    "settings-study",
    "downsampling",
    "rejection",
    "nll-map",
    "image-regression",
    "blood-cells",
    "ols",
    "skce-estimators",
    "skce-tests",
    "friedman",
    "inverse-problem",
    "protein",
)


def named(name: str) -> tuple[str, ...]:
    """The names that ``name`` stands for.

    Raises:
        SettingsError: there is no such experiment.
    """
    if name == ALL:
        return NAMES
    if name in NAMES:
        return (name,)
    close = difflib.get_close_matches(name, NAMES, 1)
    meant = f"did you mean '{close[0]}'? " if close else ""
    raise SettingsError(f"experiment '{name}' does not exist: {meant}choose 'all' or one of {', '.join(NAMES)}")


def load(name: str) -> Callable[[Plan], Outcome]:
    """The flow of an experiment: of the function of its name in the module of its name."""
    from prefect import flow

    function = name.replace("-", "_")
    run: Callable[[Plan], Outcome] = getattr(import_module(f"congruence.flows.reproduce.{function}"), function)
    return flow(name=f"reproduce {name}", validate_parameters=False)(run)
