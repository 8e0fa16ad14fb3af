"""What NVRTC says of every kernel of ours: the source that CuPy hands it, for the architectures that are meant."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ARCHITECTURES = ("80", "90", "100")
"""A100; H100 and H200; B200."""

SHARED_BYTES = 48 * 2**10
"""Static shared memory that a block may have on every card."""

OURS = frozenset(
    re.findall(r"\bcongruence_\w+", (Path(__file__).parents[3] / "kernels" / "device_kernels.py").read_text())
)
_OURS = re.compile(r"__global__ void (congruence_\w+)")
_FLOATS = {"double": "float64", "float": "float32"}


KEPT = "compiled.jsonl"


def compiling(nvrtc: Callable[..., Any], folder: Path) -> Callable[..., tuple[bytes, None]]:
    """What CuPy calls to compile: by NVRTC, to keep what it says in ``folder``, and the source is the binary.

    A kernel of ours is compiled for all ARCHITECTURES, one of CuPy's for the card that is pretended.
    """

    def compile_(source: str, options: Any = (), arch: Any = None, *rest: Any, **named: Any) -> tuple[bytes, None]:
        name = _OURS.search(source)
        if name is not None:
            variants = dict.fromkeys((source, of_large_arrays(source)))
            rows = [row for each in variants for row in compiled(nvrtc, name[1], each, options)]
        else:
            started = time.perf_counter()
            nvrtc(source, options, arch, *rest, **named)
            rows = [{"arch": f"sm_{arch}", "seconds": round(time.perf_counter() - started, 3)}]
        with (folder / KEPT).open("a") as kept:
            kept.write("".join(json.dumps(row) + "\n" for row in rows))
        return source.encode(), None

    return compile_


def kept(folder: Path) -> list[dict[str, Any]]:
    """The rows of kernels of ours that were compiled, without repetitions."""
    return [row for row in map(json.loads, dict.fromkeys(_lines(folder))) if "kernel" in row]


def of_others(folder: Path) -> list[float]:
    """Seconds that NVRTC took for each of CuPy's own kernels."""
    return [float(row["seconds"]) for row in map(json.loads, _lines(folder)) if "kernel" not in row]


def _lines(folder: Path) -> list[str]:
    place = folder / KEPT
    return place.read_text().splitlines() if place.exists() else []


def compiled(compile_: Any, name: str, source: str, options: tuple[str, ...]) -> list[dict[str, Any]]:
    """A row for each architecture: registers, shared memory and spills as ptxas says them, or the compiler's words."""
    from cupy.cuda.compiler import CompileException

    made = []
    for arch in ARCHITECTURES:
        row: dict[str, Any] = {"kernel": name, "arguments": arguments(source), "arch": f"sm_{arch}"}
        log = io.StringIO()
        try:
            compile_(source, (*options, "--ptxas-options=-v"), arch, f"{name}.cu", log_stream=log)
        except CompileException as error:
            row["error"] = with_lines(str(error), source)
        else:
            row |= resources(log.getvalue())
        made.append(row)
    return made


def of_large_arrays(source: str) -> str:
    """The source that CuPy makes for arrays beyond 32-bit offsets, which no test here has the memory for."""
    return re.sub(r"(CArray<\w+(?:, \d+){2}|CIndexer<\d+), 1>", r"\1, 0>", source)


def arguments(source: str) -> str:
    """Types of the arrays of a kernel, by which CuPy's variants of one differ."""
    head = re.search(r"__global__ void \w+\((.*?)\)\s*\{", source, re.DOTALL)
    assert head is not None
    typedef = re.search(r"typedef (\w+) T;", source)
    precision = _FLOATS.get(typedef[1] if typedef else "", "")
    arrays = re.findall(r"CArray<\w+, ([\d, ]+)> _?r?a?w?_?(\w+)", head[1])
    return " ".join([precision, *(f"{name}<{shape.replace(' ', '')}>" for shape, name in arrays)])


def resources(log: str) -> dict[str, int]:
    """Registers, static shared memory, stack and spills, in bytes but for the registers, from ptxas's words."""

    def number(pattern: str) -> int:
        found = re.search(pattern, log)
        return int(found[1]) if found else 0

    if not re.search(r"Used \d+ registers", log):
        raise ValueError(f"ptxas did not say what a kernel takes: {log!r}")
    return {
        "registers": number(r"Used (\d+) registers"),
        "shared": number(r"(\d+) bytes smem"),
        "stack": number(r"(\d+) bytes stack frame"),
        "spilled": number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
    }


def with_lines(said: str, source: str) -> str:
    """The compiler's words, with the line of the source below each that names one."""
    lines = source.splitlines()
    told = []
    for line in said.splitlines():
        told.append(line)
        place = re.search(r"\.cu\((\d+)\)", line)
        if place and int(place[1]) <= len(lines):
            told.append(f"    {place[1]}: {lines[int(place[1]) - 1].strip()}")
    return "\n".join(told)


def objections(rows: list[dict[str, Any]]) -> list[str]:
    """What is wrong with kernels: not compiled, more shared memory than a block has, memory for want of registers."""
    lines = []
    for row in rows:
        what = f"{row['kernel']} ({row['arguments']}, {row['arch']})"
        if "error" in row:
            lines.append(f"{what}: {row['error']}")
            continue
        if row["shared"] > SHARED_BYTES:
            lines.append(f"{what} takes {row['shared']} bytes of shared memory, a block has {SHARED_BYTES}")
        if row["spilled"] or row["stack"]:
            lines.append(f"{what} keeps {row['stack']} bytes on a stack and spills {row['spilled']}")
    return lines
