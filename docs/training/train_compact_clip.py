"""How the shipped compact CLIP was made, from nothing: python docs/training/train_compact_clip.py.

Images are the *training* digits under fresh random rotations, captions name the digit and the rotation in words, and
the loss is CLIP's symmetric contrastive cross-entropy (Radford et al. 2021, section 2.3) as open_clip implements it.
The architecture is open_clip's own ModifiedResNet, read from `compact_clip/weights/open_clip_config.json`. One thread
and one seed make a run repeatable on one machine. It takes a few minutes on one core and writes the weights and a
record of what linear probes find in the embeddings.
"""

from __future__ import annotations

import argparse
import math
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save_file
from sklearn.linear_model import LogisticRegression, Ridge

from congruence.tasks.compact_clip import WEIGHTS, model_name
from congruence.tasks.digits.dataset import MAX_ANGLE, base_images, digit_rows, draw, labels
from congruence.tasks.encoders.open_clip_import import open_clip

DIGIT_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

TEMPLATES = (
    "a handwritten {digit} {turn}",
    "a {digit} {turn}",
    "the digit {digit}, {turn}",
)
BATCH = 256
PEAK_LEARNING_RATE = 2e-3
WARM_UP_STEPS = 40
MAX_SHIFT = 2  # pixels: makes the encoder indifferent to where the digit stands

Pairs = tuple[torch.Tensor, list[str]]
Preprocess = Callable[[Image.Image], torch.Tensor]


def turn(angle: float) -> str:
    """The rotation in words, to the degree; positive angles turn to the left."""
    degrees = round(abs(angle))
    if degrees == 0:
        return "standing upright"
    return f"turned {degrees} degrees to the {'left' if angle > 0 else 'right'}"


def caption(digit: int, angle: float, template: int = 0) -> str:
    """A caption, for example "a handwritten seven turned 30 degrees to the left"."""
    return TEMPLATES[template % len(TEMPLATES)].format(digit=DIGIT_NAMES[digit], turn=turn(angle))


def _pairs(rng: np.random.Generator, preprocess: Preprocess) -> Pairs:
    """A batch of images and captions; no base image occurs twice in it."""
    bases = rng.choice(base_images("train"), BATCH, replace=False)
    angles = rng.uniform(-MAX_ANGLE - 2.0, MAX_ANGLE + 2.0, BATCH)
    images = torch.stack([preprocess(draw(int(b), float(a))) for b, a in zip(bases, angles, strict=True)])
    shift = rng.integers(-MAX_SHIFT, MAX_SHIFT + 1, 2)
    images = torch.roll(images, (int(shift[0]), int(shift[1])), dims=(2, 3))
    digits = labels()[bases]
    templates = rng.integers(len(TEMPLATES), size=BATCH)
    texts = [caption(int(d), float(a), int(t)) for d, a, t in zip(digits, angles, templates, strict=True)]
    return images, texts


def _batches(steps: int, seed: int, preprocess: Preprocess) -> Iterator[Pairs]:
    """Batches in a fixed order, each drawn while the step before it computes."""
    # Of data, not of an evaluation: the shipped weights come from this stream, bit by bit.
    rng = np.random.default_rng([seed, 1])
    with ThreadPoolExecutor(max_workers=1) as pool:
        upcoming = pool.submit(_pairs, rng, preprocess)
        for _ in range(steps - 1):
            ready = upcoming.result()
            upcoming = pool.submit(_pairs, rng, preprocess)
            yield ready
        yield upcoming.result()


def _learning_rate(step: int, steps: int) -> float:
    warm_up = min(1.0, (step + 1) / WARM_UP_STEPS)
    return PEAK_LEARNING_RATE * warm_up * 0.5 * (1.0 + math.cos(math.pi * step / steps))


def _forget_unused_words(model: Any, tokenizer: Any) -> None:
    """Zero the rows of words outside the captions: they get no gradient, and zeros pack to nothing in a wheel."""
    texts = [caption(d, float(a), t) for d in range(10) for a in range(-62, 63) for t in range(len(TEMPLATES))]
    used = torch.unique(tokenizer(texts))
    weight = model.token_embedding.weight
    with torch.no_grad():
        kept = weight[used].clone()
        weight.zero_()
        weight[used] = kept


