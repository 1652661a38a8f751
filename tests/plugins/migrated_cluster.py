"""`python -m tests.plugins.migrated_cluster FOLDER`: makes a PostgreSQL cluster with a database that has the
schema in place, for lanes of tests (embedded_servers.py) and platforms (running_platform.py) to copy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from launch.folders import PROJECT
from tests.plugins import embedded_servers


def make(folder: Path) -> None:
    """Make the cluster in `folder/postgresql`, and end its server."""
    folder.chmod(0o711)
    try:
        url = embedded_servers.start_postgresql(folder)
        environment = {**os.environ, "DATABASE_URL": url}
        migrate = [sys.executable, "manage.py", "migrate", "--no-input", "-v", "0"]
        subprocess.run(migrate, cwd=PROJECT, env=environment, check=True)
    finally:
        embedded_servers.stop_servers()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
