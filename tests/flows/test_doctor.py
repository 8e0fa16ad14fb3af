"""`congruence doctor` as a person runs it: a line for everything; exit status and JSON for machines."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
import yaml
from commands import run
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.settings import PREFECT_API_URL

from congruence.flows.operations.doctor import _address, diagnose, exit_status
from congruence.tasks.doctor.findings import Check, examine
from congruence.tasks.doctor.prefect_server import prefect_server as look_at


async def create_pool(name: str, worker: str | None = None) -> None:
    async with get_client() as client:
        await client.create_work_pool(WorkPoolCreate(name=name, type="process"), overwrite=True)
        if worker is not None:
            await client.send_worker_heartbeat(name, worker, 30.0)


def of_prefect(pool: str | None) -> list[tuple[str, str]]:
    address = _address(str(PREFECT_API_URL.value()))
    found = examine([Check("Prefect", lambda: look_at(address, pool))])
    return [(item.level, f"{item.place}: {item.said}; {item.remedy}") for item in found]


@pytest.mark.usefixtures("prefect_server")
def test_a_prefect_server_its_pool_and_its_worker() -> None:
    asyncio.run(create_pool("served", "worker-of-the-test"))
    asyncio.run(create_pool("left"))
    assert [level for level, _ in of_prefect(None)] == ["ok", "ok", "ok"]
    assert of_prefect("served")[-1] == (
        "ok",
        "Prefect's work pool: 'served' (process) is served by worker-of-the-test; ",
    )
    level, said = of_prefect("left")[-1]
    assert (level, "prefect worker start --pool left" in said) == ("wrong", True)
    level, said = of_prefect("absent")[-1]
    assert (level, "prefect work-pool create absent" in said) == ("wrong", True)


def test_the_command_ends_in_seconds_with_its_status(tmp_path: Path) -> None:
    content = {
        "models": ["angle"],
        "splits": [{"uri": "nowhere.parquet", "input": "photo", "target": "y"}],
        "encoder": {"kind": "open_clip", "model": "compact"},
        "tracking": {"uri": "http://me:hunter22@127.0.0.1:9"},
        "cluster": {"kind": "address", "address": "tcp://127.0.0.1:9"},
    }
    file = tmp_path / "evaluation.yaml"
    file.write_text(yaml.safe_dump(content))
    started = time.monotonic()
    status, loaded, said = run("doctor", str(file), "--json", "--home", str(tmp_path / "home"), PREFECT_API_URL="")
    assert time.monotonic() - started < 60, "seconds where the machine is not busy"
    assert status == 1
    assert "torch" not in loaded
    assert "hunter22" not in said
    report = json.loads(said[said.index("{") :])
    wrong = {item["place"] for item in report["findings"] if item["level"] == "wrong"}
    assert wrong == {"data", "MLflow", "Dask"}
    assert report["exit_status"] == 1


def test_a_file_that_cannot_be_read_is_a_line_among_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from congruence.flows.operations import doctor

    monkeypatch.setattr(doctor, "_checks", lambda *_: iter([Check("rest", lambda: iter([]))]))
    monkeypatch.setattr(doctor, "embed_servers", lambda home: home)
    file = tmp_path / "evaluation.yaml"
    file.write_text("models: [a]\nsplit: []\n")
    found = list(diagnose(file, tmp_path, None))
    assert exit_status(found) == 1
    assert {item.place for item in found} == {"evaluation file"}
    assert any("did you mean 'splits'" in item.said for item in found)
