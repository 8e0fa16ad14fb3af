"""Versions that are tested for ever: a true one is ever called wrong with at most the account's level."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.special import ndtr

from congruence.kernels.errors import InvalidInputError
from congruence.kernels.many_looks import Look, LookAccount


def _looked(account: LookAccount, version: str, p_values: list[float]) -> LookAccount:
    for number, p in enumerate(p_values):
        account, _ = account.with_look(version, f"data {number}", p)
    return account


def test_levels_are_spent_and_never_more_than_alpha() -> None:
    account = LookAccount(0.05)
    spent = []
    for number in range(300):
        account, look = account.with_look("3", f"week {number}", 1.0)
        spent.append(look.level)
    assert spent[0] == pytest.approx(0.05 * 6 / np.pi**2)
    assert spent[9] == pytest.approx(spent[0] / 100)
    assert 0.0495 < sum(spent) < 0.05
    assert account.next_level("4") == spent[0]  # another version has an account of its own


def test_true_versions_ever_called_wrong_stay_below_the_level_where_plain_tests_do_not() -> None:
    rng = np.random.default_rng(0)
    versions, looks = 1500, 25
    sums = np.cumsum(rng.normal(size=(versions, looks)), axis=1)  # each look sees all data so far
    p_values = 2.0 * ndtr(-np.abs(sums) / np.sqrt(np.arange(1, looks + 1)))
    account = LookAccount(0.05)
    levels = np.array([account.level * 6.0 / (np.pi * k) ** 2 for k in range(1, looks + 1)])
    assert np.mean(np.any(p_values <= 0.05, axis=1)) > 0.2
    assert np.mean(np.any(p_values <= levels, axis=1)) < 0.05
    first = _looked(account, "1", p_values[0].tolist())
    np.testing.assert_allclose([look.level for look in first.looks], levels)


def test_a_wrong_version_is_found_and_stays_found() -> None:
    account = _looked(LookAccount(0.05), "2", [0.2, 0.001, 0.9])
    assert account.ever_wrong("2")
    assert not account.ever_wrong("1")
    assert [look.wrong for look in account.looks] == [False, True, False]
    assert account.adjusted_p_value("2") == pytest.approx(0.001 * 4 * np.pi**2 / 6)
    assert account.adjusted_p_value("1") == 1.0


def test_adjusted_p_values_decide_as_the_looks_did() -> None:
    for p in (0.0303, 0.0305):
        account = _looked(LookAccount(0.05), "2", [p])
        assert account.ever_wrong("2") == (account.adjusted_p_value("2") <= 0.05)


def test_the_same_evidence_is_no_new_look_whatever_its_p_value() -> None:
    account, first = LookAccount().with_look("1", "digest", 0.5)
    again, look = account.with_look("1", "digest", 1e-9)
    assert again == account
    assert look == first
    assert not again.ever_wrong("1")


def test_one_account_for_a_name_covers_all_its_versions() -> None:
    account = LookAccount(0.05, scope="name")
    for version in range(1, 200):
        account, _ = account.with_look(str(version), "split", 0.5)
    assert sum(look.level for look in account.looks) < 0.05
    assert account.next_level("new") == pytest.approx(0.05 * 6 / (np.pi * 200) ** 2)


def test_draws_suffice_for_the_next_level() -> None:
    account = _looked(LookAccount(0.05), "1", [0.5] * 4)
    draws = account.draws_needed("1")
    assert 1 / (draws + 1) <= account.next_level("1") < 1 / draws


def test_an_account_survives_json() -> None:
    account = _looked(LookAccount(0.01, scope="name"), "7", [0.3, 1e-7])
    assert LookAccount.from_record(json.loads(json.dumps(account.to_record()))) == account


@pytest.mark.parametrize("record", [{}, {"record": 2}, {"record": 1, "level": 0.05, "scope": "all", "looks": []}])
def test_other_records_are_refused(record: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError):
        LookAccount.from_record(record)


def test_what_is_no_probability_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="level"):
        LookAccount(1.5)
    with pytest.raises(InvalidInputError, match="p_value"):
        LookAccount().with_look("1", "data", float("nan"))
    assert Look("1", "data", 0.02, 0.03).wrong
