"""Random reference splits, each with its CCE in extended precision: what a certificate has to hold against.

Inputs with offsets, scales, copies and clusters, every input kernel, both precisions, every solver in this process.
"""

from dataclasses import dataclass

import numpy as np

from congruence.kernels.congruence import PreparedCongruence, prepare
from congruence.kernels.functions import RBF, Laplacian, Matern, Polynomial, Product, Sum
from congruence.kernels.solvers import Cholesky, ConjugateGradient, Nystrom
from congruence.kernels.target_errors import TargetErrors
from congruence.kernels.weighting import weighted_reference

EXACT = np.longdouble
SOLVERS = {
    "cholesky": Cholesky(),
    "computed": ConjugateGradient(landmarks=60),
    "loose": ConjugateGradient(1e-3, landmarks=40, choice="rpcholesky"),
    "sampled": ConjugateGradient(1e-6, landmarks=80, certificate="sampled", rows=60),
    "nystrom": Nystrom(60),
    "nystrom rows": Nystrom(60, rows=60),
    "nystrom trace": Nystrom(60, certificate="trace"),
}
KERNELS = (
    "polynomial",
    "rbf",
    "laplacian",
    "matern 1/2",
    "matern 3/2",
    "matern 5/2",
    "sum",
    "stationary sum",
    "product",
)


@dataclass(frozen=True)
class Problem:
    """A reference split with its target errors; ``name`` says what is special about it."""

    name: str
    kernel: object
    solver: str
    x: np.ndarray
    query: np.ndarray | None
    delta: np.ndarray
    regularization: float
    weights: np.ndarray | None


