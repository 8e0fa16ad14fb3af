"""timm backbones, tabular features and encoders of one's own."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pydantic import ValidationError
from safetensors.torch import save_file
from saved_pictures import noise, saved

from congruence.kernels.errors import InvalidInputError
from congruence.tasks.encoders.base import Encoder, InvalidRow
from congruence.tasks.encoders.loading import Moments, load_encoder, statistics, what_it_knows
from congruence.tasks.encoders.open_clip_import import timm
from congruence.tasks.settings.sections import EncoderSettings


@pytest.fixture(scope="module")
def picture() -> bytes:
    return saved(noise(100, 80, 1), "JPEG")


def test_a_timm_checkpoint_gives_timms_own_features(tmp_path: Path, picture: bytes) -> None:
    torch.manual_seed(3)
    trained = timm.create_model("test_vit", num_classes=7).eval()
    path = tmp_path / "mine.safetensors"
    save_file(trained.state_dict(), path)
    encoder = load_encoder(EncoderSettings(kind="timm", model="test_vit", pretrained=str(path), device="cpu"))
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(trained), is_training=False)
    with torch.inference_mode():
        features = trained.forward_features(transform(Image.open(io.BytesIO(picture)).convert("RGB"))[None])
        expected = trained.forward_head(features, pre_logits=True).numpy()
    np.testing.assert_allclose(encoder.encode([encoder.preprocess(picture)]), expected, atol=1e-6)
    assert encoder.dimension == expected.shape[1]
    assert encoder.id.startswith("timm:test_vit/mine.safetensors:")


@given(st.lists(st.lists(st.integers(-(10**8), 10**8).map(lambda i: i / 100), min_size=3, max_size=3), min_size=2))
def test_features_are_standardised_by_their_own_statistics(rows: list[list[float]]) -> None:
    data = np.array(rows)
    mean, scale = statistics(Moments.of(data))
    np.testing.assert_allclose(mean, data.mean(axis=0), rtol=1e-9, atol=1e-6)
    np.testing.assert_allclose(scale, np.where(np.ptp(data, axis=0) > 0, data.std(axis=0), 1.0), rtol=1e-5, atol=1e-4)
    encoder = load_encoder(EncoderSettings(kind="identity", mean=mean, scale=scale))
    embeddings = encoder.encode([encoder.preprocess(row) for row in rows])
    np.testing.assert_allclose(embeddings, (data - mean) / scale, rtol=1e-5, atol=1e-6)


def test_statistics_do_not_depend_on_how_rows_are_scaled_or_shifted() -> None:
    """A constant feature is exactly constant, large offsets cost no digits."""
    rng = np.random.default_rng(2)
    data = np.column_stack([rng.normal(size=3000), 1e6 + 1e-3 * rng.normal(size=3000), np.full(3000, 0.1)])
    mean, scale = statistics(Moments.of(data))
    np.testing.assert_allclose(mean, data.mean(axis=0), rtol=1e-12, atol=1e-12)
    exact = np.sqrt(((data - data.mean(axis=0)) ** 2).mean(axis=0))
    np.testing.assert_allclose(scale, [exact[0], exact[1], 1.0], rtol=1e-9)
    assert scale[2] == 1.0


def test_statistics_that_cannot_be_fitted_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="no row of finite features with 2 values"):
        statistics(Moments.of(np.array([[1.0], [2.0]])), 2)
    with pytest.raises(InvalidInputError, match="feature 1 is too large"):
        statistics(Moments.of(np.array([[1.0, 1e200], [1.0, -1e200]])))


def test_features_without_statistics_are_left_as_they_are() -> None:
    encoder = load_encoder(EncoderSettings(kind="identity", dimension=2, standardise=False))
    np.testing.assert_array_equal(encoder.encode([encoder.preprocess([1, 2.5])]), [[1.0, 2.5]])
    scaled = load_encoder(EncoderSettings(kind="identity", scale=(1.0, 2.0)))
    assert scaled.preprocessing_digest != encoder.preprocessing_digest
    assert scaled.input_kind == "features"


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ([1.0, float("nan")], "feature 1 is nan"),
        ([float("inf"), float("nan")], "feature 0 is inf and 1 more"),
        ([1.0], "shape"),
        ([[1.0, 2.0]], "shape"),
        (["a", "b"], "not numbers"),
        (None, "shape"),
    ],
)
def test_features_that_cannot_be_used_say_why(raw: object, says: str) -> None:
    with pytest.raises(InvalidRow, match=says):
        load_encoder(EncoderSettings(kind="identity", dimension=2, standardise=False)).preprocess(raw)


OWN_ENCODER = """
import numpy as np
from congruence.tasks.encoders.base import Encoder
from congruence.tasks.encoders.loading import what_it_knows

class Brightness(Encoder):
    id, preprocessing_digest, dimension, input_kind = "brightness", "none", 1, "image"
    def __init__(self, gain=1.0):
        self.gain = gain
    def preprocess(self, raw):
        return len(raw)
    def encode(self, batch):
        return self.gain * np.asarray(batch, dtype=np.float32)[:, None]

def not_an_encoder():
    return 3
