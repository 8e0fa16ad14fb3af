"""The Prefect server: whether it answers, knows us and can write, and whether a worker serves the work pool.

It is asked by HTTP alone, so that nothing of Prefect is loaded, nor a server of our own started.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import requests

from congruence.tasks.doctor.answers import Answer, ask, clock, versions, why_none
from congruence.tasks.doctor.findings import Finding, Step, fine, warning, wrong

PLACE, POOL = "Prefect", "Prefect's work pool"
_LOGIN = "set PREFECT_API_AUTH_STRING (user:password) or PREFECT_API_KEY to one that the server knows"


@dataclass(frozen=True)
class PrefectAddress:
    """How this machine's Prefect client speaks to its server.

    Attributes:
        api: its address, which ends with /api.
        version: of the client.
        login: headers that say who we are.
        verify: whether certificates are checked, or the file of those who sign them.
    """

    api: str
    version: str
    login: Mapping[str, str] = field(default_factory=dict, repr=False)
    verify: bool | str = True


def prefect_server(server: PrefectAddress, pool: str | None) -> Iterator[Finding | Step]:
    """Ask for the version, write and delete a variable, and ask for the workers of ``pool``, where one is named."""
    yield Step("asking", f"see the log of the server at {server.api}")
    try:
        answer = _ask(server, "GET", "/admin/version")
    except requests.RequestException as error:
        why = why_none(error)
        if why is None:
            raise
        remedy = (
            "start one (`prefect server start`), correct PREFECT_API_URL, or unset it: then each command starts its own"
        )
        yield wrong(PLACE, f"{server.api}: {why}", remedy)
        return
    yield from clock(PLACE, answer.skew)
    if answer.status in (401, 403):
        yield wrong(PLACE, f"{server.api} does not know the login", _LOGIN)
        return
    if answer.status != 200:
        remedy = "correct PREFECT_API_URL: it ends with /api"
        yield wrong(PLACE, f"{server.api} answers ({answer.status}), but not as Prefect does", remedy)
        return
    yield versions(PLACE, server.api, answer, server.version)
    yield Step("writing", "see the log of the server and the disk of its database")
    yield _written(server)
    yield Step("asking for the work pool", f"see the log of the server at {server.api}")
    if pool is not None:
        yield from _pool(server, pool)


def _ask(server: PrefectAddress, method: str, path: str, **options: Any) -> Answer:
    return ask(method, f"{server.api.rstrip('/')}{path}", headers=server.login, verify=server.verify, **options)


def _written(server: PrefectAddress) -> Finding:
    name = f"congruence_doctor_{secrets.token_hex(4)}"
    made = _ask(server, "POST", "/variables/", json={"name": name, "value": "deleted at once"})
    gone = _ask(server, "DELETE", f"/variables/name/{name}") if made.status == 201 else made
    if gone.status == 204:
        return fine(PLACE, "its database can be written")
    remedy = "see the log of the server, the disk of its database, and whether this login may write"
    return wrong(PLACE, f"its database cannot be written ({gone.status}: {gone.text.strip()[:120]})", remedy)


def _pool(server: PrefectAddress, name: str) -> Iterator[Finding]:
    path = f"/work_pools/{quote(name, safe='')}"
    answer = _ask(server, "GET", path)
    if answer.status == 404:
        create = f"create it (`prefect work-pool create {name} --type process`), or name another"
        yield wrong(POOL, f"there is no pool '{name}'", create)
        return
    pool = json.loads(answer.text)
    if pool.get("is_paused"):
        yield warning(POOL, f"'{name}' is paused: runs wait", f"let it go on (`prefect work-pool resume {name}`)")
    workers = json.loads(_ask(server, "POST", f"{path}/workers/filter", json={}).text)
    online = [str(worker["name"]) for worker in workers if worker.get("status") == "ONLINE"]
    if online:
        yield fine(POOL, f"'{name}' ({pool.get('type')}) is served by {', '.join(online)}")
        return
    away = f"; {len(workers)} that served it are away" if workers else ""
    start = f"start one (`prefect worker start --pool {name}`) where congruence[pipeline] is installed"
    yield wrong(POOL, f"no worker serves '{name}'{away}: runs are never begun", start)
