"""An evaluation file is refused whole, before any work, in lines that name file, key, value and remedy.

What changes a number changes the digest, and nothing else does.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

from congruence.kernels import EXACT, PREPRINT, Matern
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.settings.evaluation import EvaluationSettings, contract_digest, load_settings, settings_digest

GOOD: dict[str, Any] = {
    "models": ["models:/angle/1"],
    "splits": [{"uri": "data/test.parquet", "input": "image", "target": "angle"}],
    "encoder": {"kind": "open_clip", "model": "compact"},
}


def write(folder: Path, content: Any) -> Path:
    path = folder / "evaluation.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def changed(path: str, value: Any) -> dict[str, Any]:
    content: Any = yaml.safe_load(yaml.safe_dump(GOOD))
    place = content
    *parents, last = path.split(".")
    for part in parents:
        place = place[int(part)] if part.isdigit() else place.setdefault(part, {})
    place[last] = value
    return dict(content)


def test_a_good_file_with_paths_relative_to_itself(tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path, GOOD))
    assert settings.splits[0].uri == str(tmp_path / "data/test.parquet")
    assert settings.protocol.protocol() == EXACT


def test_checkpoints_are_relative_to_the_file_and_tags_stay(tmp_path: Path) -> None:
    model = {"kind": "open_clip", "model": "ViT-B-32"}
    for given, found in (
        ("mine.safetensors", str(tmp_path / "mine.safetensors")),
        ("weights/mine.pt", str(tmp_path / "weights/mine.pt")),
        ("/weights/mine.pt", "/weights/mine.pt"),
        ("laion2b_s34b_b79k", "laion2b_s34b_b79k"),
    ):
        settings = load_settings(write(tmp_path, changed("encoder", model | {"pretrained": given})))
        assert settings.encoder.pretrained == found
    for given, found in (("local-dir:mine", f"local-dir:{tmp_path}/mine"), ("hf-hub:own/mine", "hf-hub:own/mine")):
        assert load_settings(write(tmp_path, changed("encoder", {"model": given}))).encoder.model == found


def test_versions_run_in_the_workers_process_unless_it_is_said(tmp_path: Path) -> None:
    assert load_settings(write(tmp_path, GOOD)).predict.isolation == "none"
    said = load_settings(write(tmp_path, changed("predict", {"isolation": "environment", "timeout": 60}))).predict
    assert (said.isolation, said.timeout, said.build_timeout) == ("environment", 60.0, 1800.0)


def test_addresses_stay_as_they_are(tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path, changed("splits.0.uri", "s3://bucket/test")))
    assert settings.splits[0].uri == "s3://bucket/test"


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (changed("encodr", {}), ["encodr: there is no such key", "did you mean 'encoder'?"]),
        (changed("encoder.modle", "x"), ["encoder.modle: there is no such key", "did you mean 'model'?"]),
        (changed("splits.0.tagret", "x"), ["splits.0.tagret: there is no such key", "did you mean 'target'?"]),
        (changed("max_invalid", "many"), ["max_invalid:", "number", "(found 'many')"]),
        (changed("cluster", {"kind": "kluster"}), ["cluster.kind:", "'local'", "(found 'kluster')"]),
        (changed("cluster", {"kind": "address"}), ["cluster:", "tcp://host:8786"]),
        (changed("protocol", "icml"), ["protocol.base:", "'exact', 'preprint' or 'ecai'", "(found 'icml')"]),
        (changed("protocol", {"regularization": -1}), ["protocol.regularization:", "greater than 0", "(found -1)"]),
        (changed("protocol", {"input_kernel": {"kind": "rbf"}}), ["protocol.input_kernel:", "gamma: 0.5"]),
        (changed("splits", []), ["splits:", "at least 1"]),
        (changed("splits.0.input", 3), ["splits.0.input: input should be a valid string, or Input should be a valid"]),
        (changed("encoder.batch_size", "big"), ["encoder.batch_size: ", "or Input should be 'auto' (found 'big')"]),
        (changed("splits.0.slices", ["a", "a"]), ["splits.0: slices: names the column 'a' twice; name it once"]),
        (changed("metrics", ["ccee"]), ["metrics", "'ccee'", "cce"]),
        (changed("predict.isolation", "docker"), ["predict.isolation:", "'none' or 'environment' (found 'docker')"]),
        (changed("predict.timeout", 0), ["predict.timeout: input should be greater than 0"]),
        (changed("predict.isolated", True), ["predict.isolated: there is no such key; did you mean 'isolation'?"]),
        ({key: value for key, value in GOOD.items() if key != "encoder"}, ["encoder: is missing; add it"]),
        ("splits: [", ["is not valid YAML"]),
        ("home: a\ngate:\n  maximum: {}\nhome: b\n", [", line 4: home: stands there twice; keep one of them"]),
        ("gate:\n  - a: 1\n    a: 2\n", [", line 3: a: stands there twice"]),
        ("gate:\n  maximum: {cce_mean: 1:30}\n", [", line 2: 1:30 is a number to base 60 in YAML"]),
        (changed("gate", {"maximum": {"cce_mean": True}}), ["gate.maximum: cce_mean: is true, as YAML reads yes"]),
        (changed("max_invalid", True), ["max_invalid: is true, as YAML reads yes and no"]),
        (changed("models", "price"), ["models: expected a list; write [price]"]),
        (changed("splits", GOOD["splits"][0]), ["splits: expected a list; begin each of its entries with a dash"]),
        (changed("encoder", "identity"), ["encoder: is 'identity', expected keys: batch_size, "]),
        ("- a\n- b\n", ["expected keys such as splits: and encoder:, found list"]),
        ("", ["expected keys such as splits: and encoder:, it is empty"]),
    ],
)
def test_what_is_wrong_is_named_with_its_remedy(tmp_path: Path, content: Any, parts: list[str]) -> None:
    path = write(tmp_path, content)
    with pytest.raises(SettingsError) as caught:
        load_settings(path)
    for part in [str(path), *parts]:
        assert part in str(caught.value)


def test_every_problem_gets_a_line(tmp_path: Path) -> None:
    content = changed("encodr", {}) | {"max_invalid": 7}
    with pytest.raises(SettingsError) as caught:
        load_settings(write(tmp_path, content))
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize("name", ["mean", "cce", "key", "reason", "calibration_region", "row_time"])
def test_a_slice_that_is_named_as_a_score_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match=f"slice column '{name}', which is the name of a column of scores"):
        load_settings(write(tmp_path, changed("splits.0.slices", [name])))


def test_two_splits_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="two splits are named 'test'"):
        load_settings(write(tmp_path, GOOD | {"splits": GOOD["splits"] * 2}))


def test_paths_may_begin_with_the_user_s_folder(tmp_path: Path) -> None:
    split = GOOD["splits"][0] | {"uri": "~/a.parquet"}
    found = load_settings(write(tmp_path, GOOD | {"splits": [split], "home": "~/runs"}))
    assert found.splits[0].uri == str(Path.home() / "a.parquet")
    assert found.home_folder == (Path.home() / "runs").resolve()


def test_a_missing_file() -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.yaml: cannot be read"):
        load_settings(Path("nowhere.yaml"))


def test_protocols_by_name_and_changed() -> None:
    def of(value: Any) -> Any:
        return EvaluationSettings.model_validate(GOOD | {"protocol": value}).protocol.protocol()

    assert of("preprint") == PREPRINT
    matern = of({"base": "exact", "input_kernel": {"kind": "matern", "nu": 2.5}})
    assert matern.input_kernel == Matern(2.5)
    assert matern.digest != EXACT.digest
    assert of({"base": "exact", "name": "ours"}).digest == EXACT.digest


def test_secrets_do_not_show_in_a_printed_settings_value() -> None:
    split = GOOD["splits"][0] | {"storage_options": {"key": "AKIA", "secret": "hush-hush"}}
    shown = repr(EvaluationSettings.model_validate(GOOD | {"splits": [split]}))
    assert "hush-hush" not in shown


def test_secrets_are_not_written_out_as_json_which_prefect_and_mlflow_store() -> None:
    split = GOOD["splits"][0] | {"storage_options": {"key": "AKIA", "client": {"secret": "hush-hush"}}}
    tracking = {"uri": "https://me:hush-hush@mlflow.example"}
    settings = EvaluationSettings.model_validate(GOOD | {"splits": [split], "tracking": tracking})
    written = settings.model_dump_json()
    assert "hush-hush" not in written
    assert "AKIA" not in written
    assert "mlflow.example" in written
    assert settings.splits[0].storage_options["client"] == {"secret": "hush-hush"}


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
