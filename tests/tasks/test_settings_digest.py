"""What changes a number changes the digest, and nothing else does."""

from __future__ import annotations

from typing import Any

import pytest

from congruence.tasks.settings.evaluation import EvaluationSettings, contract_digest, settings_digest

SPLIT = {"name": "s", "uri": "s.parquet", "input": ["u", "v"], "input_kind": "features", "target": "y"}
COUNTS = {"family": "negative_binomial", "columns": {"mean": "m", "dispersion": 5.0}}


def settings(split: dict[str, Any] | None = None, **changes: Any) -> EvaluationSettings:
    content = {"splits": [SPLIT | (split or {})], "encoder": {"kind": "identity", "dimension": 2}}
    return EvaluationSettings.model_validate(content | changes)


def digest(split: dict[str, Any] | None = None, **changes: Any) -> str:
    chosen = settings(split, **changes)
    return settings_digest(chosen, chosen.splits[0])


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"predictions": COUNTS},
        {"predictions": COUNTS | {"transforms": {"mean": "exp"}}},
        {"solver": {"landmarks": 100}},
        {"solver": {"kind": "cholesky"}},
        {"store": {"dtype": "float16"}},
        {"split": {"model_inputs": ["u"]}},
        {"split": {"model_inputs": ["v", "u"]}},
        {"protocol": "ecai", "reference": SPLIT | {"model_inputs": ["u"]}},
    ],
    ids=str,
)
def test_what_changes_a_number_changes_the_digest(changes: dict[str, Any]) -> None:
    assert digest(**changes) != digest()


def test_each_change_has_a_digest_of_its_own() -> None:
    edited = COUNTS | {"columns": {"mean": "m", "dispersion": 3.0}}
    digests = [digest(), digest(predictions=COUNTS), digest(predictions=edited), digest(solver={"landmarks": 100})]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize(
    "changes",
    [
        {"solver": {"kind": "auto"}},
        {"solver": {"memory": "4 GiB"}},
        {"cluster": {"kind": "threads"}},
        {"gate": {"maximum": {"mae": 1.0}}},
        {"max_invalid": 0.5},
        {"split": {"model_inputs": ["u", "v"]}},
        {"split": {"shard_rows": 5}},
    ],
    ids=str,
)
def test_what_changes_none_does_not(changes: dict[str, Any]) -> None:
    assert digest(**changes) == digest()


def test_kept_predictions_are_of_one_contract() -> None:
    one = settings(predictions=COUNTS)
    assert contract_digest(one.predictions, one.splits[0]) != contract_digest(None, one.splits[0])
