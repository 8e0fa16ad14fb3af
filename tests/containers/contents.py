"""What images consist of: the resolved packages of the one for cards, and a list of what is in another."""

import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

from engine import OWN, Engine
from images import ROOT, build

MARK = re.compile(r"--packages\s+\\\n\s+([\w ]+) \$device")


def for_cards(folder: Path) -> dict[str, str]:
    """The packages that the image with DEVICE=cuda installs, by uv from the default index: name and version."""
    (extras,) = MARK.findall((ROOT / "infra" / "Containerfile").read_text())
    needed = runpy.run_path(str(ROOT / "infra" / "install.py"))["requirements"]
    described = tomllib.loads((ROOT / "pyproject.toml").read_text())
    given = folder / "cards.txt"
    given.write_text("\n".join(needed(described, [*extras.split(), "gpu"])))
    command = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet", "--no-config", "--no-header"]
    command += ["--no-annotate", "--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28"]
    command += ["--constraint", str(ROOT / "constraints.txt"), str(given)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_"))}
    if "PIP_CERT" in os.environ:
        environment["SSL_CERT_FILE"] = os.environ["PIP_CERT"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found = dict(line.split("==", 1) for line in done.stdout.splitlines() if "==" in line)
    assert {"torch", "cupy-cuda13x", "dask-cuda", "rmm-cu13", "nvidia-cudnn-cu13"} <= set(found), sorted(found)
    assert "+cpu" not in found["torch"], found["torch"]
    return found


def image_for_cards(engine: Engine, tree: Path, python: str) -> str:
    """The image with DEVICE=cuda, whose packages are imported where no card is: its size and what they say."""
    image, file = f"{OWN}/cards", tree / "infra" / "Containerfile"
    build(engine, tree, file, image, own_index=False, DEVICE="cuda", PYTHON_IMAGE=python)
    script = "import torch, cupy, dask_cuda, rmm; print(torch.__version__, torch.version.cuda, cupy.__version__)"
    limits = [word for name, most in engine.limits.items() for word in ("--ulimit", f"{name}={most}:{most}")]
    found = engine("run", "--rm", "--network", "none", *limits, image, "python", "-c", script).stdout.split()
    assert found[1] != "None", found
    return f"{engine.size(image) / 1e9:.2f} GB; torch {found[0]} for CUDA {found[1]}, CuPy {found[2]}"


def bill(engine: Engine, image: str) -> str:
    """The image's Python and Debian packages in CycloneDX, by infra/sbom.Containerfile: how many there are."""
    folder = engine.folder / "sbom"
    build(engine, ROOT / "infra", ROOT / "infra" / "sbom.Containerfile", f"{OWN}/sbom", output=folder, IMAGE=image)
    counts = {}
    for file in sorted(folder.glob("*.cdx.json")):
        content = json.loads(file.read_text())
        assert content["bomFormat"] == "CycloneDX", file
        counts[file.name] = len(content["components"])
    assert set(counts) == {"python.cdx.json", "debian.cdx.json"}, counts
    assert min(counts.values()) > 50, counts
    return ", ".join(f"{count} in {name}" for name, count in counts.items())
