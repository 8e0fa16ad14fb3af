"""A model of rates becomes one of counts by its exposure, and rates that are read as counts are refused."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from encoder_inputs import of_features
from logged_models import log_by_us
from pydantic import ValidationError
from sklearn.linear_model import PoissonRegressor

from congruence.kernels import NegativeBinomial, Normal, Poisson
from congruence.tasks.contract import ContractError, PredictionSettings, load_predictive_model
from congruence.tasks.contract.signature import EXPOSURE, exposed, require_counts
from congruence.tasks.data.split import open_split
from congruence.tasks.models.evaluated_rows import contract_rows, try_contract
from congruence.tasks.models.processes import ServedVersion
from congruence.tasks.models.registry import resolve
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.sections import TrackingSettings

ROWS = 4000


def policies(seed: int = 0) -> pd.DataFrame:
    """Claims of policies: a yearly rate by age and power, over a part of a year."""
    rng = np.random.default_rng(seed)
    age, power = rng.uniform(18, 80, ROWS), rng.integers(4, 10, ROWS)
    exposure = rng.uniform(0.05, 0.6, ROWS)
    rate = np.exp(-1.2 - 0.02 * (age - 40) + 0.1 * (power - 6))
    return pd.DataFrame({"age": age, "power": power, "Exposure": exposure, "claims": rng.poisson(rate * exposure)})


def glm(rows: pd.DataFrame) -> PoissonRegressor:
    """The insurer's: claims a year, weighted by the exposure."""
    model = PoissonRegressor(alpha=0.0, max_iter=300)
    return model.fit(rows[["age", "power"]], rows["claims"] / rows["Exposure"], sample_weight=rows["Exposure"])


def served(uri: str, registry_uri: str) -> ServedVersion:
    model = load_predictive_model(uri)
    return ServedVersion(resolve(uri), model.settings, TrackingSettings(uri=registry_uri))


def test_a_rate_model_is_a_count_model_in_one_word(registry: str, registry_uri: str, tmp_path: Path) -> None:
    rows, model = policies(), glm(policies(1))
    log_by_us(model, registry, rows.drop(columns="claims"), family="poisson", exposure="Exposure")
    log_by_us(model, registry, rows[["age", "power"]], family="poisson")
    loaded = load_predictive_model(f"models:/{registry}/1")
    assert loaded.input_columns == ("age", "power")
    law = loaded.predict(rows)
    assert isinstance(law, Poisson)
    np.testing.assert_allclose(law.rate, model.predict(rows[["age", "power"]]) * rows["Exposure"], rtol=1e-12)
    assert law.rate.sum() == pytest.approx(rows["claims"].sum(), rel=0.1)
    with pytest.raises(ContractError, match="add exposure: Exposure to the split"):
        loaded.predict(rows[["age", "power"]])

    rows.to_parquet(tmp_path / "policies.parquet")
    roles = {"target": "claims", "exposure": "Exposure"}
    split = open_split(of_features(tmp_path / "policies.parquet", ["age", "power"], **roles))
    frame, targets = contract_rows(split, 2048)
    assert targets is not None
    np.testing.assert_array_equal(frame[EXPOSURE], rows["Exposure"][:2048])
    np.testing.assert_allclose(loaded.predict(frame).mean(), law.rate[:2048], rtol=1e-12)
    assert try_contract(served(f"models:/{registry}/1", registry_uri), split).family == "poisson"
    with pytest.raises(ContractError, match="predicts rates that are read as counts: its mean prediction"):
        try_contract(served(f"models:/{registry}/2", registry_uri), split)


def test_predictions_of_a_file_name_the_exposure_of_every_split() -> None:
    split = {"uri": "a.parquet", "input": ["x"], "input_kind": "features", "target": "y"}
    content = {
        "splits": [split, split | {"name": "b", "exposure": "e"}],
        "encoder": {"kind": "identity"},
        "predictions": {"family": "poisson", "columns": {"rate": "out"}, "exposure": "Exposure"},
    }
    settings = EvaluationSettings.model_validate(content)
    assert [split.exposure for split in settings.splits] == ["Exposure", "e"]
    with pytest.raises(ValidationError, match="multiplies the mean of a distribution of counts"):
        PredictionSettings(family="normal", exposure="Exposure")
    plain, with_exposure = PredictionSettings(family="poisson"), PredictionSettings(family="poisson", exposure="e")
    assert "exposure" not in plain.digested()
    assert plain.digested() != with_exposure.digested()


def test_the_dispersion_is_that_of_the_rate() -> None:
    law = NegativeBinomial(np.array([2.0, 3.0]), np.array([0.5, 0.1]))
    found = exposed(law, np.array([0.5, 2.0]))
    np.testing.assert_allclose(found.mean(), [1.0, 6.0])
    np.testing.assert_allclose(found.std() ** 2, [1.0 + 0.5, 6.0 + 0.1 * 36.0])
    with pytest.raises(ContractError, match="normal is none that has one"):
        exposed(Normal(np.zeros(2), np.ones(2)), np.ones(2))


@pytest.mark.parametrize("factor", [1.0, 1.3, 0.6])
def test_counts_that_are_biased_are_not_taken_for_rates(factor: float) -> None:
    rows = policies()
    frame = rows[["age"]].assign(**{EXPOSURE: rows["Exposure"]})
    true = np.exp(-1.2 - 0.02 * (rows["age"] - 40) + 0.1 * (rows["power"] - 6)) * rows["Exposure"]
    require_counts("m/1", Poisson(factor * true.to_numpy()), frame, rows["claims"].to_numpy(float))
    with pytest.raises(ContractError, match="rates that are read as counts"):
        require_counts("m/1", Poisson(true.to_numpy() / rows["Exposure"].to_numpy()), frame, rows["claims"].to_numpy())
