"""Cards are found on the workers, whatever started them; what a cluster of them is given, and who has which part."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from pydantic import ValidationError

from congruence.tasks.dask import gpus as cards
from congruence.tasks.dask.cluster_spec import cuda_cluster_options, worker_environment
from congruence.tasks.dask.clusters import dask_client
from congruence.tasks.dask.gpus import WorkerDevice, devices_in_words, own_device, solves_on_cards, worker_devices
from congruence.tasks.runtime import memory
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.settings.computing import ClusterSettings


class _RuntimeError(RuntimeError):
    pass


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """A driver and a CuPy that shows one card with 100 GiB."""
    driver = tmp_path / "nvidiactl"
    driver.touch()
    monkeypatch.setattr(cards, "DRIVER_PATHS", (driver,))
    runtime = SimpleNamespace(
        CUDARuntimeError=_RuntimeError,
        getDeviceCount=lambda: 1,
        getDeviceProperties=lambda _: {"name": b"Card", "totalGlobalMem": 100 * 2**30, "pciBusID": 3},
    )
    for name in ("cupy", "cupyx", "cupyx.scipy", "cupyx.scipy.linalg"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["cupy"].cuda = SimpleNamespace(runtime=runtime)  # type: ignore[attr-defined]
    monkeypatch.delenv("CUPY_TF32", raising=False)
    monkeypatch.delenv(memory.CARD_SHARE_VARIABLE, raising=False)
    return runtime


def test_a_worker_finds_its_card_and_says_why_it_cannot_use_it(
    card: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = own_device()
    assert (device.card, device.memory_bytes) == ("Card", 80 * 2**30)
    monkeypatch.setenv(memory.CARD_SHARE_VARIABLE, "0.4")
    assert own_device().memory_bytes == 40 * 2**30
    monkeypatch.setenv("CUPY_TF32", "1")
    assert "10 bits" in str(own_device())
    monkeypatch.delenv("CUPY_TF32")

    def no_driver() -> int:
        raise _RuntimeError("cudaErrorInsufficientDriver")

    card.getDeviceCount = no_driver
    assert "InsufficientDriver" in str(own_device())
    monkeypatch.setitem(sys.modules, "cupyx.scipy.linalg", None)
    assert "install congruence[gpu] on the workers" in str(own_device())
    monkeypatch.setattr(cards, "DRIVER_PATHS", ())
    assert own_device() == WorkerDevice()


def test_cards_are_asked_of_the_workers_behind_an_address(card: SimpleNamespace) -> None:
    with dask_client(ClusterSettings(kind="threads", workers=1)) as client:
        for kind in ("cuda", "address", "kubernetes"):
            settings = SimpleNamespace(kind=kind)
            assert solves_on_cards(worker_devices(client, settings))  # type: ignore[arg-type]
        assert worker_devices(client, ClusterSettings(kind="local")) == {}


def test_a_run_says_what_computes_what() -> None:
    first, second = WorkerDevice("Card", 2**36, place="a 1"), WorkerDevice("Card", 2**36, place="a 2")
    both = {"tcp://1": first, "tcp://2": second}
    assert solves_on_cards(both)
    assert devices_in_words(both) == "workers: 2 x Card (64 GiB of it); they embed and solve on their cards"
    mixed = both | {"tcp://3": WorkerDevice()}
    assert not solves_on_cards(mixed)
    assert "1 of 3 have no card, so that all solve on their processors" in devices_in_words(mixed)
    shared = {"tcp://1": first, "tcp://2": first}
    assert not solves_on_cards(shared)
    assert "share cards" in devices_in_words(shared)
    assert "dask cuda worker" in devices_in_words(shared)
    assert devices_in_words({"tcp://1": WorkerDevice(reason="no CuPy")}).endswith("they solve on their processors")
    assert devices_in_words({}) == ""
    assert not solves_on_cards({})


def test_evaluations_share_a_card_by_their_settings() -> None:
    alone = cuda_cluster_options(ClusterSettings(kind="cuda"), ["0"])
    assert (alone["rmm_pool_size"], alone["rmm_maximum_pool_size"], alone["protocol"]) == (0.2, 0.8, "tcp")
    settings = ClusterSettings(kind="cuda", card_memory=0.6, evaluations_per_card=3, workers=2)
    options = cuda_cluster_options(settings, ["0", "GPU-a", "2"])
    assert options["rmm_maximum_pool_size"] == pytest.approx(0.2)
    assert (options["n_workers"], options["CUDA_VISIBLE_DEVICES"], options["protocol"]) == (2, ["0", "GPU-a"], "ucx")
    assert cuda_cluster_options(ClusterSettings(kind="cuda", protocol="tcp"), ["0", "1"])["protocol"] == "tcp"
    environment = worker_environment(settings)
    assert float(environment[memory.CARD_SHARE_VARIABLE]) == pytest.approx(0.2)
    assert environment["CUPY_TF32"] == environment["NVIDIA_TF32_OVERRIDE"] == "0"
    with pytest.raises(ValidationError, match=r"card_memory belong to kind 'cuda'.*CONGRUENCE_CARD_SHARE"):
        ClusterSettings(kind="local", card_memory=0.5)


def test_a_cuda_cluster_without_its_packages_or_cards_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rmm", None)
    with (
        pytest.raises(SettingsError, match=r"needs the GPU packages.*rmm.*\.\[gpu\]"),
        dask_client(ClusterSettings(kind="cuda")),
    ):
        pass
    for name in ("rmm", "dask_cuda"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["dask_cuda"].LocalCUDACluster = None  # type: ignore[attr-defined]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with (
        pytest.raises(SettingsError, match=r"finds no NVIDIA card here.*CUDA_VISIBLE_DEVICES"),
        dask_client(ClusterSettings(kind="cuda")),
    ):
        pass
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1, GPU-b")
    assert cards.visible_cards() == ["1", "GPU-b"]


def test_a_share_of_a_card_that_makes_no_sense_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("all", "0", "-1", "1.5"):
        monkeypatch.setenv(memory.CARD_SHARE_VARIABLE, wrong)
        assert memory.card_share() == memory.CARD_SHARE
