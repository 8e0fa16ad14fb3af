"""What LocalCUDACluster makes of the options it is given, without a card: its checks, and what a worker would start as.

NVML's answers are pretended and no worker is started; the scheduler is. That the pool's fractions, the allocators, the
protocol and the environment arrive is read off the specification of a worker.
"""

from __future__ import annotations

import inspect
import types
from typing import Any, Literal

MEMORY = 141 * 2**30


def pretend_nvml(cards: int) -> None:
    """NVML with ``cards`` cards."""
    import pynvml

    memory = types.SimpleNamespace(total=MEMORY, free=MEMORY, used=0)
    answers: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: cards,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetMemoryInfo": lambda _: memory,
        "nvmlDeviceGetUtilizationRates": lambda _: types.SimpleNamespace(gpu=0),
        "nvmlDeviceGetName": lambda _: "No card",
        "nvmlDeviceGetCpuAffinity": lambda _, words: [1] * words,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetMigMode": lambda _: [0, 0],
        "nvmlDeviceGetComputeRunningProcesses_v2": lambda _: [],
    }
    for name, answer in answers.items():
        setattr(pynvml, name, answer)
    import ucxx._cuda_context

    ucxx._cuda_context.ensure_cuda_context = lambda _: None  # ucx makes one where the scheduler is, too


def objections() -> list[str]:
    """What is not as it should be on one card over tcp and on two over tcp and ucx."""
    from congruence.tasks.settings.computing import ClusterSettings

    pretend_nvml(2)
    lines = []
    plans: list[tuple[list[str], Literal["tcp"] | None]] = [(["0"], None), (["0", "1"], "tcp"), (["0", "1"], None)]
    for cards, protocol in plans:
        settings = ClusterSettings(kind="cuda", protocol=protocol)
        where = f"LocalCUDACluster, {len(cards)} cards, {protocol or 'the default protocol'}"
        try:
            lines += [f"{where}: {line}" for line in _of(settings, cards)]
        except Exception as error:  # whatever it is, the cluster would not have started
            cause = error.__cause__ or error
            lines.append(f"{where}: {type(cause).__name__}: {cause}")
    return lines


def _of(settings: Any, cards: list[str]) -> list[str]:
    import dask
    import distributed
    from dask_cuda import LocalCUDACluster
    from dask_cuda.plugins import RMMSetup
    from dask_cuda.utils import parse_device_bytes
    from distributed import Nanny

    from congruence.tasks.dask.cluster_spec import cuda_cluster_options, worker_environment

    class Planned(LocalCUDACluster):  # type: ignore[misc]
        def scale(self, *_: Any, **__: Any) -> None:
            """No worker is started."""

    options, environment = cuda_cluster_options(settings, cards), worker_environment(settings)
    with (
        dask.config.set({"distributed.nanny.pre-spawn-environ": environment}),
        Planned(**options) as cluster,
    ):
        (worker,) = cluster.new_worker_spec().values()
        nanny = Nanny(cluster.scheduler_address, **worker["options"])
    given, lines = worker["options"], []
    known = set(inspect.signature(Nanny).parameters) | set(inspect.signature(distributed.Worker).parameters)
    lines += [f"a worker takes no {name}" for name in sorted(set(given) - known)]
    (pool,) = [plugin for plugin in given["plugins"] if isinstance(plugin, RMMSetup)]
    sizes = [parse_device_bytes(each, alignment_size=256) for each in (pool.initial_pool_size, pool.maximum_pool_size)]
    wanted = [settings.card_share / 4 * MEMORY, settings.card_share * MEMORY]
    if any(abs(size - right) > 256 for size, right in zip(sizes, wanted, strict=True)):
        lines.append(f"pools of {sizes} bytes, wanted {wanted}")
    if pool.external_lib_list != ["torch", "cupy"]:
        lines.append(f"allocators for {pool.external_lib_list}")
    if not environment.items() <= nanny.pre_spawn_env.items():
        lines.append(f"workers start with {nanny.pre_spawn_env}")
    if given["env"].get("CUDA_VISIBLE_DEVICES", "").split(",")[0] != cards[0]:
        lines.append(f"the first worker sees {given['env']}")
    if not cluster.scheduler_address.startswith(f"{options['protocol']}://"):
        lines.append(f"the scheduler is at {cluster.scheduler_address}")
    if "dask_cuda.initialize" not in given["preload"]:
        lines.append("no worker makes its context")
    return lines


if __name__ == "__main__":
    print(objections())
