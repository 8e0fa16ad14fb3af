"""Write flows/cli/prefect_tables.sql: the tables that the installed Prefect's migrations make in an empty database.

    python infra/prefect_tables.py

Run it where Prefect's version in constraints.txt changes: a newer Prefect adds what came since to a database that is
made from an older file, an older one does not take the file and makes its tables by itself.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "flows" / "cli" / "prefect_tables.sql"
_MIGRATE = """
import asyncio
from prefect.server.database import provide_database_interface
asyncio.run(provide_database_interface().create_db())
"""


def prefect_tables() -> str:
    """The statements, one a line, in the order that SQLite needs."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", _MIGRATE], env=os.environ | {"PREFECT_HOME": folder}, check=True)
        with sqlite3.connect(Path(folder) / "prefect.db") as database:
            return "".join(f"{' '.join(statement.split())}\n" for statement in database.iterdump())


if __name__ == "__main__":
    FILE.write_text(prefect_tables())
