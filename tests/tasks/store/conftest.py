"""Each test that asks for ``place`` is made with a store in a folder, in memory and in a bucket."""

import uuid
from pathlib import Path

import pytest
from stored_places import Place


@pytest.fixture(params=["folder", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    name = uuid.uuid4().hex
    if request.param == "folder":
        return Place(str(tmp_path / name))
    if request.param == "memory":
        return Place(f"memory://{name}")
    return Place(f"s3://congruence/{name}", request.getfixturevalue("s3"))
