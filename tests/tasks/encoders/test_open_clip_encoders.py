"""CLIP encoders give what open_clip itself gives, name their weights, and say plainly when they cannot load."""

import io
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from PIL import Image
from safetensors.torch import load_file, save_file
from saved_pictures import noise, saved

from congruence.kernels.errors import CongruenceError
from congruence.tasks import compact_clip
from congruence.tasks.digits.dataset import digit_rows, draw, encode_png
from congruence.tasks.encoders.base import Encoder, InvalidRow
from congruence.tasks.encoders.loading import load_encoder
from congruence.tasks.encoders.open_clip_import import open_clip
from congruence.tasks.encoders.pretrained import WeightsUnavailableError
from congruence.tasks.settings.sections import EncoderSettings


@pytest.fixture(scope="module")
def images() -> list[bytes]:
    rows = digit_rows("test", 24)
    return [encode_png(draw(int(b), float(a))) for b, a in zip(rows.base, rows.angle, strict=True)]


@pytest.fixture(scope="module")
def compact() -> Encoder:
    return load_encoder(EncoderSettings(device="cpu"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    copied = tmp_path / "mine"
    shutil.copytree(compact_clip.WEIGHTS, copied)
    return copied


def test_embeddings_equal_open_clips_own_bit_for_bit(compact: Encoder, images: list[bytes]) -> None:
    model, _, transform = open_clip.create_model_and_transforms(compact_clip.model_name(), require_pretrained=True)
    batch = torch.stack([transform(Image.open(io.BytesIO(raw))) for raw in images])
    with torch.inference_mode():
        expected = model.eval().encode_image(batch).numpy()
    np.testing.assert_array_equal(compact.encode([compact.preprocess(raw) for raw in images]), expected)


def test_photographs_in_other_modes_meet_open_clips_own_preprocessing(compact: Encoder) -> None:
    model, _, transform = open_clip.create_model_and_transforms(compact_clip.model_name(), require_pretrained=True)
    for mode in ("RGB", "L", "CMYK"):
        data = saved(Image.fromarray(noise(90, 70)).convert(mode), "JPEG")
        opened = Image.open(io.BytesIO(data))
        shown = opened.convert("RGB") if mode == "CMYK" else opened  # before it is made small, as a viewer shows it
        with torch.inference_mode():
            expected = model.eval().encode_image(transform(shown)[None]).numpy()
        np.testing.assert_array_equal(compact.encode([compact.preprocess(data)]), expected)


def test_the_same_batches_give_the_same_bytes_and_other_batches_nearly(compact: Encoder, images: list[bytes]) -> None:
    rows = [compact.preprocess(raw) for raw in images]
    once = compact.encode(rows)
    assert once.dtype == np.float32
    assert once.shape == (24, compact.dimension) == (24, 64)
    assert once.tobytes() == compact.encode(rows).tobytes()
    one_by_one = np.concatenate([compact.encode([row]) for row in rows])
    np.testing.assert_allclose(one_by_one, once, atol=1e-5)


def test_an_empty_batch_is_no_row(compact: Encoder) -> None:
    assert compact.encode([]).shape == (0, 64)


def test_a_damaged_image_is_an_invalid_row(compact: Encoder, images: list[bytes]) -> None:
    with pytest.raises(InvalidRow, match="damaged"):
        compact.preprocess(images[0][:-60])


def test_other_weights_have_another_id_and_the_same_weights_the_same(compact: Encoder, folder: Path) -> None:
    settings = EncoderSettings(model=f"local-dir:{folder}", device="cpu")
    digest = compact.id.split(":")[2]
    assert load_encoder(settings).id == f"open_clip:mine:{digest}:fp32"
    path = folder / "open_clip_model.safetensors"
    state = load_file(path)
    state["visual.conv1.weight"] = state["visual.conv1.weight"] * 1.01
    save_file(state, path)
    changed = load_encoder(settings)
    assert changed.id.split(":")[2] != digest
    assert changed.preprocessing_digest == compact.preprocessing_digest


def test_preprocessing_has_a_digest_of_its_own(compact: Encoder, folder: Path) -> None:
    configuration = json.loads((folder / "open_clip_config.json").read_text())
    configuration["preprocess_cfg"]["mean"] = [0.4, 0.5, 0.5]
    (folder / "open_clip_config.json").write_text(json.dumps(configuration))
    other = load_encoder(EncoderSettings(model=f"local-dir:{folder}", device="cpu"))
    assert other.preprocessing_digest != compact.preprocessing_digest
    assert other.id.split(":")[2] == compact.id.split(":")[2]


def test_a_checkpoint_without_weights_is_refused_not_random(folder: Path) -> None:
    (folder / "open_clip_model.safetensors").unlink()
    with pytest.raises(CongruenceError, match="could not be loaded"):
        load_encoder(EncoderSettings(model=f"local-dir:{folder}"))
    with pytest.raises(CongruenceError, match=r"open_clip_model\.safetensors is missing"):
        compact_clip.model_name(folder)


def test_a_cut_off_checkpoint_is_refused(folder: Path) -> None:
    path = folder / "open_clip_model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CongruenceError, match="could not be loaded"):
        load_encoder(EncoderSettings(model=f"local-dir:{folder}"))


class Payload:
    """Unpickling this would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return os.mkdir, (str(self.path),)


def test_a_pickled_checkpoint_runs_no_code(tmp_path: Path) -> None:
    trap, opened = tmp_path / "checkpoint.pt", tmp_path / "opened"
    torch.save({"state_dict": Payload(opened)}, trap)
    with pytest.raises(CongruenceError, match="could not be loaded"):
        load_encoder(EncoderSettings(model="ViT-S-32-alt", pretrained=str(trap)))
    assert not opened.exists()


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda state: [1, 2], "AttributeError"),
        (lambda state: {}, "StopIteration"),
        (lambda state: {**state, "visual.conv1.weight": state["visual.conv1.weight"][:1]}, "size mismatch"),
        (lambda state: {**state, "positional_embedding": state["positional_embedding"][:, :8]}, "width changed"),
        (lambda state: Path("a path"), "holds more than tensors"),
    ],
)
def test_what_is_no_checkpoint_of_the_model_is_refused_in_a_line(
    folder: Path, made: Callable[[dict[str, torch.Tensor]], object], says: str
) -> None:
    weights = folder / "open_clip_model.safetensors"
    torch.save(made(load_file(weights)), folder / "open_clip_pytorch_model.bin")
    weights.unlink()
    with pytest.raises(CongruenceError, match=r"could not be loaded .*state dict of that") as caught:
        load_encoder(EncoderSettings(model=f"local-dir:{folder}"))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_are_read_from_every_kind_of_file(compact: Encoder, folder: Path) -> None:
    weights = folder / "open_clip_model.safetensors"
    state = load_file(weights)
    weights.unlink()
    for content in (state, {"state_dict": {f"module.{name}": value for name, value in state.items()}, "epoch": 3}):
        torch.save(content, folder / "open_clip_pytorch_model.bin")
        found = load_encoder(EncoderSettings(model=f"local-dir:{folder}", device="cpu"))
        assert found.id.split(":")[2] == compact.id.split(":")[2]


def test_untrained_weights_are_the_same_each_time_and_leave_the_generator_alone() -> None:
    state = torch.random.get_rng_state()
    settings = EncoderSettings(model="compact", pretrained="random", device="cpu")
    assert load_encoder(settings).id == load_encoder(settings).id
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("precision", ["bf16", "pure_bf16"])
def test_lower_precision_stays_close_and_is_named(compact: Encoder, images: list[bytes], precision: str) -> None:
    other = load_encoder(EncoderSettings.model_validate({"precision": precision, "device": "cpu"}))
    assert other.id.endswith(f":{precision}")
    rows = [compact.preprocess(raw) for raw in images]
    low, full = other.encode(rows), compact.encode(rows)
    cosine = (low * full).sum(1) / np.linalg.norm(low, axis=1) / np.linalg.norm(full, axis=1)
    assert low.dtype == np.float32
    assert cosine.min() > 0.98


def test_without_a_network_one_sentence_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    settings = EncoderSettings(model="ViT-B-32", pretrained="laion2b_s34b_b79k")
    for offline, cause in ((False, "does not answer"), (True, "HF_HUB_OFFLINE forbids")):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        started = time.perf_counter()
        with pytest.raises(WeightsUnavailableError, match=f"{cause}.*hf download laion/.*compact"):
            load_encoder(settings)
        assert time.perf_counter() - started < 5.0


def test_text_and_image_towers_agree_on_what_they_see(compact: Encoder, images: list[bytes]) -> None:
    texts = load_encoder(EncoderSettings(kind="open_clip_text", device="cpu"))
    assert texts.input_kind == "text"
    names = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    spoken = texts.encode([texts.preprocess(f"a handwritten {name} standing upright") for name in names])
    seen = compact.encode([compact.preprocess(raw) for raw in images])
    spoken /= np.linalg.norm(spoken, axis=1, keepdims=True)
    upright = np.abs(digit_rows("test", 24).angle) < 20
    named = (seen @ spoken.T).argmax(axis=1)
    assert (named == digit_rows("test", 24).digit)[upright].mean() >= 0.8


@pytest.mark.parametrize(("raw", "says"), [("  ", "empty"), (None, "NoneType"), (3.5, "float")])
def test_what_is_no_text_says_why(raw: object, says: str) -> None:
    texts = load_encoder(EncoderSettings(kind="open_clip_text", device="cpu"))
    with pytest.raises(InvalidRow, match=says):
        texts.preprocess(raw)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")
def test_a_gpu_gives_the_same_embeddings_up_to_rounding(compact: Encoder, images: list[bytes]) -> None:
    on_gpu = load_encoder(EncoderSettings(device="cuda"))
    rows = [compact.preprocess(raw) for raw in images]
    np.testing.assert_allclose(on_gpu.encode(rows), compact.encode(rows), atol=2e-2)
