"""What a container may do, and what its environment, its description and its lines tell."""

import json
from pathlib import Path

from deployment import CLIENT, Deployment

FOREIGN = {"postgres", "s3"}
"""Images of others, with users and files of their own."""


def confined(deployment: Deployment) -> str:
    """Read-only root, no capability, no root, no new privileges, in every container of the project's image."""
    names = []
    for service in deployment.services:
        for name in deployment.containers(service) if service not in FOREIGN | {CLIENT} else []:
            found = deployment.engine.inspect(name)
            assert found["HostConfig"]["ReadonlyRootfs"], name
            if found["State"]["Running"]:
                names.append(name)
                require_confined(name, found["State"]["Pid"])
                written = deployment.engine("exec", name, "touch", "/srv/congruence/x", check=False)
                assert written.returncode != 0, name
    return f"{len(names)} containers"


def require_confined(name: str, process: int) -> None:
    """A container's process is not root, has no capability and may get none."""
    status = Path(f"/proc/{process}/status").read_text()
    lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert lines["Uid"].split() == ["1000"] * 4, (name, lines["Uid"])
    assert {int(lines[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}, name
    assert lines["NoNewPrivs"] == "1", name


def silent(deployment: Deployment) -> str:
    """No secret in the engine's descriptions, the environment that it gives, the arguments of a process, or a line."""
    words = deployment.secrets()
    places: dict[str, str] = {}
    for service in deployment.services:
        places[f"lines of {service}"] = deployment.logs(service)
        for name in deployment.containers(service):
            found = deployment.engine.inspect(name)
            places[f"description of {name}"] = json.dumps(found)
            if found["State"]["Running"]:
                columns = ["args"] if deployment.engine.name == "podman" else ["-eo", "pid,args"]
                places[f"arguments in {name}"] = deployment.engine("top", name, *columns).stdout
                places[f"environment given to {name}"] = deployment.engine("exec", name, "env").stdout
            places[f"history of {found['Image']}"] = deployment.engine("history", "--no-trunc", found["Image"]).stdout
    told = [(place, name) for place, text in places.items() for name, word in words.items() if word in text]
    assert not told, told
    return f"{len(words)} words in {len(places)} places"
