"""In headless Chromium: what one selects, the other views show; rows open; three widths, light and dark, no errors."""

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from mlflow_pages import CHROMIUM, Browser

from congruence.kernels import RBF, Normal, Poisson, prepare
from congruence.kernels.monitoring.evidence import Look, Monitor
from congruence.kernels.protocol import EXACT
from congruence.tasks.comparison.versions import compare_versions
from congruence.tasks.monitor.account import Account
from congruence.tasks.report.comparison import comparison_report, reliability_page
from congruence.tasks.report.evaluation import evaluation_report
from congruence.tasks.report.page import render
from congruence.tasks.scores.evaluation import SplitSummary, WhatIsWrong
from congruence.tasks.scores.reliability import reliability

ERRORS = """
window.errors = [];
addEventListener("error", (event) => errors.push(event.message));
console.error = (...said) => errors.push(said.join(" "));
"""
PRESS = "new KeyboardEvent('keydown', {key: '%s', bubbles: true})"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    browser = Browser()
    browser.call("Page.enable")
    browser.call("Page.addScriptToEvaluateOnNewDocument", source=ERRORS)
    yield browser
    browser.close()


@pytest.fixture(autouse=True)
def _no_page_has_an_error(browser: Browser) -> Iterator[None]:
    yield
    assert browser.evaluate("window.errors.join()") == ""


