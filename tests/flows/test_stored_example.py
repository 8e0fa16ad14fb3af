"""The worked example of stored predictions, as a reader runs it: two Parquet files, four commands, the page."""

import re
from pathlib import Path

import pytest
from commands import run_all

PAGE = Path(__file__).parents[2] / "docs" / "examples" / "stored-predictions.md"


@pytest.mark.exercise  # two dozen evaluations with their reports
def test_the_page_says_what_its_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fences = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for code in (text for kind, text in fences if kind == "python"):
        exec(compile(code, PAGE.name, "exec"), {"__name__": "__main__"})
    lines = "".join(text for kind, text in fences if kind == "bash").splitlines()
    no_browser = [[*line.split()[1:], *(["--print"] if "--over-time" in line else [])] for line in lines]
    done = run_all(no_browser, CONGRUENCE_HOME=str(tmp_path / "home"))
    assert [status for status, _, _ in done] == [0] * len(lines), done
    printed = "".join(" ".join(said.split()) + " " for _, _, said in done)
    for text in (text for kind, text in fences if kind == "text"):
        assert " ".join(text.split()) in printed
    assert "predicting production" not in printed, "no model is asked"
    for version in ("v1", "v3"):
        assert f"{version} on production: right so far" in printed
    (verdict,) = re.findall(r"v2 on production: .*?Its look", printed)
    assert "Inputs: no change against 2026-01-26 to 2026-02-01" in verdict
    page = next(path for path in re.findall(r"file://(\S+over-time\.html)", printed))
    assert "v2 on production" in Path(page).read_text()
    assert "v3" in printed.rpartition("negative is better")[0] + printed