def random_problem(seed, solver=None, most_rows=400):
    """The problem of this seed."""
    rng = np.random.default_rng([seed, 7])
    n, d, r = int(rng.integers(20, most_rows + 1)), int(rng.integers(1, 31)), int(rng.integers(1, 11))
    dtype = rng.choice([np.float32, np.float64], p=[0.7, 0.3])
    offset = float(rng.choice([0.0, 1.0, 10.0, 100.0, 1000.0], p=[0.4, 0.15, 0.15, 0.15, 0.15]))
    scale = 10.0 ** rng.uniform(-2, 2)
    shape = rng.choice(["normal", "copies", "clusters", "unit norm", "one long row"])
    kind = str(rng.choice(KERNELS))
    if kind == "polynomial":
        offset = min(offset, 10.0)
    solver = str(rng.choice(list(SOLVERS))) if solver is None else solver
    points = rng.standard_normal((n + 30, d))
    if shape == "copies":
        points = points[rng.integers(0, len(points) // 3 + 1, len(points))]
    if shape == "clusters":
        points = 10.0 ** rng.uniform(-4, 0) * points + rng.standard_normal((8, d))[rng.integers(0, 8, len(points))]
    if shape == "unit norm":
        points /= np.linalg.norm(points, axis=1, keepdims=True)
    if shape == "one long row":
        points[0] *= 10.0
    points = (scale * (points + offset * rng.standard_normal(d))).astype(dtype)
    kernel = _kernel(kind, points, rng)
    x, query = points[:n], points[n:] if rng.random() < 0.5 else None
    signal = np.tanh(x.astype(np.float64) @ rng.standard_normal((d, r)) / (scale * np.sqrt(d)))
    delta = (0.3 * signal + rng.uniform(0, 1) * rng.standard_normal((n, r))) * 0.5 ** np.arange(r)
    weights = rng.integers(1, 6, n).astype(float) if rng.random() < 0.2 else None
    if weights is not None:
        query = points[n:]
    regularization = 10.0 ** rng.uniform(-6, 2)
    name = (
        f"{seed}: {solver}, {kind}, {np.dtype(dtype)}, {shape}, offset {offset:g}, lambda {regularization:.1g}, n {n}"
    )
    return Problem(name, kernel, solver, x, query, delta, regularization, weights)


def _kernel(kind, points, rng):
    spread = float(np.sqrt(np.sum(np.var(points.astype(np.float64), axis=0))))
    width = spread * 10.0 ** rng.uniform(-1, 0.5)
    rbf, laplacian = RBF(1.0 / width**2), Laplacian(1.0 / (width * np.sqrt(points.shape[1])))
    longest = float(np.mean(np.sum(points.astype(np.float64) ** 2, axis=1)))
    polynomial = Polynomial(int(rng.integers(1, 4)), float(10.0 ** rng.uniform(-1, 1)) / longest, 1.0)
    return {
        "polynomial": polynomial,
        "rbf": rbf,
        "laplacian": laplacian,
        "matern 1/2": Matern(0.5, width),
        "matern 3/2": Matern(1.5, width),
        "matern 5/2": Matern(2.5, width),
        "sum": Sum((rbf, polynomial)),
        "stationary sum": Sum((Matern(0.5, width), rbf, laplacian)),
        "product": Product((rbf, polynomial)),
    }[kind]


def prepared(problem) -> PreparedCongruence:
    """The problem's split, and its target errors in the coordinates of the system."""
    options = {"query": problem.query, "input_kernel": problem.kernel, "regularization": problem.regularization}
    if problem.weights is None:
        return prepare(problem.x, **options, solver=SOLVERS[problem.solver]), _errors(problem.delta)

    def solve_here(x, **settings):
        return prepare(x, **settings, solver=SOLVERS[problem.solver])

    rows = np.arange(len(problem.x))
    reference = weighted_reference(problem.x, rows, **options, weights=problem.weights, prepare_inputs=solve_here)
    return reference.prepared, reference.errors(_errors(problem.delta))


def _errors(delta):
    return TargetErrors(delta, np.sum(delta**2, axis=1), 0.0)


def evaluated(problem):
    """The CongruenceResult of the code for the problem."""
    split, errors = prepared(problem)
    return split.evaluate_errors({"": errors}, rng=np.random.default_rng(0))[""]


def exact_values(problem):
    """CCE by the definition in extended precision, from the inputs as they are."""
    x = problem.x.astype(EXACT)
    query = x if problem.query is None else problem.query.astype(EXACT)
    system = exact_gram(problem.kernel, x, x)
    ridge = len(x) * EXACT(problem.regularization)
    weights = np.ones(len(x)) if problem.weights is None else problem.weights / np.mean(problem.weights)
    system[np.diag_indices(len(x))] += ridge / weights.astype(EXACT)
    smoothed = exact_gram(problem.kernel, query, x) @ positive_definite_solve(system, problem.delta.astype(EXACT))
    return np.sqrt(np.sum(smoothed**2, axis=1))


def exact_gram(kernel, x, z):
    """[k(x_i, z_j)] in the precision of the inputs, from differences."""
    if isinstance(kernel, Sum):
        return sum(exact_gram(part, x, z) for part in kernel.parts)
    if isinstance(kernel, Product):
        return np.prod([exact_gram(part, x, z) for part in kernel.parts], axis=0)
    if isinstance(kernel, Polynomial):
        gamma = EXACT(1) / x.shape[1] if kernel.gamma is None else EXACT(kernel.gamma)
        return (gamma * (x @ z.T) + EXACT(kernel.coef0)) ** int(kernel.degree)
    difference = [np.abs(x[:, None, j] - z[None, :, j]) for j in range(x.shape[1])]
    if isinstance(kernel, Laplacian):
        return np.exp(-EXACT(kernel.gamma) * sum(difference))
    distances = sum(gap**2 for gap in difference)
    if isinstance(kernel, RBF):
        return np.exp(-EXACT(kernel.gamma) * distances)
    t = np.sqrt(2 * EXACT(kernel.nu) * distances) / EXACT(kernel.length_scale)
    return {0.5: 1 + 0 * t, 1.5: 1 + t, 2.5: 1 + t + t * t / 3}[kernel.nu] * np.exp(-t)


def positive_definite_solve(a, b):
    """a^-1 b by Cholesky in the precision of a, which LAPACK does not have."""
    a, b = a.copy(), b.copy()
    n = len(a)
    for k in range(n):
        a[k, k] = np.sqrt(a[k, k])
        a[k + 1 :, k] /= a[k, k]
        a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k + 1 :, k])
    for k in range(n):
        b[k] /= a[k, k]
        b[k + 1 :] -= np.outer(a[k + 1 :, k], b[k])
    for k in reversed(range(n)):
        b[k] /= a[k, k]
        b[:k] -= np.outer(a[k, :k], b[k])
    return b