"""


def test_an_encoder_of_ones_own_by_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_encoder.py").write_text(OWN_ENCODER)
    monkeypatch.syspath_prepend(str(tmp_path))
    encoder = load_encoder(EncoderSettings(kind="custom", path="own_encoder:Brightness", options={"gain": 2.0}))
    assert isinstance(encoder, Encoder)
    np.testing.assert_array_equal(encoder.encode([encoder.preprocess(b"abc")]), [[6.0]])
    for path, said in (
        ("own_encoder:not_an_encoder", "returned int"),
        ("own_encoder:Brightnes", "no callable 'Brightnes'"),
        ("no_such_module:make", "cannot be imported"),
        ("own_encoder.Brightness", "not of the form"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            load_encoder(EncoderSettings(kind="custom", path=path))


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"kind": "timm", "model": "resnet188"}, r"'resnet188' is unknown to timm .* resnet18"),
        ({"kind": "timm", "model": "resnet18.mine"}, r"no tag 'mine'; it has a1_in1k"),
        ({"kind": "timm", "model": "resnet18", "pretrained": "a1_in1k"}, "is no file"),
        ({"model": "ViT-B-33", "pretrained": "openai"}, r"'ViT-B-33' is unknown .* near it are ViT-B-32"),
        ({"model": "ViT-B-32", "pretrained": "laion9b"}, r"'laion9b' is neither a file nor a tag .* laion2b_s34b_b79k"),
        ({"model": "ViT-B-32"}, r"needs encoder\.pretrained: one of openai"),
        ({"model": "compact", "pretrained": "openai"}, "brings its own weights"),
        ({"kind": "identity", "dimension": 2}, "neither given nor fitted"),
    ],
)
def test_what_is_unknown_is_named_with_what_is_known(asked: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        load_encoder(EncoderSettings.model_validate(asked))


@pytest.mark.parametrize(
    ("given_settings", "says"),
    [
        ({"kind": "clip"}, "kind"),
        ({"modle": "ViT-B-32"}, "modle"),
        ({"kind": "timm"}, "needs a model"),
        ({"kind": "custom"}, "needs a path"),
        ({"kind": "identity", "standardise": False}, "needs dimension"),
        ({"kind": "identity", "standardise": False, "scale": [2.0]}, "contradicts mean and scale"),
        ({"standardise": False}, "belong to kind 'identity'"),
        ({"batch_size": "automatic"}, "batch_size"),
        ({"kind": "identity", "dimension": 3, "mean": [0.0, 1.0]}, "number of features differs: dimension 3, mean 2"),
        ({"kind": "identity", "dimension": 3, "model": "compact"}, "takes no model"),
        ({"kind": "identity", "scale": [0.0]}, "greater than 0"),
        ({"dimension": 3}, "belong to kind 'identity'"),
        ({"path": "a:b"}, "belong to kind 'custom'"),
        ({"device": "gpu"}, "device"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_settings_that_contradict_themselves_are_refused(given_settings: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        EncoderSettings.model_validate(given_settings)


def test_settings_survive_json() -> None:
    for settings in (
        EncoderSettings(),
        EncoderSettings(kind="identity", mean=(0.1, 0.2), scale=(1.0, 3.0)),
        EncoderSettings(kind="timm", model="resnet18"),
        EncoderSettings.model_validate({"batch_size": "auto"}),
        EncoderSettings(kind="custom", path="own:make", options={"gain": 2.0}),
    ):
        assert EncoderSettings.model_validate_json(settings.model_dump_json()) == settings


def test_tabular_features_need_no_torch() -> None:
    program = (
        "import sys; from congruence.tasks.encoders.loading import load_encoder;"
        "from congruence.tasks.settings.sections import EncoderSettings;"
        "load_encoder(EncoderSettings(kind='identity', scale=[1.0, 2.0])); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def _drawn(rng: np.random.Generator, brightness: float = 0.5, noise: float = 0.0, tint: float = 0.0) -> bytes:
    across = np.linspace(-0.2, 0.2, 48)[None, :, None] * np.ones((40, 48, 3))
    pixels = brightness + across + noise * rng.normal(size=(40, 48, 1)) + tint * np.array([1.0, 0.0, -1.0])
    return saved((255 * np.clip(pixels, 0, 1)).astype(np.uint8))


def test_picture_statistics_tell_how_pictures_look_apart_and_need_no_weights() -> None:
    rng = np.random.default_rng(0)
    encoder = load_encoder(EncoderSettings(kind="statistics"))
    ways: list[dict[str, float]] = [{}, {"brightness": 0.2}, {"noise": 0.1}, {"tint": 0.1}]
    rows = [encoder.preprocess(_drawn(rng, **each)) for each in ways for _ in range(10)]
    x = encoder.encode(rows)
    assert (x.shape, x.dtype, encoder.weight_files) == ((40, encoder.dimension), np.float32, ())
    assert np.isfinite(encoder.encode([encoder.preprocess(_drawn(rng, brightness=2.0))])).all()  # white all over
    apart = np.linalg.norm(x[:, None] - x[None], axis=-1)
    same = np.equal.outer(np.repeat(np.arange(4), 10), np.repeat(np.arange(4), 10))
    assert apart[same].max() < apart[~same].min()
    with pytest.raises(InvalidRow):
        encoder.preprocess(b"no picture")
    with pytest.raises(ValidationError, match="kind 'statistics' takes no model"):
        EncoderSettings(kind="statistics", model="compact")


def test_every_encoder_says_what_it_knows() -> None:
    assert what_it_knows(load_encoder(EncoderSettings(kind="statistics")).id).endswith("not what is on it")
    assert "digits and nothing else" in what_it_knows("open_clip:compact:1a2b:fp32")
    assert what_it_knows("open_clip:ViT-B-32/random:1a2b:fp32").endswith("knows nothing")
    assert what_it_knows("timm:resnet18.a1_in1k:1a2b:fp32").startswith("resnet18.a1_in1k, which knows the classes")
    assert what_it_knows("mine: {x}") == "mine: {x}, an encoder of your own"
