"""The shipped CLIP: small, loaded by open_clip itself, and knowing what the digits are and how they are turned."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from train_compact_clip import DIGIT_NAMES, caption, probe, save, train, turn

from congruence.tasks.compact_clip.location import WEIGHTS, model_name
from congruence.tasks.digits.dataset import digit_rows
from congruence.tasks.digits.images import draw
from congruence.tasks.encoders.open_clip_import import open_clip


def test_the_weights_are_small() -> None:
    assert sum(path.stat().st_size for path in WEIGHTS.iterdir()) <= 4_000_000


def test_linear_probes_find_rotation_and_digit_on_unseen_digits() -> None:
    model, _, preprocess = open_clip.create_model_and_transforms(model_name(), require_pretrained=True)
    found = probe(model.eval(), preprocess, rows=1000)
    assert found.angle_r2 > 0.9
    assert found.digit_accuracy > 0.95


def test_captions_find_their_images() -> None:
    model, _, preprocess = open_clip.create_model_and_transforms(model_name(), require_pretrained=True)
    tokenizer = open_clip.get_tokenizer(model_name())
    rows = digit_rows("test", 200)
    labels = [(digit, angle) for digit in range(10) for angle in range(-60, 61, 10)]
    with torch.inference_mode():
        texts = model.eval().encode_text(tokenizer([caption(d, a) for d, a in labels]), normalize=True)
        pictures = [preprocess(draw(int(b), float(a))) for b, a in zip(rows.base, rows.angle, strict=True)]
        images = model.encode_image(torch.stack(pictures), normalize=True)
    told = np.array(labels)[(images @ texts.T).argmax(dim=1).numpy()]
    assert (told[:, 0] == rows.digit).mean() > 0.95
    assert np.abs(told[:, 1] - rows.angle).mean() < 6.0


@pytest.mark.parametrize(
    ("angle", "words"),
    [(30.2, "turned 30 degrees to the left"), (-7.6, "turned 8 degrees to the right"), (-0.4, "standing upright")],
)
def test_rotations_in_words(angle: float, words: str) -> None:
    assert turn(angle) == words


def test_every_digit_has_a_caption_of_its_own() -> None:
    assert caption(7, 30.0) == "a handwritten seven turned 30 degrees to the left"
    assert len({caption(digit, 12.0) for digit in range(len(DIGIT_NAMES))}) == 10


def test_trained_weights_come_back_through_open_clip(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    shutil.copyfile(WEIGHTS / "open_clip_config.json", tmp_path / "open_clip_config.json")
    try:
        trained = train(tmp_path, steps=2, seed=1)
    finally:
        torch.set_num_threads(threads)
    save(trained, tmp_path)
    loaded = open_clip.create_model(model_name(tmp_path), require_pretrained=True)
    for name, value in trained.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], value, rtol=1e-3, atol=1e-6)
