"""Which points should stand for a split? `python tests/benchmarks/reference_points.py` > reference_points.md.

The papers' own experiment on downsampling is `congruence reproduce downsampling`; here are the choices that are better
than a uniform one.
"""

from __future__ import annotations

import os
import platform

import numpy as np

from congruence.kernels import RBF, Normal, downsampled_congruence, prepare


def main() -> None:
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, NumPy {np.__version__}")
    n = 4000
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, 8)) * np.where(rng.uniform(size=(n, 1)) < 0.05, 3.0, 0.5)
    mean = 3.0 * np.tanh(x[:, 0]) + x[:, 1]
    y = rng.normal(mean, 0.5)
    models = {"true": Normal(mean, np.full(n, 0.5)), "wrong far out": Normal(3.0 * x[:, 0] + x[:, 1], np.full(n, 0.5))}
    whole = prepare(x, input_kernel=RBF(0.25)).congruence_errors(y, models)
    print(f"\n## Choice of the reference points: n = {n:,}, 5 % of the inputs far out, 10 repeats\n")
    means = ", ".join(f"{name} {result.mean:.4f}" for name, result in whole.items())
    print("Root mean square difference of the points' CCE, averaged over the repeats, from that of all points; and the")
    print(f"mean CCE (all points: {means}).\n")
    print("| k | choice | true: rms | mean +- std | wrong far out: rms | mean +- std |\n|---:|---|---:|---:|---:|---:|")
    for rows in (200, 800):
        for choice in ("uniform", "leverage", "rpcholesky"):
            found = downsampled_congruence(x, y, models, rows=rows, repeats=10, choice=choice, input_kernel=RBF(0.25))
            cells = [
                f"{np.sqrt(np.mean((found[name].values - whole[name].values) ** 2)):.4f} | "
                f"{found[name].mean:.4f} +- {found[name].std:.4f}"
                for name in models
            ]
            print(f"| {rows} | {choice} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
