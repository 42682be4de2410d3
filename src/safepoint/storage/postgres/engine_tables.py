"""The tables of Procrastinate, the engine that starts free runs: made and brought up to date with ours.

They are in the first schema of the search_path, where Procrastinate itself would put them, so its own tools find them.
Tables that were there before ours are of somebody who uses Procrastinate already, and are left as they are.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec

from safepoint.errors import StoreError
from safepoint.storage.placement import Engine
from safepoint.storage.postgres.connections import Connection

_NEEDS = "runs are placed by Procrastinate, which is not installed: install safepoint[postgres]"
_MIGRATION = re.compile(r"(\d+)\.(\d+)\.(\d+)_.*\.sql")


def engine_sql(engine: Engine, tables: str | None) -> str:
    """Make this the engine. `tables`: the version of Procrastinate's tables that were made here before.

    Raises `StoreError` if the engine is not installed.
    """
    if engine is not Engine.PROCRASTINATE:
        return f"UPDATE safepoint.engine SET name = '{engine}';"
    if find_spec("procrastinate") is None:
        raise StoreError(_NEEDS)
    folder, now = files("procrastinate.sql"), version("procrastinate")
    made = folder.joinpath("schema.sql").read_text("utf-8")
    steps = [
        "DO $safepoint$ BEGIN IF to_regclass('procrastinate_jobs') IS NULL THEN",
        f"EXECUTE $tables${made}$tables$;",
        f"UPDATE safepoint.engine SET version = '{now}';",
        "END IF; END $safepoint$;",
    ]
    if tables is not None:
        names = sorted(each.name for each in folder.joinpath("migrations").iterdir())
        later = [name for name in names if _number(tables) < _number(name) <= _number(now)]
        steps += [folder.joinpath("migrations", name).read_text("utf-8") for name in later]
        steps.append(f"UPDATE safepoint.engine SET version = '{now}';")
    steps.append(f"UPDATE safepoint.engine SET name = '{engine}';")
    return "\n".join(steps)


def _number(name: str) -> tuple[int, ...]:
    """Of a version, or of a file that belongs to one; of another file, one that comes before all versions."""
    found = _MIGRATION.fullmatch(name) or re.match(r"(\d+)\.(\d+)\.(\d+)", name)
    return tuple(map(int, found.groups())) if found else ()


async def tables_fit(connection: Connection) -> bool:
    """Are the tables there, in the version whose functions we call?"""
    cursor = await connection.execute(
        "SELECT to_regclass('procrastinate_jobs') IS NOT NULL"
        " AND to_regproc('procrastinate_fetch_job_v2') IS NOT NULL"
        " AND to_regproc('procrastinate_defer_jobs_v1') IS NOT NULL"
    )
    return bool((await cursor.fetchone() or (False,))[0])
