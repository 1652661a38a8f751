"""A PostgreSQL cluster whose database has all migrations applied, kept in the user's cache.

Applying them takes a quarter of a minute; a copy takes a tenth of a second.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg2

from launch import migrations
from launch.folders import PROJECT
from launch.privileges import unprivileged_identity

_KEPT_CLUSTERS = 8


def keep_migrated_cluster(start: Callable[[Path], str], stop: Callable[[], None]) -> None:
    """Make the cluster if it is missing. Test runs that need the same one make it once.

    Args:
        start: serves the cluster in a folder, which is created if missing, and returns its address.
        stop: ends that server.
    """
    kept = _kept_cluster()
    kept.parent.mkdir(parents=True, exist_ok=True)
    # A lock for each folder instead of one for all, so that runs of other checkouts do not wait.
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if kept.exists():
            os.utime(kept)
            return
        # A short path, because it has a socket; and where another user may run the server.
        with tempfile.TemporaryDirectory(prefix="pt-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            try:
                environment = {**os.environ, "DATABASE_URL": start(folder)}
                migrate = [sys.executable, "manage.py", "migrate", "--no-input", "-v", "0"]
                subprocess.run(migrate, cwd=PROJECT, env=environment, check=True)
                with closing(psycopg2.connect(environment["DATABASE_URL"])) as connection:
                    with connection, connection.cursor() as cursor:
                        migrations.note_applied(cursor)
            finally:
                stop()
            unfinished = kept.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            _copy(folder / "postgresql", unfinished)
            unfinished.rename(kept)
        made = [path for path in kept.parent.glob("cluster-*") if not path.suffix]
        for old in sorted(made, key=lambda path: path.stat().st_mtime, reverse=True)[_KEPT_CLUSTERS:]:
            shutil.rmtree(old, ignore_errors=True)
            old.with_suffix(".lock").unlink(missing_ok=True)


def copy_migrated_cluster(folder: Path) -> None:
    """Copy the cluster to ``folder/postgresql``, if it exists."""
    if (kept := _kept_cluster()).exists():
        _copy(kept, folder / "postgresql")


def _copy(source: Path, target: Path) -> None:
    # Keep the owner, which may be another user.
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def _kept_cluster() -> Path:
    """Return the cluster's folder. Its name identifies the migrations: users of a copy apply new migrations,
    but not changed ones."""
    made_of = (sys.version_info[:2], unprivileged_identity(), migrations.digest())
    digest = hashlib.sha256(repr(made_of).encode())
    digest.update((PROJECT / "launch" / "postgresql.py").read_bytes())
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "punctual" / "test-clusters" / f"cluster-{digest.hexdigest()[:16]}"