@pytest.fixture(scope="module")
def pages(make_evaluation: Any, compared: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A report with a sentence on one half of the rows, and a comparison of three versions."""
    evaluation = make_evaluation(rows=400)
    scores = evaluation.valid_scores
    places = pd.DataFrame({"place": ["half left", "half right"], "rows": [190, 208], "fault": ["heavier tails", ""],
                           "shift": 0.1, "factor": 1.2, "q_value": 0.01})  # fmt: skip
    said = ("The predicted spread is too small.", "Where half is left (190 rows, 48 %) too narrow.")
    features = pd.DataFrame({"age": np.linspace(20, 70, len(scores)), "bonus": np.arange(len(scores)) % 5},
                            index=scores.index)  # fmt: skip
    explored = replace(evaluation, wrong=WhatIsWrong(said, places), features=features)
    folder = tmp_path_factory.mktemp("pages")
    found = {"report": folder / "report.html", "comparison": folder / "comparison.html"}
    found["report"].write_text(evaluation_report(explored))
    found["counts"] = folder / "counts.html"
    found["counts"].write_text(evaluation_report(of_counts(explored)))
    found["comparison"].write_text(comparison_report(compare_versions(compared, baseline="angle/2", resamples=50)))
    return found


def of_counts(evaluation: Any) -> Any:
    """The same rows with counts as targets, most of them 0, and a table of places in their terms."""
    scores, rows = evaluation.valid_scores, len(evaluation.valid_scores)
    rate = np.linspace(0.05, 0.5, rows)
    y = np.random.default_rng(2).poisson(rate).astype(float)
    law = Poisson(rate)
    table = evaluation.scores.copy()
    table.loc[scores.index, ["target", "mean", "std"]] = np.column_stack([y, rate, np.sqrt(rate)])
    place = {"place": ["half left"], "rows": [190], "fault": [""], "observed": [40.0], "expected": [42.5],
             "ratio": [0.94], "ratio_low": [0.7], "ratio_high": [1.3], "zeros_observed": [0.8],
             "zeros_expected": [0.79], "ones_observed": [0.15], "ones_expected": [0.16],
             "more_observed": [0.05], "more_expected": [0.05], "q_value": [0.8]}  # fmt: skip
    wrong = WhatIsWrong(("No fault found.",), pd.DataFrame(place))
    return replace(evaluation, scores=table, targets=y, predictive=law, wrong=wrong)


def look(browser: Browser, page: Path, *, width: int = 1000, dark: bool = False) -> None:
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    browser.call("Emulation.setEmulatedMedia", features=scheme)
    browser.open(page.as_uri())
    assert browser.wait("document.documentElement.dataset.ready === 'yes'", 20)
    assert browser.evaluate("errors.join()") == ""


def said(browser: Browser, selector: str) -> str:
    return str(browser.evaluate(f"document.querySelector({json.dumps(selector)}).textContent"))


@pytest.mark.parametrize("name", ["report", "comparison", "counts"])
def test_a_page_is_whole_at_three_widths_in_light_and_dark(browser: Browser, pages: dict[str, Path], name: str) -> None:
    for width, dark in ((400, False), (1000, True), (1600, False)):
        look(browser, pages[name], width=width, dark=dark)
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        painted = "[...document.getElementById('map').getContext('2d').getImageData(0, 0, 300, 200).data]"
        assert int(str(browser.evaluate(f"new Set({painted}).size"))) > 10
        assert int(str(browser.evaluate("document.querySelectorAll('#along svg').length"))) >= 3
        ground = str(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert (ground < "rgb(100") == dark or ground.startswith("rgb(15") == dark


@pytest.mark.parametrize("name", ["report", "comparison", "counts"])
def test_printed_nothing_is_cut_and_dark_is_light(browser: Browser, pages: dict[str, Path], name: str) -> None:
    """On a landscape A4 page, 1,047 pixels within its margins."""
    look(browser, pages[name], width=1047, dark=True)
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.call("Emulation.setEmulatedMedia", media="print", features=features)
    wide = "[...document.querySelectorAll('main *')].filter((each) => each.getBoundingClientRect().right > 1047 + 1)"
    assert browser.evaluate(f"{wide}.map((each) => each.outerHTML.slice(0, 80)).join()") == ""
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert browser.evaluate("getComputedStyle(document.querySelector('.controls')).display") == "none"
    printed = base64.b64decode(browser.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"])
    assert printed.startswith(b"%PDF")
    browser.call("Emulation.setEmulatedMedia", media="", features=[])


def test_a_row_of_text_shows_its_text_and_a_year_is_no_amount(
    browser: Browser, make_evaluation: Any, tmp_path: Path
) -> None:
    evaluation = make_evaluation(rows=90)
    index = evaluation.valid_scores.index
    features = pd.DataFrame({"year": 2021.0, "price": np.arange(len(index)) + 20_000.0}, index=index)
    texts = replace(
        evaluation, thumbnails=None, texts=lambda rows: [f"<b>text</b> {r}" for r in rows], features=features
    )
    page = tmp_path / "texts.html"
    page.write_text(evaluation_report(texts))
    look(browser, page)
    worst = int(evaluation.valid_scores["cce"].idxmax())
    assert said(browser, "#row-text") == f"<b>text</b> {worst}"
    values = said(browser, "#row-values")
    assert "year2021" in values
    assert "price20," in values


def test_the_map_is_drawn_once_it_has_a_width_and_follows_it(browser: Browser, pages: dict[str, Path]) -> None:
    """A sandboxed frame may be given its size after its scripts ran, and no window is resized then."""
    hide = "const main = document.querySelector('main'); if (main) { main.hidden = true; seen.disconnect(); }"
    hide = f"new MutationObserver((_, seen) => {{ {hide} }}).observe(document, {{childList: true, subtree: true}})"
    added = browser.call("Page.addScriptToEvaluateOnNewDocument", source=hide)
    look(browser, pages["report"])
    browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=added["identifier"])
    painted = (
        "(map => map.width && new Set(map.getContext('2d').getImageData(0, 0, map.width, map.height).data).size > 10)"
    )
    painted += "(document.getElementById('map'))"
    assert not browser.evaluate(painted)
    browser.evaluate("document.querySelector('main').hidden = false")
    assert browser.wait(painted, 20)
    browser.evaluate("document.querySelector('main').style.width = '500px'")
    assert browser.wait("document.getElementById('map').width === document.getElementById('map').clientWidth", 20)
    assert browser.wait(painted, 20)


def test_every_control_is_reached_by_keys(browser: Browser, pages: dict[str, Path]) -> None:
    """Whatever reacts to a click is a control or has a place in the order of the tab key, and a name."""
    look(browser, pages["report"])
    for each in ("#map", "#along g.bin", "ul.sentences button", "#rows button", "#places th button", "#clear"):
        found = f"[...document.querySelectorAll({json.dumps(each)})]"
        assert int(str(browser.evaluate(f"{found}.length"))) > 0, each
        assert browser.evaluate(f"{found}.every((one) => one.tabIndex >= 0)"), each
    named = "one.getAttribute('aria-label') || one.labels?.length || one.textContent.trim()"
    assert browser.evaluate(f"[...document.querySelectorAll('button, select, input, canvas')].every((one) => {named})")


def test_a_sentence_selects_its_rows_in_map_features_and_table_and_a_row_opens(
    browser: Browser, pages: dict[str, Path]
) -> None:
    look(browser, pages["report"])
    assert said(browser, "#selected-words") == "Nothing selected: all 398 rows"
    before = browser.evaluate("document.getElementById('map').toDataURL()")
    browser.evaluate("document.querySelectorAll('ul.sentences button')[0].click()")
    assert said(browser, "#selected-words").startswith("Selected: Where half is left (190 rows, 48 %) too narrow: ")
    count = int(said(browser, "#selected-words").split(": ")[-1].split()[0])
    assert 100 < count < 300
    assert said(browser, "#rows-count") == f"25 of {count}"
    assert browser.evaluate("document.getElementById('map').toDataURL()") != before
    assert browser.evaluate("document.querySelectorAll('#along circle[fill=none]').length > 10")
    chosen = said(browser, "#rows tbody tr:nth-child(3) button")
    browser.evaluate("document.querySelector('#rows tbody tr:nth-child(3) button').click()")
    assert said(browser, "#row-title").startswith(f"Row {chosen}: image-")
    assert "target" in said(browser, "#law")
    assert browser.evaluate("document.querySelectorAll('#law polygon').length") == 1
    # Keys alone: from point to point on the map, one of them opened, and all rows again.
    browser.evaluate(f"document.getElementById('map').dispatchEvent({PRESS % 'ArrowRight'})")
    assert said(browser, "#map-said").endswith("Enter opens it.")
    browser.evaluate(f"document.getElementById('map').dispatchEvent({PRESS % 'Enter'})")
    assert said(browser, "#row-title").startswith(f"Row {said(browser, '#map-said').split()[1].rstrip(',')}:")
    browser.evaluate(f"document.dispatchEvent({PRESS % 'Escape'})")
    assert said(browser, "#rows-count") == "25 of 398"
    # A bin of a feature, and a table's order.
    browser.evaluate("document.querySelector('#along g.bin').dispatchEvent(new Event('click'))")
    assert said(browser, "#selected-words").startswith("Selected: ")
    browser.evaluate("document.querySelector('#places th:nth-child(2) button').click()")
    assert said(browser, "#places tbody td") == "half right"


def test_two_versions_are_looked_at_side_by_side(browser: Browser, pages: dict[str, Path]) -> None:
    look(browser, pages["comparison"])
    assert said(browser, "section b").startswith("angle/1 wins: better than angle/2 on ")
    browser.evaluate("document.querySelectorAll('[data-look]')[1].click()")
    assert said(browser, "#along-title") == "CRPS: angle/3 less angle/2"
    browser.evaluate("document.getElementById('lost').click()")
    assert said(browser, "#selected-words").startswith("Selected: rows lost by angle/3: ")
    assert said(browser, "#row-winner").startswith("angle/2 scores better, by ")
    assert "angle/3: " in said(browser, "#law")


def test_a_page_runs_in_a_frame_without_an_origin_as_mlflow_shows_it(
    browser: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    """MLflow puts an HTML artifact as a blob into an iframe that may run scripts and nothing else."""
    tell = "parent.postMessage(document.querySelector('#rows-count').textContent, '*')"
    report = f"<script>setTimeout(() => {tell})</script>"
    page = pages["report"].read_text().replace("</body>", report + "</body>")
    outer = tmp_path / "outer.html"
    text = json.dumps(page).replace("<", "\\u003c")
    outer.write_text(f"""<body><script>
        addEventListener("message", (event) => (document.title = event.data));
        const frame = document.createElement("iframe");
        frame.sandbox = "allow-scripts";
        frame.src = URL.createObjectURL(new Blob([{text}], {{type: "text/html"}}));
        document.body.append(frame);
    </script></body>""")
    browser.open(outer.as_uri())
    assert browser.wait("document.title === '25 of 398'", 20)


def test_the_page_of_scored_inputs_draws_its_curves_and_sorts_its_table(
    browser: Browser, make_evaluation: Any, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    x, new = rng.normal(size=(400, 2)), np.vstack([rng.normal(size=(60, 2)), [[30.0, 0.0], [60.0, 0.0]]])
    law = Normal(x[:, 0], np.ones(400))
    y = law.mean() + rng.normal(size=400) + 2 * (x[:, 1] > 0.5)
    found = prepare(x, query=new, input_kernel=RBF(0.5)).conditional_congruence_error(y, law)
    scores = prepare(x, input_kernel=RBF(0.5), regularization=1e-3).score_inputs(new, y, law)
    frame = pd.DataFrame({"key": [f"input-{row}" for row in range(62)], "valid": True, "reason": ""})
    made, summary = make_evaluation(rows=40), SplitSummary("inputs", "d" * 64, 62, 62)
    laws = Normal(new[:, 0], np.ones(62))
    page = tmp_path / "report.html"
    page.write_text(
        reliability_page(reliability(made.model, EXACT, made.split, summary, frame, found, scores, laws, new[:, 0]))
    )
    for width, dark in ((400, False), (1200, True)):
        look(browser, page, width=width, dark=dark)
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert browser.evaluate("document.querySelectorAll('[data-curves=labelled] svg polyline').length") == 9
        assert browser.evaluate("document.querySelectorAll('[data-curves=inputs] svg').length") == 3
    assert "% withheld" in said(browser, "[data-curves=labelled] svg rect title")
    rows = int(str(browser.evaluate("document.querySelectorAll('#withheld tbody tr').length")))
    assert rows == int(scores.withhold.sum()) > 2
    browser.evaluate("document.querySelector('#withheld th:nth-child(3) button').click()")
    browser.evaluate("document.querySelector('#withheld th:nth-child(3) button').click()")
    assert said(browser, "#withheld tbody td") in ("input-60", "input-61")


@pytest.mark.parametrize("width", [400, 900, 1280, 1900])
def test_the_pictures_of_a_page_over_time_can_be_read(
    browser: Browser, compared: Any, tmp_path: Path, width: int
) -> None:
    """Four beside each other, their words were 6 pixels high."""
    week = "2026-0{0}-02 to 2026-0{0}-08"
    looks = tuple(Look(f"{k}", p, week.format(k + 1), rows=400) for k, p in enumerate((0.4, 0.7, 1e-9, 1e-9)))
    series = Account(tuple(compared[number] for number in (0, 0, 1, 1)), Monitor(looks=looks))
    assert series.monitor.began_at is not None
    data, scripts = {"series": [series.plain()]}, ("page", "charts", "over_time")
    page = tmp_path / "over-time.html"
    page.write_text(render("over_time.html", title="angle over time", series=[series], page=data, scripts=scripts))
    look(browser, page, width=width)
    height = "Math.min(...[...document.querySelectorAll('[data-series] svg')].map(svg => 11 * svg.getScreenCTM().a))"
    assert float(str(browser.evaluate(height))) >= 8.5
    past = "[...document.querySelectorAll('[data-series] svg text')].filter(text => {const at = text.getBBox(); "
    past += "return at.x < -1 || at.x + at.width > 401}).map(text => text.textContent).join()"
    assert browser.evaluate(past) == ""
