"""How usual inputs are: exact by the definition, level by simulation, and the reasons that people read."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta
from sklearn.covariance import LedoitWolf

from congruence.kernels import RBF, InvalidInputError, prepare
from congruence.kernels.trust.columns import PICTURE_COLUMNS, SMALLEST, ColumnRanges, picture_statistics
from congruence.kernels.trust.support import NEIGHBOUR, Support, effective_rows
from congruence.tasks.sentences.inputs import Rows, held, unusual_reason


def test_p_values_by_the_definition():
    rng = np.random.default_rng(0)
    x, query = rng.normal(size=(120, 3)), rng.normal(size=(40, 3)) * 2
    support = Support.of(x)
    held = np.setdiff1d(np.arange(120), support.neighbours)

    near = x[support.neighbours]
    scale = near.std(axis=0)
    precision = np.linalg.inv(LedoitWolf().fit(near / scale).covariance_)

    def lengths(point):
        apart = (near - point) / scale
        return np.sqrt(np.einsum("ij,jk,ik->i", apart, precision, apart))

    def score(point):
        return np.sort(lengths(point))[NEIGHBOUR - 1]

    known = np.array([score(point) for point in x[held]])
    expected = [(1 + np.sum(known >= score(point))) / (1 + len(held)) for point in query]
    np.testing.assert_allclose(support.at(query).p_values, expected)
    first = np.argsort(lengths(query[0]), kind="stable")
    assert support.at(query).nearest[0].tolist() == support.neighbours[first[:NEIGHBOUR]].tolist()


@pytest.mark.parametrize("features", [2, 12])
def test_at_most_the_stated_share_of_ordinary_inputs_is_unusual(features):
    """The share over splits is known exactly: a mean of Beta-distributed ones, here of 25 splits of 500 inputs."""
    rng = np.random.default_rng(1)
    mixing = rng.normal(size=(features, features))
    shares = []
    for seed in range(25):
        x, new = (np.exp(0.7 * rng.normal(size=(n, features))) @ mixing for n in (400, 500))
        support = Support.of(x, seed=seed)
        shares.append(support.at(new).unusual(0.05).mean())
    held = len(support.held_out)
    largest = np.floor(0.05 * (held + 1))
    spread = beta.std(largest, held + 1 - largest)
    assert np.mean(shares) <= 0.05 + 3 * np.sqrt(spread**2 + 0.05 * 0.95 / 500) / np.sqrt(25)
    assert np.mean(shares) > 0.03


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.floats(-5, 5), st.floats(0.1, 10))
def test_moves_and_scales_of_the_space_change_nothing(seed, shift, scale):
    rng = np.random.default_rng(seed)
    x, new = rng.normal(size=(80, 2)), rng.normal(size=(20, 2)) * 3
    plain, moved = Support.of(x).at(new), Support.of(x * scale + shift).at(new * scale + shift)
    np.testing.assert_allclose(moved.p_values, plain.p_values, atol=1.01 / 41)  # a tie may fall either way


def test_inputs_far_from_all_rows_are_as_unusual_as_can_be_said():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(400, 5)).astype(np.float32)
    x[:5] = 50.0  # a few impossible rows of the split itself vouch for nothing
    support = Support.of(x)
    far = support.at(np.full((3, 5), 50.0, dtype=np.float32))
    assert (far.p_values <= 0.05).all()
    assert support.at(np.full((1, 5), 500.0)).p_values[0] == 1.0 / (len(support.held_out) + 1)
    assert "500" not in repr(support)


def test_a_combination_that_no_row_has_is_far_though_plain_distance_is_small():
    """Two features that go together, and one that varies more than the combination is off."""
    rng = np.random.default_rng(6)
    both = rng.normal(size=2000)
    x = np.stack([both, both + 0.05 * rng.normal(size=2000), 3 * rng.normal(size=2000)], axis=1)
    strange = np.array([[0.5, -0.5, 0.0]])
    support = Support.of(x)
    assert support.at(strange).p_values[0] == 1.0 / (len(support.held_out) + 1)
    assert support.at(x[:50] + np.array([0.0, 0.0, 0.5])).unusual(0.05).mean() < 0.3


def test_vectors_of_an_encoder_that_were_normalised_or_are_zeros_are_far():
    rng = np.random.default_rng(7)
    x = (rng.normal(size=(600, 32)) + 3 * rng.normal(size=32)).astype(np.float32)
    support = Support.of(x)
    unit = x[:20] / np.linalg.norm(x[:20], axis=1, keepdims=True)
    assert support.at(unit).unusual().all()
    assert support.at(np.zeros((1, 32), dtype=np.float32)).unusual().all()


def test_constant_features_and_repeated_ones_are_no_obstacle():
    rng = np.random.default_rng(8)
    x = rng.normal(size=(300, 2))
    x = np.column_stack([x, x[:, 0], np.ones(300)])
    support = Support.of(x)
    new = rng.normal(size=(300, 2))
    new = np.column_stack([new, new[:, 0], np.ones(300)])
    assert support.at(new).unusual(0.05).mean() < 0.12
    assert support.at(new[:1] + np.array([0.0, 0.0, 0.0, 1.0])).unusual().all()
    assert support.at(new[:1] + np.array([0.0, 0.0, 1.0, 0.0])).unusual().all()


def test_groups_are_held_out_whole():
    rng = np.random.default_rng(3)
    groups = np.repeat(np.arange(40), 40)

    def patients():
        return np.repeat(rng.normal(size=(40, 2)), 40, axis=0) + 1e-3 * rng.normal(size=(1600, 2))

    x, new = patients(), patients()
    support = Support.of(x, groups=groups)
    held = np.setdiff1d(np.arange(1600), support.neighbours)
    assert not set(groups[held]) & set(groups[support.neighbours])
    assert support.at(new).unusual(0.05).mean() < 0.25
    assert Support.of(x).at(new).unusual(0.05).mean() > 0.5


@pytest.fixture(scope="module")
def drivers():
    rng = np.random.default_rng(4)
    n = 1000
    area = rng.choice(["A", "B", "C"], n)
    return pd.DataFrame(
        {
            "DrivAge": rng.integers(18, 100, n),
            "BonusMalus": np.round(50 + rng.exponential(20, n), 1),
            "Area": area,
            "gas_diesel": (gas := rng.integers(0, 2, n)),
            "gas_regular": 1 - gas,
        }
    )


def vectors(table):
    numbers = table[["DrivAge", "BonusMalus", "gas_diesel", "gas_regular"]].to_numpy(float)
    return (numbers - [58, 70, 0.5, 0.5]) / [23, 20, 0.5, 0.5]


def test_values_that_no_row_comes_near_are_named(drivers):
    support = Support.of(vectors(drivers), columns=drivers)
    new = pd.concat([drivers.iloc[:6]], ignore_index=True).astype({"DrivAge": float, "Area": object})
    new.loc[0, "DrivAge"] = 200
    new.loc[1, "Area"] = "Z"
    new.loc[2, "gas_diesel"], new.loc[2, "gas_regular"] = 0, 0
    new.loc[3, "Area"] = None
    new.loc[4, "BonusMalus"] = -60.0
    x = vectors(new)
    read = support.at(x, new)
    assert (read.p_values[:5] == 1.0 / (len(support.held_out) + 1)).all()
    assert read.p_values[5] > 0.01
    said = [unusual_reason(support, read, row, Rows(vectors(drivers), drivers), Rows(x, new)) for row in range(5)]
    assert said[0].startswith("DrivAge 200: the split holds 18 to 99; nearest rows ")
    assert said[1].startswith("Area Z: the split holds A, B and C; nearest rows ")
    assert said[2].startswith("gas_diesel to gas_regular: none of the 2 is 1, always exactly one in the split; ")
    assert said[3].startswith("Area missing, in the split it never is; ")
    assert said[4].startswith("BonusMalus -60: the split holds 50 to ")


@pytest.mark.parametrize(("rows", "low", "high"), [(4000, -5.0, 140.0), (300, -300.0, 1500.0)])
def test_how_far_beyond_the_range_is_outside_depends_on_the_rows(rows, low, high):
    """A long column is exceeded by hardly an ordinary row, a short one by many."""
    rng = np.random.default_rng(9)

    def ages(n):
        return pd.DataFrame({"age": rng.uniform(0, 100, n), "premium": np.exp(rng.normal(4, 0.5, n))})

    table = ages(rows)
    x = np.log1p(np.abs(table.to_numpy()))
    support = Support.of(x, columns=table)
    at = pd.DataFrame({"age": [low, high, 50.0], "premium": [50.0, 50.0, 50.0]})
    read = support.at(np.full((3, 2), np.log(50.0)), at)
    assert read.unusual().tolist() == [True, True, False]
    assert unusual_reason(support, read, 0, Rows(x, table), Rows(x[:1], at)).startswith(
        f"age {low:.6g}: the split holds "
    )
    shares = [(support.columns.beyond(ages(1000)) > 0).any(axis=1).mean() for _ in range(5)]
    assert np.mean(shares) < 0.005


def test_what_is_far_beyond_a_range_is_found_though_a_held_out_row_is_a_little_beyond_it():
    """Of 121 held-out rows one outside is one too many for p <= 1 %, unless the input is further outside."""
    rng = np.random.default_rng(12)
    table = pd.DataFrame({"age": rng.uniform(20, 80, 363)})
    x = table.to_numpy()
    held = np.setdiff1d(np.arange(363), Support.of(x, columns=table).neighbours)
    table.loc[held[0], "age"] = 150.0
    support = Support.of(x, columns=table)
    at = pd.DataFrame({"age": [140.0, 200.0, np.nan]})
    read = support.at(np.full((3, 1), 50.0), at)
    assert read.outside.all()
    assert read.unusual(1 / len(support.held_out)).tolist() == [False, True, True]


def drawn_pictures(rng, n):
    """Smooth shades of some contrast and colour, (n, 48, 64, 3)."""
    across, down = np.linspace(0, 1, 64), np.linspace(0, 1, 48)[:, None]
    waves = np.stack([np.sin(2 * np.pi * (a * across + b * down + c)) for a, b, c in rng.uniform(0.5, 3, (n, 3))])
    shades = 120 + rng.uniform(25, 60, (n, 1, 1)) * waves + rng.normal(scale=4, size=waves.shape)
    return np.clip(shades[..., None] + rng.normal(scale=15, size=(n, 1, 1, 3)), 0, 255).astype(np.uint8)


def test_noise_and_blank_pictures_are_seen_by_their_pixels_whatever_the_encoder_says():
    """The vectors are drawn from one law for all: an encoder that sees no difference."""
    rng = np.random.default_rng(11)

    def looks(pictures):
        return pd.DataFrame([picture_statistics(one) for one in pictures], columns=list(PICTURE_COLUMNS))

    known, ordinary = drawn_pictures(rng, 240), drawn_pictures(rng, 300)
    x, new = rng.normal(size=(240, 8)), rng.normal(size=(300, 8))
    support = Support.of(x, columns=looks(known))
    assert support.at(new, looks(ordinary)).unusual().mean() <= 0.03
    noise = looks(rng.integers(0, 256, (20, 48, 64, 3)))
    blank = looks(np.full((20, 48, 64, 3), np.arange(0, 256, 13)[:20, None, None, None]))
    for strange, name in ((noise, "roughness 1.4"), (blank, "one shade, or black or white")):
        read = support.at(new[:20], strange)
        assert read.unusual().all()
        assert name in unusual_reason(support, read, 5, Rows(x, looks(known)), Rows(new[:20], strange))
    few = Support.of(x[:152], columns=looks(known[:152])).at(new[:20], blank)
    assert few.unusual().all()  # though 76 held-out rows show no level below 1.3 %
    with_blank = Support.of(x, columns=pd.concat([looks(known[:-2]), blank[:2]]))
    assert np.all(with_blank.at(new[:20], blank).p_values > 0.0)
    far = support.at(50 + new[:1], looks(ordinary[:1]))
    assert unusual_reason(support, far, 0, Rows(x, looks(known)), Rows(50 + new[:1], looks(ordinary[:1]))).startswith(
        "few rows near it: its"
    )


def test_what_a_picture_is_like_by_the_definition():
    checks = np.indices((64, 64)).sum(axis=0) % 2 * 255
    brightness, contrast, detail, roughness, colourfulness = picture_statistics(np.stack([checks] * 3, axis=2))
    assert [brightness, contrast, detail, roughness] == pytest.approx([0.5, 0.5, 1.0, 2.0])
    assert colourfulness == SMALLEST
    red = picture_statistics(np.full((4, 4, 3), (255, 0, 0)))
    assert red[0] == pytest.approx(0.299)
    assert red[4] == pytest.approx(np.sqrt((0.701**2 + 0.299**2) / 2))
    assert red[1] == SMALLEST


def test_a_combination_is_told_by_what_the_nearest_rows_have():
    rng = np.random.default_rng(5)
    age = rng.uniform(20, 80, 800)
    table = pd.DataFrame({"age": age, "years driving": age - 20 + rng.normal(size=800)})
    x = (table.to_numpy() - 50) / 17
    support = Support.of(x, columns=table)
    new = pd.DataFrame({"age": [25.0], "years driving": [50.0]})
    query = (new.to_numpy() - 50) / 17
    read = support.at(query, new)
    assert read.unusual(0.01).all()
    said = unusual_reason(support, read, 0, Rows(x, table, [f"policy-{row}" for row in range(800)]), Rows(query, new))
    assert "the nearest rows have" in said
    assert "nearest rows policy-" in said
    vector = Support.of(x)
    assert "few rows near it: its" in unusual_reason(vector, vector.at(query), 0, Rows(x), Rows(query))


def test_columns_of_names_that_are_new_in_every_row_judge_nothing(drivers):
    named = drivers.assign(policy=[f"p{row}" for row in range(len(drivers))])
    ranges = ColumnRanges.of(named)
    new = named.iloc[:50].assign(policy=[f"q{row}" for row in range(50)])
    assert not ranges.beyond(new).any()
    assert (ranges.beyond(new.assign(policy=None)) > 0).sum() == 50
    assert held(ranges.named("policy")).endswith("other values")


def test_what_cannot_be_read_is_refused(drivers):
    with pytest.raises(InvalidInputError, match="39 rows; at least 40"):
        Support.of(np.zeros((39, 2)))
    with pytest.raises(InvalidInputError, match="columns: 999 rows for 1000"):
        Support.of(vectors(drivers), columns=drivers.iloc[1:])
    support = Support.of(vectors(drivers), columns=drivers)
    with pytest.raises(InvalidInputError, match="columns: none for 1 inputs"):
        support.at(np.zeros((1, 4)))
    with pytest.raises(InvalidInputError, match="no Area, which the split has"):
        support.at(np.zeros((1, 4)), drivers.iloc[:1].drop(columns="Area"))
    with pytest.raises(InvalidInputError, match="x: 3 features, but the rows of the split have 4"):
        support.at(np.zeros((1, 3)), drivers.iloc[:1])
    with pytest.raises(InvalidInputError, match="groups: all rows are of one group"):
        Support.of(np.zeros((50, 2)), groups=np.zeros(50))


def test_effective_rows_by_the_definition_and_none_far_away():
    rng = np.random.default_rng(6)
    x, query = rng.normal(size=(200, 1)), np.array([[0.0], [2.5], [100.0]])
    split = prepare(x, query=query, input_kernel=RBF(2.0), regularization=1e-3)
    found = effective_rows(split.smoother)
    a = np.linalg.solve(RBF(2.0)(x) + 0.2 * np.eye(200), RBF(2.0)(x, query))
    np.testing.assert_allclose(found[0], a[:, 0].sum() ** 2 / (a[:, 0] ** 2).sum(), rtol=0.02)
    assert found[0] > 3 * found[1] > 0
    assert found[2] == pytest.approx(0.0, abs=1e-6)
