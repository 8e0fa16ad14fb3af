"""Image regression with a known law: counts that hang on a rotated handwritten digit."""

from __future__ import annotations

import numpy as np

from congruence.kernels.distributions import Binomial
from congruence.tasks.digits.images import MAX_ANGLE, base_images, draw, labels
from congruence.tasks.reproduction.counted_images import CountedImages

TRIALS = 40


def counted_digits(rows: int, seed: int) -> CountedImages:
    """``rows`` digits of scikit-learn's test share, each turned by up to 60 degrees.

    Their counts are y ~ Binomial(40, (digit + 1) / 12): underdispersed, as ages are.
    """
    rng = np.random.default_rng([seed, rows])
    base = rng.choice(base_images("test"), rows)
    angles = rng.uniform(-MAX_ANGLE, MAX_ANGLE, rows)
    images = tuple(draw(int(b), float(a)) for b, a in zip(base, angles, strict=True))
    law = Binomial(np.full(rows, TRIALS), (labels()[base].astype(np.float64) + 1.0) / 12.0)
    return CountedImages(images, law.sample(1, seed=rng)[:, 0], law)
