"""Models logged in a real registry come back as predictive models, whatever made them."""

import errno
import re
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from logged_models import log_by_us, log_natively, newest, predicted
from mlflow import MlflowClient
from sklearn.linear_model import LinearRegression, PoissonRegressor, QuantileRegressor

from congruence.kernels.distributions import Distribution, Laplace, Normal, Poisson, Quantiles
from congruence.tasks.contract import ContractError, check_contract, log_predictive_model
from congruence.tasks.contract.model import failure_text
from congruence.tasks.models.registry import RegistryError, list_versions, resolve, select
from congruence.tasks.settings.sections import PredictionSettings

FRAME = pd.DataFrame({"a": np.linspace(0, 1, 12), "b": np.linspace(1, 2, 12)})
TARGET = 3 * FRAME["a"] + np.sin(40 * FRAME["b"])


class LaplaceHead(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.distributions.Laplace:
        loc, scale = self.dropout(self.linear(x)).unbind(1)
        return torch.distributions.Laplace(loc, torch.nn.functional.softplus(scale))


def loaded(name: str, model: Any, **settings: Any) -> Distribution:
    """Logged, registered, loaded by URI, checked, and asked for the rows of FRAME beside columns it must not see."""
    log_by_us(model, name, FRAME, **settings)
    found = newest(name)
    seen = FRAME.assign(target=TARGET, key="row")
    report = check_contract(found, seen, TARGET)
    assert report.rows == len(FRAME)
    assert report.warnings == ()
    return found.predict(seen)


def test_a_function_that_returns_a_distribution(registry: str) -> None:
    found = loaded(registry, lambda frame: Normal(frame["a"], frame["b"]))
    assert isinstance(found, Normal)
    np.testing.assert_allclose(found.scale, FRAME["b"])


def test_a_point_regressor_with_one_scale(registry: str) -> None:
    found = loaded(registry, LinearRegression().fit(FRAME, TARGET), family="normal", columns={"scale": 0.5})
    np.testing.assert_array_equal(found.std(), 0.5)


def test_a_regressor_of_counts_gives_their_mean(registry: str, recwarn: pytest.WarningsRecorder) -> None:
    frame = FRAME.assign(whole=np.arange(12))
    regressor = PoissonRegressor().fit(frame, np.arange(12) % 4)

    def logged(**settings: Any) -> Distribution:
        about = {"name": "m", "input_example": frame, "registered_model_name": registry}
        log_predictive_model(regressor, **about, **settings)
        return newest(registry).predict(frame)

    poisson = logged(family="poisson")
    assert isinstance(poisson, Poisson)
    np.testing.assert_allclose(poisson.mean(), regressor.predict(frame))
    wide = logged(family="negative_binomial", columns={"dispersion": 0.5})
    np.testing.assert_allclose(wide.mean(), regressor.predict(frame))
    assert not any("integer column" in str(told.message) for told in recwarn)  # MLflow's hint, five lines each time
    with pytest.raises(ContractError, match=r"columns=\{'dispersion': ...\} where it is logged"):
        logged(family="negative_binomial")


def test_the_package_of_a_regressor_is_among_its_requirements(registry: str) -> None:
    lightgbm = pytest.importorskip("lightgbm")
    model = lightgbm.LGBMRegressor(n_estimators=2, min_child_samples=1, verbose=-1).fit(FRAME, TARGET)
    loaded(registry, model, family="normal", columns={"scale": 1.0})
    needed = Path(mlflow.pyfunc.get_model_dependencies(list_versions(registry)[-1].uri)).read_text()
    assert f"lightgbm=={lightgbm.__version__}" in needed
    assert f"scikit-learn=={sklearn.__version__}" in needed


def test_a_regressor_per_quantile(registry: str) -> None:
    models = {level: QuantileRegressor(quantile=level, alpha=0).fit(FRAME, TARGET) for level in (0.9, 0.1, 0.5)}
    found = loaded(registry, models)
    assert isinstance(found, Quantiles)
    np.testing.assert_allclose(found.quantile(0.5), models[0.5].predict(FRAME))


def test_a_torch_module_that_returns_a_distribution(registry: str) -> None:
    found = loaded(registry, LaplaceHead(), family="laplace")  # dropout: only steady in evaluation mode
    assert isinstance(found, Laplace)


def test_a_torch_module_that_returns_a_matrix(registry: str) -> None:
    module = torch.nn.Linear(2, 2)  # columns loc and log variance, as many networks give them
    settings = {"columns": {"loc": "0", "scale": "1"}, "transforms": {"scale": "exp"}}
    found = loaded(registry, module, family="normal", **settings)
    raw = module(torch.as_tensor(FRAME.to_numpy(dtype=np.float32, copy=True))).detach().numpy()
    np.testing.assert_allclose(found.mean(), raw[:, 0], rtol=1e-5)
    np.testing.assert_allclose(found.std(), np.exp(raw[:, 1]), rtol=1e-5)


def test_a_model_of_another_flavour_needs_only_settings(registry: str) -> None:
    model = LinearRegression().fit(FRAME, np.column_stack([TARGET, np.ones(12)]))
    log_natively(model, registry, FRAME)
    with pytest.raises(ContractError, match=r"ndarray of shape \(12, 2\).*\(1\) predictions: .*\(3\) predictions: "):
        predicted(registry, FRAME)
    found = predicted(registry, FRAME, PredictionSettings(family="normal"))
    np.testing.assert_allclose(found.mean(), model.predict(FRAME)[:, 0])


def test_uris_names_and_aliases_find_their_versions(registry: str) -> None:
    for _ in range(2):
        loaded(registry, lambda frame: Normal(frame["a"], frame["b"]))
    MlflowClient().set_registered_model_alias(registry, "champion", "1")
    first, second = list_versions(registry)
    assert (first.version, second.version) == ("1", "2")
    assert first.aliases == ("champion",)
    assert first.model_id is not None
    assert resolve(f"models:/{registry}@champion") == first
    assert resolve(f"models:/{registry}/2") == second
    assert select(registry) == select(f"models:/{registry}") == [first, second]
    assert resolve(f"models:/{first.model_id}").model_id == first.model_id
    for wrong, remedy in (("3", r"has versions \[1, 2\]"), ("latest/x", "not a model URI")):
        with pytest.raises(RegistryError, match=remedy):
            resolve(f"models:/{registry}/{wrong}")
    with pytest.raises(RegistryError, match="registered models: "):
        select("nobody")


def test_a_wrong_description_is_refused_before_logging(registry: str) -> None:
    line = LinearRegression().fit(FRAME, TARGET)
    for model, settings, said in (
        (line, {"family": "normal"}, "parameter 'scale' is missing"),
        (line, {}, "give family="),
        (3, {"family": "normal"}, "is no model"),
    ):
        with pytest.raises(ContractError, match=said):
            log_predictive_model(model, name=registry, input_example=FRAME, **settings)


def _standardised_in_the_batch(frame: pd.DataFrame) -> Normal:
    return Normal((frame["a"] - frame["a"].mean()) / frame["a"].std(), np.ones(len(frame)))


def _drops_a_row(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"loc": frame["a"], "scale": 1.0}).iloc[: max(1, 20 - len(frame))]


