"""The kernels of a card are CUDA C++ that the compiler accepts, for the oldest and newest cards; skips without nvcc."""

import shutil
import subprocess
from pathlib import Path

import pytest

from congruence.kernels.device_kernels import ELEMENTWISE, L1_SOURCE

NVCC = shutil.which("nvcc")
_TYPES = {"int32": "int", "int64": "long long"}


def elementwise(source, kind):
    """An ElementwiseKernel as CuPy writes it: a loop over the elements, arguments by name."""
    parameters = [part.split() for part in f"{source.inputs}, {source.outputs}".split(",")]
    heads, locals_ = [], []
    for *raw, of, name in parameters:
        c_type = kind if of == "T" else _TYPES[of]
        heads.append(f"{c_type}* {name}" if raw else f"{c_type}* all_{name}")
        if not raw:
            locals_.append(f"{c_type}& {name} = all_{name}[i];")
    return (
        f'extern "C" __global__ void {source.name}_{kind}(ptrdiff_t n, {", ".join(heads)}) {{ typedef {kind} T;\n'
        "for (ptrdiff_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) {\n"
        f"{' '.join(locals_)} {source.operation} }} }}\n"
    )


@pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
def test_nvcc_compiles_every_kernel_without_a_warning_or_spills(tmp_path: Path):
    code = "#include <cstddef>\n"
    for kind in ("float", "double"):
        code += "".join(elementwise(source, kind) for source in ELEMENTWISE)
        laplacian = L1_SOURCE.replace("congruence_laplacian", f"laplacian_{kind}")
        code += f"namespace l1_{kind} {{ typedef {kind} T;\n{laplacian} }}\n"
    file = tmp_path / "kernels.cu"
    file.write_text(code)
    command = [
        NVCC,
        "-cubin",
        "-arch=sm_90",
        "-Xptxas",
        "-v",
        "-Werror",
        "all-warnings",
        "-o",
        str(tmp_path / "k.cubin"),
    ]
    built = subprocess.run([*command, str(file)], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "k.cubin").stat().st_size > 0
    used = [line for line in built.stderr.splitlines() if "spill" in line]
    assert len(used) == 2 * (len(ELEMENTWISE) + 1)
    assert all("0 bytes spill stores, 0 bytes spill loads" in line for line in used), built.stderr
    oldest = subprocess.run(
        [NVCC, "-ptx", "-arch=sm_75", "-o", str(tmp_path / "k.ptx"), str(file)], capture_output=True
    )
    assert oldest.returncode == 0, oldest.stderr
