"""Clusters by a file: any class with its arguments, a name of one's own, Dask's settings where they are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
import yaml

from congruence.tasks.dask.cluster_spec import (
    DASK_SETTINGS,
    WORKER_ENVIRONMENT,
    ClusterSpec,
    cluster_spec,
    dask_environment,
    read_cluster_spec,
    start_cluster,
)
from congruence.tasks.dask.clusters import dask_client
from congruence.tasks.runtime.errors import ClusterError, SettingsError
from congruence.tasks.settings.computing import ClusterSettings
from congruence.tasks.settings.evaluation import load_settings

INFRA = Path(__file__).parents[2] / "infra"
IN_PROCESS = {
    "class": "distributed.LocalCluster",
    "arguments": {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": "127.0.0.1:0"},
}


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Any]:
    def written(**content: Any) -> Path:
        file = tmp_path / "cluster.yaml"
        file.write_text(yaml.safe_dump(content))
        return file

    return written


def test_two_evaluations_have_clusters_of_their_own(write: Any) -> None:
    settings = ClusterSettings(kind="spec", file=write(**IN_PROCESS))
    with dask_client(settings) as first:
        with dask_client(settings) as second:
            assert first.cluster.name != second.cluster.name
            assert second.submit(sum, [1, 2]).result() == 3
        assert first.submit(sum, [3, 4]).result() == 7, "the first to finish ended its own cluster alone"
    assert first.cluster.status.name == "closed"


def test_the_name_stands_wherever_the_file_puts_it() -> None:
    arguments = {"custom_cluster_spec": {"metadata": {"name": "${name}"}, "args": ["--tag", "a-${name}"]}}
    made = [
        start_cluster(ClusterSpec.model_validate({"class": f"{__name__}.Told", "arguments": arguments}), "here")
        for _ in range(2)
    ]
    names = [cluster.spec["metadata"]["name"] for cluster in made]
    assert names[0] != names[1]
    assert made[0].spec["args"] == ["--tag", f"a-{names[0]}"]
    assert all(name.startswith("congruence-") and len(name) < 30 for name in names)


class Told:
    scheduler_address = "tcp://nowhere"

    def __init__(self, custom_cluster_spec: dict[str, Any], name: str | None = None) -> None:
        assert name is None, "the resource has the name"
        self.spec = custom_cluster_spec

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"arguments": {}}, r"class: is missing; add it"),
        (
            {"class": "distributed.LocalCluster", "argument": {}},
            r"argument: there is no such key; did you mean",
        ),
        ({"class": "distributed.NoCluster"}, r"class: distributed.NoCluster cannot be imported"),
        ({"class": "no_such_package.Cluster"}, r"install the package that has it"),
        (
            {"class": "subprocess.Popen", "arguments": {"args": "true"}},
            r"subprocess.Popen is no class of Dask clusters",
        ),
        (
            {"class": "distributed.SpecCluster", "arguments": {"sise": 3}},
            r"SpecCluster got an unexpected keyword.*sise",
        ),
        (
            {"class": "distributed.LocalCluster", "arguments": {"name": "shared"}},
            r"arguments.name: 'shared' is fixed.*\$",
        ),
        (
            {"class": "x.Y", "arguments": {"custom_cluster_spec": {"metadata": {"name": "ours"}}}},
            r"metadata.name: 'ours' is fixed: two evaluations would share",
        ),
        ({"class": "x.Y", "arguments": {"custom_cluster_spec": "cluster.yaml"}}, r"write the resource itself"),
    ],
)
def test_what_a_file_has_wrong_is_named(write: Any, content: dict[str, Any], message: str) -> None:
    settings = ClusterSettings(kind="spec", file=write(**content))
    with pytest.raises(SettingsError, match=message), dask_client(settings):
        pass


def test_a_file_that_is_no_text_or_no_mapping_is_no_cluster_file(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    for content, message in ((b"\xff\xfe", "is not text, so it is no cluster file"), (b"- a", "found list")):
        file.write_bytes(content)
        with pytest.raises(SettingsError, match=message):
            read_cluster_spec(file)


def test_a_cluster_that_does_not_start_or_gets_no_workers_says_so(write: Any) -> None:
    fails = {"class": "distributed.LocalCluster", "arguments": {"n_workers": 1, "scheduler_port": "x"}}
    with (
        pytest.raises(ClusterError, match=r"cluster.yaml: distributed.LocalCluster did not start"),
        dask_client(ClusterSettings(kind="spec", file=write(**fails))),
    ):
        pass
    patient = ClusterSettings(kind="spec", file=write(**IN_PROCESS, wait_for=2, timeout=0.2))
    with pytest.raises(ClusterError, match=r"1 of 2 workers came within 0 s"), dask_client(patient):
        pass


def test_the_settings_say_which_keys_belong_to_which_kind(tmp_path: Path) -> None:
    for wrong, message in (
        ({"kind": "spec"}, "needs file"),
        ({"kind": "local", "file": "x.yaml"}, "no other kind takes one"),
        ({"kind": "spec", "file": "x.yaml", "workers": 3}, "from its file"),
        (
            {
                "kind": "address",
                "address": "tcp://a:1",
                "tls": dict.fromkeys(("ca_file", "cert_file", "key_file"), "x"),
            },
            "tls",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            ClusterSettings.model_validate(wrong)
    content = {"splits": [{"uri": "a.parquet", "input": "x", "target": "y"}], "encoder": {"model": "compact"}}
    (tmp_path / "evaluation.yaml").write_text(yaml.safe_dump(content | {"cluster": {"kind": "spec", "file": "c.yaml"}}))
    assert load_settings(tmp_path / "evaluation.yaml").cluster.file == tmp_path / "c.yaml"


def test_schedulers_and_workers_that_others_start_have_dask_s_settings_too() -> None:
    assert dask.config.collect_env(dask_environment())["distributed"] == DASK_SETTINGS["distributed"]
    with dask_client(ClusterSettings(kind="threads", workers=1)):
        assert dask.config.get("distributed.scheduler.worker-ttl") == "1 hour"
        assert dask.config.get("distributed.worker.memory.spill") is False
        assert dask.config.get("distributed.worker.memory.rebalance.sender-min") == 0.3, "what Dask's files say stays"
    assert dask.config.get("distributed.worker.memory.spill") == 0.7


def test_kind_kubernetes_asks_for_memory_in_words_that_kubernetes_knows() -> None:
    pytest.importorskip("dask_kubernetes")
    from dask_kubernetes.operator.kubecluster.kubecluster import make_cluster_spec

    settings = ClusterSettings(kind="kubernetes", image="i", workers=3, memory_per_worker="8 GiB")
    arguments = cluster_spec(settings).arguments
    names = ("image", "n_workers", "env", "worker_command", "resources")
    resource = make_cluster_spec("a", **{key: arguments[key] for key in names} | {"worker_command": ["dask", "worker"]})
    for part in ("worker", "scheduler"):
        (container,) = resource["spec"][part]["spec"]["containers"]
        given = {item["name"]: item["value"] for item in container["env"]}
        assert given.items() >= (WORKER_ENVIRONMENT | dask_environment()).items()
    assert container["resources"]["limits"] == {"memory": str(8 * 2**30)}
    timed = make_cluster_spec("a", idle_timeout=arguments["idle_timeout"])
    assert timed["spec"]["idleTimeout"] == 3600, "so that pods of a command that was killed end by themselves"
    assert "name" not in arguments, "so that each evaluation has one of its own"


@pytest.mark.parametrize("file", sorted((INFRA / "clusters").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_cluster_files_are_read(file: Path) -> None:
    assert read_cluster_spec(file).arguments
