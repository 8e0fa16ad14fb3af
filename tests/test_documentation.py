"""The documentation says what the program does: its examples run, its files are read, its commands exist."""

import ast
import contextlib
import io
import json
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest
import typer
import yaml
from databases import mlflow_database
from markdown_it import MarkdownIt

from congruence import kernels
from congruence.flows.cli.app import app
from congruence.tasks.settings.evaluation import EvaluationSettings

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "infra" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = re.compile(r"^(?:\S*/)?(congruence .*)$")
NOT_COMMANDS = {"congruence &&"}  # as in `cd congruence && make demo`

DATA = ROOT.parent / "shared" / "data"
"""Public data of others, where a machine has them: worked examples are run there, and their numbers are compared."""

NOT_INSTALLED = {"evidently", "netcal"}  # too many packages of their own to come with ours


def fences(page: Path, language: str) -> list[str]:
    tokens = MarkdownIt().parse(page.read_text())
    return [token.content for token in tokens if token.type == "fence" and token.info.strip() == language]


def examples(page: Path) -> list[tuple[str, str | None]]:
    """The Python of a page, each piece with what it prints, where that follows it as ``text``."""
    fenced = [token for token in MarkdownIt().parse(page.read_text()) if token.type == "fence"]
    after = [*fenced[1:], None]
    return [
        (one.content, then.content if then is not None and then.info.strip() == "text" else None)
        for one, then in zip(fenced, after, strict=True)
        if one.info.strip() == "python"
    ]


def pages_with(language: str, *folders: str) -> list[Path]:
    return [page for page in PAGES if fences(page, language) and (not folders or page.parent.name in folders)]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONGRUENCE_HOME", str(tmp_path / "home"))
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(mlflow_database(tmp_path))
    yield
    mlflow.set_tracking_uri(before)


def run_where(page: Path) -> list[pytest.MarkDecorator]:
    """Worked examples on public data are long, and run by ``make exercise``."""
    return [pytest.mark.exercise] if page.name in ("faces.md", "hourly-demand.md", "softmax-temperature.md") else []


RUN = [pytest.param(page, marks=run_where(page)) for page in pages_with("python") if page.name != "README.md"]


@pytest.mark.usefixtures("own_store")
@pytest.mark.parametrize("page", RUN, ids=lambda page: name(page))
def test_python_runs(page: Path) -> None:
    """All examples of a page, in their order, as a reader would run them."""
    known: dict[str, object] = {"__name__": "__main__"}
    for file in (*DATA.glob("*/*.gz"), *DATA.glob("*/*.npz")):
        Path(file.name).symlink_to(file)
    for number, (code, expected) in enumerate(examples(page)):
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said) if expected is not None else contextlib.nullcontext():
                exec(compile(code, f"{page.name}, example {number + 1}", "exec"), known)
            assert expected in (None, said.getvalue())
        except FileNotFoundError as error:
            if page.parent.name == "examples" and number == 0:
                pytest.skip(f"{error.filename} is not on this machine: the page shows what was printed where it is")
            raise
        except ModuleNotFoundError as error:
            if error.name in NOT_INSTALLED:
                pytest.skip(f"{error.name} is not installed")
            raise


@pytest.mark.parametrize("page", pages_with("yaml"), ids=name)
def test_evaluation_files_are_read(page: Path) -> None:
    for text in fences(page, "yaml"):
        written = yaml.safe_load(text)
        if not isinstance(written, dict) or not set(written) <= set(EvaluationSettings.model_fields):
            continue  # of another program
        if not {"splits", "encoder"} <= set(written):  # a section by itself
            written = {"splits": [{"uri": "test.parquet", "input": "photo", "target": "y"}], "encoder": _SOME} | written
        EvaluationSettings.model_validate(written)


def test_every_public_name_is_documented_and_shown_in_an_example() -> None:
    page = ROOT / "docs" / "reference" / "python.md"
    documented = set(re.findall(r"^::: congruence\.kernels\.(\w+)$", page.read_text(), re.MULTILINE))
    values = {name for name in kernels.__all__ if isinstance(getattr(kernels, name), kernels.EvaluationProtocol)}
    assert set(kernels.__all__) - documented - values == set()
    shown = {node.id for code in fences(page, "python") for node in ast.walk(ast.parse(code)) if hasattr(node, "id")}
    assert set(kernels.__all__) - shown == set()


def beside_the_pages(name: str) -> dict[str, Any]:
    """What a file of the documentation's build holds, which is no package."""
    return runpy.run_path(str(ROOT / "docs" / f"{name}.py"))


@pytest.mark.parametrize("name", ["commands", "settings", "metrics"])
def test_the_pages_of_the_reference_are_as_the_program_is(name: str) -> None:
    path, text = beside_the_pages("references")["page"](name)
    assert path.read_text() == text, "run: .venv/bin/python docs/references.py"


def test_every_key_of_the_evaluation_file_has_a_meaning_in_the_reference() -> None:
    told = beside_the_pages("references")["settings"]()
    rows = [line.split(" | ") for line in told.splitlines() if line.startswith("| `")]
    assert [row[0] for row in rows if row[-1].strip("| ") == ""] == []
    for key in ("tls", "file", "card_memory", "recalibration"):
        assert any(key in cell for row in rows for cell in row), key


def test_every_experiment_of_the_papers_has_its_verdicts_on_the_page() -> None:
    outcomes = json.loads((ROOT / "docs" / "papers" / "outcomes.json").read_text())
    run = (ROOT / "docs" / "papers" / "__main__.py").read_text()
    assert [name.replace("-", "_") for name in outcomes] == re.findall(r"^    (\w+),$", run, re.MULTILINE)
    told = beside_the_pages("verdicts")["page"]()
    for name, outcome in outcomes.items():
        assert all(claim["claim"] in told for claim in outcome["claims"])
        for figure in outcome["figures"]:
            assert (ROOT / "docs" / "papers" / f"{name}-{figure}.png").exists()


def test_every_picture_beside_the_pages_is_shown_on_one() -> None:
    shown = "".join(page.read_text() for page in PAGES)
    assert [path.name for path in sorted((ROOT / "docs").glob("*.png")) if path.name not in shown] == []


_SOME = {"kind": "open_clip", "model": "compact"}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_exist(page: Path) -> None:
    group = typer.main.get_command(app)
    for line in (line for text in [*fences(page, ""), *fences(page, "bash")] for line in text.splitlines()):
        match = COMMAND.match(line.strip().removesuffix("&").split("#")[0].strip())
        if match is None or any(match[1].startswith(other) for other in NOT_COMMANDS):
            continue
        _, command, *arguments = shlex.split(match[1])
        assert command in group.commands, f"{line}: no such command"
        found = group.commands[command]
        spelled = {option for parameter in found.params for option in parameter.opts}
        assert {item for item in arguments if item.startswith("-")} <= spelled | {"--help"}, line