def _raises(frame: pd.DataFrame) -> pd.DataFrame:
    if len(frame) == 6:
        raise KeyError("weights of half a batch")
    return pd.DataFrame({"loc": frame["a"], "scale": 1.0})


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_standardised_in_the_batch, r"depends on the rest of the batch or on chance"),
        (_drops_a_row, r"'loc' has shape \(8,\) for 12 input rows"),
        (_raises, r"predict failed on rows 0 to 5: KeyError: 'weights of half a batch'"),
    ],
)
def test_the_check_finds_what_would_go_wrong_later(registry: str, function: Any, message: str) -> None:
    log_by_us(function, registry, FRAME.head(8), family="normal")
    with pytest.raises(ContractError, match=message) as caught:
        check_contract(newest(registry), FRAME)
    assert str(caught.value).startswith(f"{registry}/")


def test_the_check_compares_targets_with_the_family(registry: str) -> None:
    log_by_us(lambda f: pd.DataFrame({"rate": f["b"]}), registry, FRAME, family="poisson")
    model = newest(registry)
    with pytest.raises(ContractError, match=r"is for counts, but the target of row 0 is 0.5"):
        check_contract(model, FRAME, np.full(12, 0.5))
    with pytest.raises(ContractError, match=r"predicts shape \(12,\) for targets of shape \(12, 2\)"):
        check_contract(model, FRAME, np.ones((12, 2)))
    with pytest.raises(ContractError, match="asks for input column 'b', but the split gives 'a'"):
        model.predict(FRAME[["a"]])
    assert "units" in check_contract(model, FRAME, np.full(12, 1e6)).warnings[0]
    whole = FRAME.assign(a=np.arange(12), b=np.arange(1, 13))
    np.testing.assert_array_equal(model.predict(whole).mean(), whole["b"])


def test_a_full_disk_is_no_fault_of_the_model(tmp_path: Path) -> None:
    """Predictions that found no room were 'predict failed on rows 0 to 1999: OSError: [Errno 28]' and no more."""
    said = failure_text(OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "outputs.npy")))
    assert re.search(rf"No space left .*: the disk that holds {tmp_path} \(\d+ MiB free\) is full; make room; ", said)
    assert failure_text(OSError(errno.ENOENT, "No such file")) == "FileNotFoundError: [Errno 2] No such file"
