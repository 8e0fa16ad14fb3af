"""Which inputs are withheld: numbers by their definition, the rule by known faults, rejection curves by hand."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import lfilter

from congruence.kernels import RBF, InvalidInputError, MultivariateNormal, Normal, Poisson, Samples, Uniform, prepare
from congruence.kernels.conditional_calibration.local_reading import LocalReading, ScoreSmoothing
from congruence.kernels.dependence.blocks import RowDependence, blocks_of_groups
from congruence.kernels.dependence.correlation import version_blocks
from congruence.kernels.engine.targets import target_errors
from congruence.kernels.scores import crps, negative_log_likelihood
from congruence.kernels.trust.judgement import CCE, CRPS, ERROR, NLL, SPREAD, SUPPORT, excess_losses, rejection_curve
from congruence.kernels.trust.local_faults import RowScores, fewest_false, local_faults
from congruence.kernels.trust.rule import WithholdingRule, held_out_rows, rows_for
from congruence.kernels.trust.scorer import COLUMNS
from congruence.tasks.sentences.inputs import Rows, reasons, withholding_sentence


def drawn(rng, n, fault=0.0):
    """y ~ N(sin x_1 + .3 x_2, .3 or .5), which the version knows, but for ``fault`` spreads where x_1 > .8."""
    x = rng.normal(size=(n, 2))
    law = Normal(np.sin(x[:, 0]) + 0.3 * x[:, 1], 0.3 + 0.2 * (x[:, 1] > 0))
    return x, law.mean() + law.std() * (rng.normal(size=n) + fault * (x[:, 0] > 0.8)), law


def scored(seed, fault, n=2000, m=1000, **more):
    rng = np.random.default_rng(seed)
    (x, y, law), (new, _, _) = drawn(rng, n, fault), drawn(rng, m)
    split = prepare(x, input_kernel=RBF(0.5), regularization=1e-3)
    return new, split.score_inputs(new, y, law, **more)


@pytest.fixture(scope="module")
def wrong():
    return scored(0, 1.0)


def test_a_version_wrong_in_one_region_is_withheld_there(wrong):
    new, found = wrong
    inside, unusual = new[:, 0] > 0.8, found.support.unusual()
    for_faults = found.withhold & ~unusual
    assert for_faults[inside & ~unusual].mean() > 0.8
    assert for_faults[inside].sum() / for_faults.sum() > 0.95
    assert for_faults[~inside].mean() < 0.02
    assert found.judgement.helps
    assert withholding_sentence(found.judgement).startswith(
        "Withholding where the version is wrong helps: NLL beyond expected"
    )
    first = int(np.flatnonzero(for_faults & inside)[0])
    assert found.reason[first] == "bias"
    assert found.wrong[first]
    assert unusual.mean() <= 0.02
    assert found.reason[np.flatnonzero(unusual)[0]] == "unusual"
    place = int(np.flatnonzero(np.flatnonzero(for_faults) == first)[0])
    assert found.faults.names[place] == "bias"
    assert found.faults.shift[place] > 0.25


def test_of_what_is_withheld_for_a_fault_hardly_more_than_the_stated_share_is_right():
    """Next to the border a smoother sees the fault, too: in six features a fifth of what was withheld lay there."""
    shares = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        x, new = rng.normal(size=(2000, 6)), rng.normal(size=(1000, 6))
        fault = x[:, 0] > 0.8
        law = Normal(np.sin(x[:, 0]), np.full(2000, 0.5))
        y = law.mean() + law.std() * (rng.normal(size=2000) + fault)
        smoother = prepare(x, input_kernel=RBF(0.1), regularization=1e-3)
        vectors = smoother.spectrum.vectors(new, len(smoother.smoother.filters)).astype(np.float32)
        errors = target_errors(y, law, RBF(0.5))
        faults = local_faults(RowScores.of(y, law), errors, smoother.smoother, x, slice(None), 0)
        wrong = faults.wrong(vectors, new, 0.05)
        assert wrong[new[:, 0] > 0.8].mean() > 0.3
        shares.append((wrong & (new[:, 0] <= 0.8)).sum() / wrong.sum())
    assert np.mean(shares) <= 0.05


def test_the_longest_list_whose_mean_chance_of_being_false_is_at_most_the_level():
    assert fewest_false(np.array([0.2, 0.0, 0.04, 0.9]), 0.05).tolist() == [False, True, True, False]
    assert fewest_false(np.array([0.2, 0.0, 0.04, 0.9]), 0.1).tolist() == [True, True, True, False]
    assert fewest_false(np.array([0.5]), 0.05).tolist() == [False]
    assert fewest_false(np.zeros(0), 0.05).tolist() == []


def test_nothing_of_a_true_version_is_withheld_but_the_unusual():
    for seed in range(3):
        _, found = scored(seed, 0.0, n=1000, m=500)
        assert (found.withhold == found.support.unusual()).all()
        assert not found.judgement.helps
        assert "nothing is withheld on that account" in withholding_sentence(found.judgement)


def test_the_table_has_what_is_known_and_no_more(wrong):
    _, found = wrong
    table = found.to_frame()
    assert tuple(table.columns) == COLUMNS
    assert table.loc[~table["withhold"], "reason"].eq("").all()
    unusual = found.support.unusual()
    assert table.loc[unusual, ["cce", "cce_expected", "cce_p_value"]].isna().all().all()
    assert table.loc[~unusual, ["cce", "cce_expected", "cce_p_value"]].notna().all().all()
    assert "helps=True" in repr(found)


def test_withholding_is_judged_against_spread_support_and_chance(wrong):
    _, found = wrong
    assert set(found.judgement.curves) == {NLL, CRPS, ERROR}
    for curves in found.judgement.curves.values():
        assert set(curves) == {CCE, SPREAD, SUPPORT}
    assert found.judgement.losses[NLL].z > 5
    curve = found.judgement.curves[NLL][CCE]
    tenth = int(np.argmin(np.abs(curve.withheld - 0.2)))
    assert curve.kept_loss[tenth] < curve.random_low[tenth]
    assert curve.kept_loss[tenth] < found.judgement.curves[NLL][SPREAD].kept_loss[tenth]


def test_cce_and_what_a_true_version_would_have_by_the_definition():
    rng = np.random.default_rng(1)
    x, y, law = drawn(rng, 200, 1.0)
    new = rng.normal(size=(8, 2)) * 0.7
    split = prepare(x, input_kernel=RBF(0.5), regularization=1e-3)
    found = split.score_inputs(new, y, law, seed=3)
    exact = prepare(x, query=new, input_kernel=RBF(0.5), regularization=1e-3).conditional_congruence_error(y, law)
    known = ~np.isnan(found.cce)
    assert known.sum() >= 6
    np.testing.assert_allclose(found.cce[known], exact.values[known], rtol=0.1, atol=0.01)
    assert (found.cce_expected[known] <= 1.05 * exact.noise_floor_values[known]).all()
    assert (found.cce_expected[known] >= 0.75 * exact.noise_floor_values[known]).all()
    by_solver = split.input_scorer(y, law, seed=3).score(new, result=exact)
    np.testing.assert_array_equal(by_solver.cce[known], exact.values[known])


def test_far_from_all_rows_nothing_is_said_of_the_version():
    rng = np.random.default_rng(2)
    x, y, law = drawn(rng, 400)
    found = prepare(x, input_kernel=RBF(0.5)).score_inputs(np.array([[0.0, 0.0], [50.0, 0.0]]), y, law)
    assert found.withhold.tolist() == [False, True]
    assert np.isnan(found.cce[1])
    assert np.isnan(found.cce_p_value[1])
    assert found.effective_rows[1] < 1 < found.effective_rows[0]


def test_the_length_that_normalising_hides_is_seen():
    rng = np.random.default_rng(3)
    raw = rng.normal(size=(400, 4)) + 3
    unit = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    law = Normal(np.zeros(400), np.ones(400))
    far = 20 * raw[:3]
    split = prepare(unit, input_kernel=RBF(1.0))
    y = rng.normal(size=400)
    assert split.score_inputs(unit[:3], y, law, raw=(raw, far)).withhold.all()
    assert not split.score_inputs(unit[:3], y, law).withhold.any()


def test_a_share_takes_the_least_usual_first_then_the_highest_cce():
    new, found = scored(0, 1.0, n=1000, m=400, withhold="10 %")
    assert found.withhold.sum() == 40
    unusual = found.support.unusual()
    assert found.withhold[unusual].all()
    rest = found.withhold & ~unusual
    excess = found.cce**2 - found.cce_expected**2
    assert excess[rest].min() >= np.nanmax(excess[~found.withhold])
    assert (new[rest, 0] > 0.5).mean() > 0.8
    _, true = scored(1, 0.0, n=1000, m=400, withhold=0.1)
    assert (true.withhold == true.support.unusual()).all()


def test_a_version_that_is_wrong_everywhere_is_to_be_corrected():
    rng = np.random.default_rng(4)
    x, y, law = drawn(rng, 600)
    found = prepare(x, input_kernel=RBF(0.5), regularization=1e-3).score_inputs(x[:50], y + 2.0, law)
    assert "wrong nearly everywhere" in withholding_sentence(found.judgement)
    assert "correct the version first" in withholding_sentence(found.judgement)
    assert (found.withhold == found.support.unusual()).all()


@pytest.mark.parametrize("kind", ["counts", "ensemble", "vector"])
def test_other_laws(kind):
    rng = np.random.default_rng(5)
    n = 200 if kind == "vector" else 600
    x = rng.normal(size=(n, 2))
    fault = x[:, 0] > 0.5
    mean = np.exp(1 + 0.5 * x[:, 1])
    if kind == "counts":
        y, law = rng.poisson(mean * (1 + 1.5 * fault)).astype(float), Poisson(mean)
    elif kind == "ensemble":
        y, law = mean + rng.normal(size=n) + 2 * fault, Samples(mean[:, None] + rng.normal(size=(n, 40)))
    else:
        both = np.stack([mean, -mean], axis=1)
        y = both + rng.normal(size=(n, 2)) + 2 * fault[:, None]
        law = MultivariateNormal(both, np.ones((n, 2)))
    new = rng.normal(size=(200, 2))
    split = prepare(x, input_kernel=RBF(0.5), regularization=1e-3)
    found = split.input_scorer(y, law, draws=19).score(new)
    assert found.judgement.helps
    for_faults = found.withhold & ~found.support.unusual()
    inside = new[:, 0] > 0.5
    assert for_faults[inside].mean() > 0.7
    assert for_faults[inside].sum() > 0.7 * for_faults.sum()


def test_losses_beyond_what_is_expected_have_mean_zero_under_the_truth():
    rng = np.random.default_rng(6)
    law = Normal(rng.normal(size=4000), rng.uniform(0.2, 3, 4000))
    y = law.sample(1, seed=7)[:, 0]
    found = excess_losses(y, law)
    for name in (NLL, CRPS):
        assert abs(found[name].mean()) < 4 * found[name].std() / np.sqrt(4000)
    entropy = 0.5 * np.log(2 * np.pi * np.e * law.std() ** 2)
    np.testing.assert_allclose(np.mean(negative_log_likelihood(y, law) - found[NLL]), entropy.mean(), atol=0.02)
    np.testing.assert_allclose(np.mean(crps(y, law) - found[CRPS]), np.mean(law.std()) / np.sqrt(np.pi), rtol=0.02)


def test_where_targets_are_impossible_nll_judges_nothing_and_their_number_is_given():
    rng = np.random.default_rng(10)
    x, y, law = drawn(rng, 600, 2.0)
    bounded = Uniform(law.mean() - 4 * law.std(), 8 * law.std())
    y = law.mean() + np.clip(y - law.mean(), -3.9 * law.std(), 3.9 * law.std())
    y[:2] += 100.0
    found = prepare(x, input_kernel=RBF(0.5), regularization=1e-3).score_inputs(x[:50], y, bounded)
    assert found.judgement.impossible == 2
    assert NLL not in found.judgement.losses
    assert CRPS in found.judgement.losses
    assert "NLL judges nothing: 2 of the 600 labelled targets are impossible under the version" in withholding_sentence(
        found.judgement
    )


def test_columns_keys_and_groups_are_passed_on():
    rng = np.random.default_rng(8)
    x, y, law = drawn(rng, 400)
    table = pd.DataFrame({"first": x[:, 0], "second": x[:, 1], "kind": rng.choice(["a", "b"], 400)})
    new = table.iloc[:3].assign(kind=["a", "c", "b"])
    found = prepare(x, input_kernel=RBF(0.5)).score_inputs(
        x[:3], y, law, columns=(table, new), keys=["k1", "k2", "k3"], groups=np.repeat(np.arange(100), 4)
    )
    assert found.to_frame()["key"].tolist() == ["k1", "k2", "k3"]
    assert found.reason[1] == "unusual"
    split = prepare(x, input_kernel=RBF(0.5)).input_scorer(y, law, columns=table, groups=np.repeat(np.arange(100), 4))
    said = reasons(split.support, found, Rows(x, table), Rows(x[:3], new))
    assert said[1].startswith("kind c: the split holds a and b; nearest rows ")
    assert said[0] == said[2] == ""


def test_rows_near_in_time_are_held_out_and_counted_as_the_runs_that_they_form():
    """In any order of the rows: times are values, not places."""
    rng = np.random.default_rng(11)
    n = 400
    series = lfilter([1.0], [1.0, -0.6], rng.normal(size=(n, 3)) * 0.8, axis=0)
    order = rng.permutation(n)
    x, y, law = series[order, :2], series[order, 2], Normal(np.zeros(n), np.ones(n))
    split = prepare(x, input_kernel=RBF(0.5), regularization=1e-3)
    runs = version_blocks(RowDependence.of(n, time=order), y, law)
    alone, in_time, in_runs = (
        split.score_inputs(x[:5], y, law, withhold=0.3, **given)
        for given in ({}, {"time": order}, {"groups": runs.labels})
    )
    assert in_time.judgement.losses == in_runs.judgement.losses != alone.judgement.losses
    np.testing.assert_array_equal(in_time.support.p_values, in_runs.support.p_values)


def test_where_rows_of_a_group_are_alike_a_true_version_is_not_called_wrong_there():
    """By blocks of whole groups; a fault that all groups share is found as before."""
    rng, group = np.random.default_rng(12), np.repeat(np.arange(400), 3)
    x, law = rng.normal(size=(400, 2))[group], Normal(np.zeros(1200), np.ones(1200))
    blocks = blocks_of_groups(group, 1200)
    smoother = prepare(x, input_kernel=RBF(0.5), regularization=1e-3).smoother
    vectors = smoother.synthesis
    alone = by_group = found = withheld = 0.0
    read = ScoreSmoothing.of_rows
    for seed in range(6):
        y = np.sqrt(0.8) * rng.normal(size=400)[group] + np.sqrt(0.2) * rng.normal(size=1200)
        scores, errors = RowScores.of(y, law), target_errors(y, law, RBF(0.5))
        alone, by_group = (
            share + LocalReading.at(read(smoother, scores.scores, blocks=some), vectors).significant(0.05).mean() / 6
            for share, some in ((alone, None), (by_group, blocks))
        )
        for of in (scores, None):
            withheld += local_faults(of, errors, smoother, x, slice(None), seed, blocks).wrong(vectors, x, 0.05).sum()
        y += 2.0 * (x[:, 0] > 0.5)
        faults = local_faults(RowScores.of(y, law), errors, smoother, x, slice(None), seed, blocks)
        found += faults.wrong(vectors, x, 0.05)[x[:, 0] > 0.5].mean() / 6
    assert by_group < 0.01 < 0.05 < alone
    assert withheld == 0
    assert found > 0.3


def test_a_split_of_few_rows_says_which_level_it_affords():
    rule = WithholdingRule.of(None)
    assert rule.afforded(held_out_rows(198)) == rule
    few = rule.afforded(held_out_rows(152))
    assert few.unusual == pytest.approx(1 / 77)
    assert str(few).startswith(
        "unusual at 1.3 % (the least that so few labelled rows can show; 1 % takes 198), wrong at a false discovery"
    )
    assert few.afforded(50).asked == rule.unusual
    assert rows_for(0.001) == 2997


def test_rules_and_what_is_no_rule():
    assert WithholdingRule.of("5 %").share == pytest.approx(0.05)
    assert WithholdingRule.of(0.2).share == 0.2
    assert WithholdingRule.of({"unusual": "2 %"}) == WithholdingRule(unusual=0.02)
    assert str(WithholdingRule()) == "unusual at 1 %, wrong at a false discovery rate of 5 %"
    for rule in ("5", "five", 0, 1.0, True, "-1 %"):
        with pytest.raises(InvalidInputError, match="expected a share inside"):
            WithholdingRule.of(rule)
    with pytest.raises(InvalidInputError, match="'odd' is no level"):
        WithholdingRule.of({"odd": 0.1})


def test_inputs_that_do_not_fit_are_refused():
    rng = np.random.default_rng(9)
    x, y, law = drawn(rng, 100)
    split = prepare(x, input_kernel=RBF(0.5))
    with pytest.raises(InvalidInputError, match="x_new: 3 features, but the split has 2"):
        split.score_inputs(np.zeros((1, 3)), y, law)
    with pytest.raises(InvalidInputError, match="raw: 2 rows for 1 inputs"):
        split.score_inputs(np.zeros((1, 2)), y, law, raw=(x, np.zeros((2, 2))))
    with pytest.raises(InvalidInputError, match="groups: shape"):
        split.score_inputs(np.zeros((1, 2)), y, law, groups=[1, 2])
    with pytest.raises(InvalidInputError, match="prepare the split without query points"):
        prepare(x, query=x[:2], input_kernel=RBF(0.5)).score_inputs(x[:2], y, law)


def test_by_hand():
    curve = rejection_curve([4.0, 1.0, 3.0, 2.0], [40.0, 10.0, 30.0, 20.0], shares=5, largest=1.0)
    assert curve.withheld.tolist() == [0.0, 0.25, 0.5, 0.75]
    assert curve.kept_loss.tolist() == [25.0, 20.0, 15.0, 10.0]
    assert curve.threshold.tolist() == [4.0, 3.0, 2.0, 1.0]
    assert curve.random_loss == 25.0


@given(st.lists(st.tuples(st.floats(0, 1e3), st.floats(-1e3, 1e3)), min_size=2, max_size=60))
def test_nothing_withheld_is_the_mean_and_the_loss_itself_rejects_best(rows):
    criterion, loss = (np.array(column) for column in zip(*rows, strict=True))
    curve, best = rejection_curve(criterion, loss), rejection_curve(loss, loss)
    assert curve.kept_loss[0] == pytest.approx(loss.mean(), abs=1e-9)
    assert (best.kept_loss <= curve.kept_loss + 1e-9).all()
    assert (np.diff(curve.withheld) > 0).all()


def test_a_random_criterion_stays_in_the_band():
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(50):
        curve = rejection_curve(rng.uniform(size=400), rng.exponential(size=400))
        inside.append(((curve.kept_loss >= curve.random_low) & (curve.kept_loss <= curve.random_high))[1:90].mean())
    assert 0.9 < np.mean(inside) <= 1.0


def test_the_papers_example_rejects_what_is_wrong():
    """X ~ U(0, 2 pi), Y ~ N(X cos^2 X - sqrt(X + 3), (2|2 - X| + 1)/8); the model is a straight line."""
    rng = np.random.default_rng(1)

    def draw(n):
        x = rng.uniform(0, 2 * np.pi, n)
        spread = np.sqrt((2 * np.abs(2 - x) + 1) / 8)
        return x, rng.normal(x * np.cos(x) ** 2 - np.sqrt(x + 3), spread)

    (x, y), (new_x, new_y) = draw(800), draw(800)
    line = np.polyfit(x, y, 1)
    spread = np.std(y - np.polyval(line, x))
    model = Normal(np.polyval(line, x), np.full(800, spread))
    cce = prepare(x[:, None], query=new_x[:, None], input_kernel=RBF(0.5), regularization=1e-3)
    values = cce.conditional_congruence_error(y, model).values
    new = Normal(np.polyval(line, new_x), np.full(800, spread))
    for loss in (np.abs(new_y - new.mean()), -new.log_prob(new_y)):
        curve = rejection_curve(values, loss)
        tail = (curve.withheld >= 0.3) & (curve.withheld <= 0.9)
        assert (curve.kept_loss[tail] < curve.random_low[tail]).all()
        assert curve.gain > 0.1


def test_too_few_rows_and_other_lengths():
    with pytest.raises(InvalidInputError, match="at least two"):
        rejection_curve([1.0], [1.0])
    with pytest.raises(InvalidInputError, match="match row by row"):
        rejection_curve([1.0, 2.0], [1.0])