def train(folder: Path, *, steps: int, seed: int) -> Any:
    """Train on `steps` batches; the folder holds the open_clip configuration."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    name = f"local-dir:{folder}"
    model, _, preprocess = open_clip.create_model_and_transforms(name, load_weights=False)
    tokenizer = open_clip.get_tokenizer(name)
    _forget_unused_words(model, tokenizer)
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    undecayed = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": undecayed, "weight_decay": 0.0}], betas=(0.9, 0.98)
    )
    contrastive = open_clip.ClipLoss()
    model.train()
    for step, (images, texts) in enumerate(_batches(steps, seed, preprocess)):
        for group in optimizer.param_groups:
            group["lr"] = _learning_rate(step, steps)
        image_features, text_features, scale = model(images, tokenizer(texts))[:3]
        loss = contrastive(image_features, text_features, scale)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0.0, math.log(100.0))
        if step % 20 == 0:
            print(f"step {step} of {steps}, contrastive loss {loss.item():.3f}", flush=True)
    return model.eval()


@dataclass(frozen=True)
class Probe:
    """Held-out fit of linear probes; the noiseless rotation in degrees, the digit out of ten, and the speed."""

    angle_r2: float
    angle_rmse: float
    digit_accuracy: float
    images_per_second: float


def _embed(
    model: Any, preprocess: Preprocess, base: NDArray[np.int64], angle: NDArray[np.float64]
) -> tuple[NDArray[np.float32], float]:
    images = torch.stack([preprocess(draw(int(b), float(a))) for b, a in zip(base, angle, strict=True)])
    started = time.perf_counter()
    with torch.inference_mode():
        parts = [model.encode_image(images[i : i + 64], normalize=True).numpy() for i in range(0, len(images), 64)]
    return np.concatenate(parts), len(images) / (time.perf_counter() - started)


def probe(model: Any, preprocess: Preprocess, *, rows: int = 4000, seed: int = 0) -> Probe:
    """Fit the probes on unit-norm embeddings of the training digits, and judge them on the test digits."""
    train, test = digit_rows("train", rows, seed), digit_rows("test", rows, seed)
    seen, _ = _embed(model, preprocess, train.base, train.angle)
    unseen, speed = _embed(model, preprocess, test.base, test.angle)
    ridge = Ridge(alpha=1e-3).fit(seen, train.angle)
    classifier = LogisticRegression(C=100.0, max_iter=500).fit(seen, train.digit)
    residual = ridge.predict(unseen) - test.angle
    return Probe(
        angle_r2=float(ridge.score(unseen, test.angle)),
        angle_rmse=float(np.sqrt(np.mean(residual**2))),
        digit_accuracy=float(classifier.score(unseen, test.digit)),
        images_per_second=speed,
    )


def save(model: Any, folder: Path) -> Path:
    """Write the weights in half precision; open_clip copies them into a single-precision model."""
    state = {k: v.half() if v.is_floating_point() else v for k, v in model.state_dict().items()}
    path = folder / "open_clip_model.safetensors"
    save_file({k: v.contiguous() for k, v in state.items()}, path)
    path.chmod(0o644)  # safetensors writes for the owner alone, but the file ships to everybody
    return path


def _record(found: Probe, *, steps: int, seed: int, seconds: float, size: int) -> str:
    lines = [
        "# How the compact CLIP was made",
        "",
        f"`python docs/training/train_compact_clip.py --steps {steps} --seed {seed}`",
        "",
        "Probes are linear, fitted on unit-norm embeddings of 4,000 rotations of the training digits and judged on",
        "4,000 rotations of test digits, whose base images neither the encoder nor the probes have seen.",
        "",
        "| measure | value |",
        "|---|---|",
        f"| R² of the true angle | {found.angle_r2:.3f} |",
        f"| root mean squared error of the angle | {found.angle_rmse:.1f} degrees |",
        f"| accuracy of the digit | {found.digit_accuracy:.3f} |",
        f"| forward pass, one thread, batch 64 | {found.images_per_second:.0f} images/s |",
        f"| size of the weights | {size / 1e6:.2f} MB |",
        f"| image and caption pairs seen | {steps * BATCH:,} |",
        f"| training time, one thread | {seconds:.0f} s |",
        f"| machine | {platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}, "
        f"open_clip {open_clip.__version__} |",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Train, save, load back through open_clip, probe, and write the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=WEIGHTS, help="folder for the configuration and the weights")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    folder: Path = given.output
    if folder.resolve() != WEIGHTS:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(WEIGHTS / "open_clip_config.json", folder / "open_clip_config.json")
    started = time.perf_counter()
    trained = train(folder, steps=given.steps, seed=given.seed)
    seconds = time.perf_counter() - started
    path = save(trained, folder)
    model, _, preprocess = open_clip.create_model_and_transforms(model_name(folder), require_pretrained=True)
    record = _record(
        probe(model.eval(), preprocess), steps=given.steps, seed=given.seed, seconds=seconds, size=path.stat().st_size
    )
    (folder / "training_record.md").write_text(record, encoding="utf-8")
    print(record)


if __name__ == "__main__":
    main()
