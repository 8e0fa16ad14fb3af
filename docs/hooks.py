"""What the documentation's build makes itself: pictures and numbers of the faults, and plots.

A page asks for a part by a line such as ``<!-- made: gallery -->``.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

HERE = Path(__file__).parent
_DISPLAYED = re.compile(r"^\$\$(.+?)\$\$$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(?<![\w`$])\$([^$`\n]+)\$(?!\w)")
_MADE = re.compile(r"^<!-- made: (\w+) -->$", re.MULTILINE)


@cache
def _beside(name: str) -> ModuleType:
    """A file of this folder, which is no package and not on the path."""
    spec = importlib.util.spec_from_file_location(f"documentation_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look up their types
    spec.loader.exec_module(module)
    return module


@cache
def _faults() -> tuple[Path, list[dict[str, Any]]]:
    gallery = _beside("gallery")
    folder = Path(tempfile.mkdtemp(prefix="congruence-gallery-"))
    return folder, gallery.write(folder)


@cache
def _examples() -> tuple[Path, list[str]]:
    folder = Path(tempfile.mkdtemp(prefix="congruence-plots-"))
    return folder, _beside("gallery").examples(folder)


@cache
def _sample_report() -> Path:
    written: Path = _beside("sample").write(Path(tempfile.mkdtemp(prefix="congruence-sample-report-")))
    return written


def on_config(config: Any) -> Any:
    """Link to the repository that the pages are built from, where it has an address."""
    if (address := _repository()) is not None:
        config.repo_url, config.repo_name = address, address.rstrip("/").rsplit("/", 1)[-1]
    return config


def _repository() -> str | None:
    """That of GitHub's job, else of the clone's ``origin``; without a login, which an address may hold."""
    if name := os.environ.get("GITHUB_REPOSITORY"):
        return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}"
    asked = ["git", "-C", str(HERE), "config", "--get", "remote.origin.url"]
    address = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    found = re.match(r"(?:https://|ssh://|git@)(?:[^@/]*@)?([^:/]+)[:/](.+?)(?:\.git)?$", address)
    return f"https://{found[1]}/{found[2]}" if found else None


def on_files(files: Files, config: Any) -> Files:
    """Add the pictures and the sample report, which are made again with every build."""
    folder, faults = _faults()
    for fault in faults:
        picture = fault["picture"]
        files.append(File.generated(config, f"pictures/faults/{picture}", abs_src_path=str(folder / picture)))
    folder, pictures = _examples()
    for picture in pictures:
        files.append(File.generated(config, f"pictures/plots/{picture}", abs_src_path=str(folder / picture)))
    files.append(File.generated(config, "sample-report.html", abs_src_path=str(_sample_report())))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the parts that a page asks for, and write formulas as MathML, which browsers draw without a script."""
    filled = _MADE.sub(lambda match: _PARTS[match[1]](), markdown)
    displayed = _DISPLAYED.sub(
        lambda match: f'<div class="formula">{convert(match[1].strip(), display="block")}</div>', filled
    )
    # In a span: Markdown takes a line that begins with <math> for a block of its own.
    return _INLINE.sub(lambda match: f"<span>{convert(match[1])}</span>", displayed)


def _gallery() -> str:
    return "\n".join(_section(fault) for fault in _faults()[1])


def _section(fault: dict[str, Any]) -> str:
    band = f"[{fault['band'][0]:.3f}, {fault['band'][1]:.3f}]"
    largest = max(fault["effects"], key=lambda order: fault["effects"][order])
    numbers = (
        f"| CCE | expected if true | p of CCE | p of calibration | largest effect | ECE | CRPS |\n"
        f"|---|---|---|---|---|---|---|\n"
        f"| {fault['cce']:.3f} | {fault['expected']:.3f} {band} | {fault['p']:.3g} | {fault['calibration_p']:.3g} | "
        f"{largest}, {fault['effects'][largest]:.2f} | {fault['ece']:.3f} | {fault['crps']:.3f} |"
    )
    title = "A true version" if fault["name"] == "none" else fault["name"].capitalize()
    return (
        f"## {title}\n\nThe version: {fault['what']}.\n\n"
        f'<div class="panels" markdown>\n\n![{title}](pictures/faults/{fault["picture"]})\n\n</div>\n\n'
        f"{numbers}\n\n> {' '.join(fault['said'])}\n\n"
        f"{_ADVICE[fault['name']]}\n"
    )


_ADVICE = {
    "none": "CCE lies inside the band that a true version keeps: nothing can be told apart from the truth. It is not "
    "0, because the truth is estimated from finitely many targets.",
    "biased": "The targets lie on one side of the predictions everywhere. Look for a shift between training and test, "
    "a missing offset, a loss that is not a proper score. `congruence recalibrate` corrects it.",
    "overconfident": "Spread too small, everywhere by the same factor: the usual end of training by NLL for too long. "
    "MAE does not see it; ECE, CRPS and CCE do. `congruence recalibrate` corrects it.",
    "underconfident": "Spread too large. Points are predicted well, so MAE is that of the truth.",
    "homoscedastic": "On average the spread is right, so that PIT and ECE are next to perfect: too wide where the "
    "targets are calm, too narrow where they are not. CCE at the default bandwidth hardly sees it at this size; the "
    "test of calibration given the input does, and names the places.",
    "missing mode": "Mean and spread are right, the shape is not: a normal distribution puts most of its mass where no "
    "target lies. Use a mixture. Look at the PIT interpreter, which draws what the targets look like.",
    "skewed": "Mean and spread are right, the tails are not those of the targets. Choose a skewed family, or predict "
    "quantiles.",
    "ignores the input": "Flat PIT, small ECE: on average over the split this version is calibrated. At every single "
    "input it is useless. This is what a conditional metric is for.",
    "counts": "The variance of a Poisson distribution is its mean; here it is larger. A negative binomial or double "
    "Poisson distribution has a parameter for it. PIT values of counts are randomised between their two ends.",
    "ensemble": "Each row's prediction is ten draws. The members agree more with each other than with the targets: "
    "spread too small. CCE and CRPS are fair to finite ensembles: ten draws of the truth are not blamed for being ten.",
    "drifted": "Right on the inputs it was trained on, wrong beyond. Averages dilute it; CCE at every input, slices "
    "and regions name the place. `congruence score` says for new inputs which to withhold.",
}


_PARTS = {
    "gallery": _gallery,
    "verdicts": lambda: str(_beside("verdicts").page()),
}
