"""What the source says: imports run flows -> tasks -> kernels, each room keeps to what it is for, names are there."""

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ORDER = ["kernels", "tasks", "flows"]
FOREIGN = {
    "kernels": {"prefect", "dask", "distributed", "mlflow", "zarr", "open_clip", "torch", "fsspec", "requests"},
    "tasks": {"prefect"},
    "flows": set(),
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
FILES = [path for room in ORDER for path in sorted((ROOT / room).rglob("*.py"))]


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full, as congruence.{path.parent.name}..."
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down_and_stay_in_the_rooms_trade(path: Path) -> None:
    relative = str(path.relative_to(ROOT))
    room = relative.split("/")[0]
    above = ORDER[ORDER.index(room) + 1 :]
    for name in imported(path):
        parts = name.split(".")
        assert parts[0] not in ORDER, f"{relative} imports {name}: write congruence.{name}"
        if parts[0] == "congruence":
            assert parts[1] not in above, f"{relative} imports {name}, which lies above it"
        assert parts[0] not in FOREIGN[room], f"{relative} imports {name}, which {room} may not"


def test_no_name_says_nothing() -> None:
    empty = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
    assert not [path for path in FILES if path.stem in empty]


def test_the_package_is_importable_from_anywhere_by_its_links() -> None:
    for room in ORDER:
        link = ROOT / "src" / "congruence" / room
        assert link.is_symlink()
        assert link.resolve() == ROOT / room


def _module(path: Path) -> str:
    return "congruence." + ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


SHARED = ("congruence.tasks.models.registry", "congruence.tasks.mlflow.connection", "congruence.tasks.scores.metrics")
"""The registry, MLflow itself, and the metrics, which every room of tasks may know: they are rooms of their own."""


def _room(module: str) -> str:
    """The folder below kernels, tasks or flows that a module lies in; a file at their roots is a room of its own.

    What the evaluation file may say of a room of tasks (its ``settings``) lies in that room and belongs to the
    settings, on which all rooms stand.
    """
    if room := next((room for room in SHARED if module == room or module.startswith(f"{room}.")), ""):
        return room
    if module.startswith("congruence.tasks.") and module.rpartition(".")[2] in ("settings", "gate_settings"):
        return "congruence.tasks.settings"
    return ".".join(module.split(".")[:3])


def circles(imports: dict[str, set[str]]) -> list[str]:
    """What is left after taking away, again and again, whatever imports nothing that is left."""
    left = dict(imports)
    while ready := {name for name, needs in left.items() if not needs & (left.keys() - {name})}:
        left = {name: needs for name, needs in left.items() if name not in ready}
    return sorted(left)


def test_no_import_goes_in_circles() -> None:
    """Neither between modules, with imports for types and inside functions, nor between the rooms of a floor."""
    modules = {_module(path) for path in FILES}
    needs: dict[str, set[str]] = {}
    for path in FILES:
        found = imported(path)
        needs[_module(path)] = {n if n in modules else n.rpartition(".")[0] for n in found} & modules - {_module(path)}
    assert circles(needs) == []
    for floor in ("congruence.kernels", "congruence.tasks"):
        rooms: dict[str, set[str]] = {}
        for module, found in needs.items():
            if module.startswith(floor + "."):
                below = {_room(name) for name in found if name.startswith(floor + ".")}
                rooms.setdefault(_room(module), set()).update(below - {_room(module)})
        assert circles(rooms) == [], floor


def test_every_public_method_has_a_docstring_or_overrides_one_that_has() -> None:
    classes: dict[str, list[ast.ClassDef]] = {}
    for path in FILES:
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(node)

    def named(base: ast.expr) -> str:
        base = base.value if isinstance(base, ast.Subscript) else base
        return base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")

    def is_documented(kind: ast.ClassDef, method: str) -> bool:
        own = [item for item in kind.body if isinstance(item, FUNCTIONS) and item.name == method]
        bases = [base for name in map(named, kind.bases) for base in classes.get(name, []) if base is not kind]
        return any(map(ast.get_docstring, own)) or any(is_documented(base, method) for base in bases)

    missing = [
        f"{kind.name}.{item.name}"
        for kinds in classes.values()
        for kind in kinds
        if not kind.name.startswith("_")
        for item in kind.body
        if isinstance(item, FUNCTIONS) and not item.name.startswith("_") and not is_documented(kind, item.name)
    ]
    assert not missing, f"say what they give: {', '.join(missing)}"


OTHERS = {"MLFLOW_WEBHOOK_ALLOWED_SCHEMES", "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS", "mlruns", "to_df", "cross_val_score"}
OTHERS |= {"enable_system_metrics_logging"}
MADE = {"calibration_factor", "component_k", "member3", "more_", "ones_", "Class"}
"""Names of other libraries, and such as the code puts together."""


def test_what_a_docstring_names_is_there() -> None:
    """A name between double backticks is one of the code, or a word of its tests or of the reference."""
    reference = [*(ROOT / "docs" / "reference").glob("*.md"), *(ROOT / "tests").rglob("*.py")]
    words = re.findall(r"\w+", " ".join(path.read_text() for path in reference))
    known, named = {"infra", *words, *OTHERS, *MADE}, dict[str, str]()
    for path in FILES:
        known |= {*path.relative_to(ROOT).with_suffix("").parts}
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            quoted = " ".join(re.findall("``([^`]+)``", token.string))
            named |= dict.fromkeys(re.findall(r"[A-Za-z_]\w{3,}", quoted), str(path))
            known |= set() if quoted or token.type == tokenize.COMMENT else set(re.findall(r"\w+", token.string))
    assert not (ghosts := {name: named[name] for name in named.keys() - known}), ghosts


MAKERS = {"default_rng", "SeedSequence", "RandomState", "Generator", "PCG64", "seed"}
# Data sets that are published bit by bit: no evaluation draws from these.
PUBLISHED = {"tasks/digits/dataset.py"}


def test_every_generator_is_made_in_one_place() -> None:
    found: set[str] = set()
    for path in FILES:
        calls = [node.func for node in nodes(path) if isinstance(node, ast.Call)]
        if MAKERS & {getattr(function, "attr", getattr(function, "id", "")) for function in calls}:
            found.add(str(path.relative_to(ROOT)))
    assert found - {"kernels/rng.py"} == PUBLISHED


def literals(node: ast.AST) -> str:
    """The text of a string as it is written, "…" for what is put in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
    return ""


def test_quoted_messages_are_those_of_the_program() -> None:
    """Headings of the FAQ in quotation marks: what stands between two "…" is said somewhere in one string."""
    said = {literals(node) for path in FILES for node in nodes(path)}
    quoted = re.findall(r'^### "(.*)"$', (ROOT / "docs" / "faq.md").read_text(), re.MULTILINE)
    assert len(quoted) > 15
    for message in quoted:
        parts = [part for part in message.split("…") if len(part) > 3]
        assert any(all(part in text for part in parts) for text in said), message
