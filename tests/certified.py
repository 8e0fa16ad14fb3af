"""Random reference splits, each with its CCE in extended precision: what a certificate has to hold against.

Inputs with offsets, scales, copies and clusters, every input kernel, both precisions, exact and on landmarks.
"""

from dataclasses import dataclass

import numpy as np

from congruence.kernels.engine.blocks import HeldRows, LocalPasses
from congruence.kernels.engine.driver import Driver
from congruence.kernels.engine.measure import smooth
from congruence.kernels.kernel_functions import RBF, Laplacian, Matern, Polynomial, Product, Sum
from congruence.kernels.protocol import EvaluationProtocol

EXACT = np.longdouble
SOLVERS = {"exact": None, "landmarks": 60, "few landmarks": 20, "many landmarks": 400}
SMALL = tuple(SOLVERS)
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
    """A reference split with its target errors; ``name`` says what is special about it, ``solver`` what answers."""

    name: str
    kernel: object
    solver: str
    x: np.ndarray
    query: np.ndarray | None
    delta: np.ndarray
    regularization: float


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
    solver = str(rng.choice(SMALL)) if solver is None else solver
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
    regularization = 10.0 ** rng.uniform(-6, 2)
    name = (
        f"{seed}: {solver}, {kind}, {np.dtype(dtype)}, {shape}, offset {offset:g}, lambda {regularization:.1g}, n {n}"
    )
    return Problem(name, kernel, solver, x, query, delta, regularization)


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


@dataclass(frozen=True)
class Evaluated:
    """CCE at the points of a problem, and its bounds."""

    values: np.ndarray
    error_bound: float
    mean_error_bound: float
    bound_kind: str

    @property
    def mean(self):
        """Mean CCE."""
        return float(np.mean(self.values))


def evaluated(problem):
    """What the engine makes of the problem: exact in double precision, landmarks in that of the inputs."""
    landmarks = SOLVERS[problem.solver]
    protocol = EvaluationProtocol("certified", False, problem.kernel, regularization=problem.regularization)
    points = None if problem.query is None else LocalPasses(HeldRows(problem.query))
    driver = Driver(LocalPasses(HeldRows(problem.x)), protocol, points=points)
    exact = landmarks is None
    system = driver.system(len(problem.x) if exact else landmarks, np.float64 if exact else problem.x.dtype)
    found = smooth(system, problem.x, problem.query, problem.delta)
    values, bounds = np.linalg.norm(found.values, axis=1), found.bounds
    return Evaluated(values, bounds.at_point, bounds.in_mean, bounds.kind)


def exact_values(problem, precision=EXACT):
    """CCE by the definition in extended precision (or in float64), from the inputs as they are."""
    x = problem.x.astype(precision)
    query = x if problem.query is None else problem.query.astype(precision)
    system = exact_gram(problem.kernel, x, x)
    ridge = len(x) * precision(problem.regularization)
    system[np.diag_indices(len(x))] += ridge
    rhs = problem.delta.astype(precision)
    solution = positive_definite_solve(system, rhs) if precision is EXACT else np.linalg.solve(system, rhs)
    smoothed = exact_gram(problem.kernel, query, x) @ solution
    return np.sqrt(np.sum(smoothed**2, axis=1))


def exact_gram(kernel, x, z):
    """[k(x_i, z_j)] in the precision of the inputs, from differences."""
    number = x.dtype.type
    if isinstance(kernel, Sum):
        return sum(exact_gram(part, x, z) for part in kernel.parts)
    if isinstance(kernel, Product):
        return np.prod([exact_gram(part, x, z) for part in kernel.parts], axis=0)
    if isinstance(kernel, Polynomial):
        gamma = number(1) / x.shape[1] if kernel.gamma is None else number(kernel.gamma)
        return (gamma * (x @ z.T) + number(kernel.coef0)) ** int(kernel.degree)
    differences = (np.abs(x[:, None, j] - z[None, :, j]) for j in range(x.shape[1]))
    if isinstance(kernel, Laplacian):
        return np.exp(-number(kernel.gamma) * sum(differences))
    distances = sum(difference**2 for difference in differences)
    if isinstance(kernel, RBF):
        return np.exp(-number(kernel.gamma) * distances)
    t = np.sqrt(2 * number(kernel.nu) * distances) / number(kernel.length_scale)
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


def large_problem(kind, n, solver, *, at_query, seed=0):
    """A few thousand rows in single precision, of a kind that rounding is known to hurt."""
    rng = np.random.default_rng([seed, 8])
    d = 64 if kind == "unit norm" else 8
    points = rng.standard_normal((n + 500, d))
    kernel = RBF(1.0 / d)
    if kind == "unit norm":
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        kernel = Polynomial(3, 1.0, 1.0)
    if kind == "matern 1/2":
        kernel = Matern(0.5, 3.0)
    if kind == "clusters":
        points = 0.02 * points + rng.standard_normal((10, d))[rng.integers(0, 10, len(points))]
        kernel = RBF(1.0 / (d * 0.02**2))
    if kind == "offset":
        points += 1000.0
    if kind == "one long row":
        points[3] *= 10.0
        kernel = Polynomial(3, None, 1.0)
    points = points.astype(np.float32)
    x, query = points[:n], points[n:] if at_query else None
    signal = np.tanh(points[:n].astype(np.float64) @ rng.standard_normal((d, 12)))
    delta = (0.1 * signal + 0.5 * rng.standard_normal((n, 12))) * 0.6 ** np.arange(12)
    return Problem(f"{kind}, n {n}, {solver}", kernel, solver, x, query, delta, 0.1)


LARGE = ("unit norm", "matern 1/2", "clusters", "offset", "one long row")
