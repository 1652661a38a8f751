"""Files of studies in the durable store (`CHECKPOINT_URL`), below `simulations/<study>/`."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import fsspec
import structlog
from django.conf import settings

log = structlog.get_logger(__name__)

ROOT = "simulations"
#: What a comparison's folder holds.
COMPARISON_FILE, REPORT_FILE = "comparison.json.gz", "report.html.gz"
#: What a run's folder holds (`simulation/reports/parquet.py`).
RESULT_FILES = ("jobs.parquet", "cluster.parquet", "allocations.parquet")
#: What it holds as well where servers were lent.
LOAN_FILES = ("loans.parquet", "reclaims.parquet")


def study_folder(study_id: int) -> str:
    """The key below which everything of a study lies."""
    return f"{ROOT}/{study_id}"


def put(files: list[Path], key: str) -> None:
    """Copy local files into the folder ``key``. Raises OSError where the store does not take them."""
    filesystem, place = _place(key)
    filesystem.makedirs(place, exist_ok=True)
    for file in files:
        filesystem.put_file(str(file), f"{place}/{file.name}.part")
        filesystem.mv(f"{place}/{file.name}.part", f"{place}/{file.name}")


def fetch(key: str, names: list[str], folder: Path) -> None:
    """Copy files of the folder ``key`` into a local one. Raises OSError where one is missing."""
    filesystem, place = _place(key)
    for name in names:
        filesystem.get_file(f"{place}/{name}", str(folder / name))


def open_file(key: str, name: str) -> IO[bytes]:
    """A file of the folder ``key``. Raises OSError where it is missing or the store is away."""
    filesystem, place = _place(key)
    opened: IO[bytes] = filesystem.open(f"{place}/{name}", "rb")
    return opened


def remove(key: str) -> bool:
    """Delete a folder with all that is in it. Returns False, with a line in the log, where that fails."""
    filesystem, place = _place(key)
    try:
        filesystem.rm(place, recursive=True)
    except FileNotFoundError:
        return True
    except OSError as error:
        log.warning("simulation files not deleted", key=key, error=str(error))
        return False
    return True


def studies_stored() -> list[int]:
    """Ids of the studies that have files in the store."""
    filesystem, place = _place(ROOT)
    try:
        found = filesystem.ls(place, detail=False)
    except FileNotFoundError:
        return []
    names = [str(path).rstrip("/").rpartition("/")[2] for path in found]
    return [int(name) for name in names if name.isdecimal()]


def _place(key: str) -> tuple[fsspec.AbstractFileSystem, str]:
    filesystem, place = fsspec.core.url_to_fs(f"{settings.CHECKPOINT_URL.rstrip('/')}/{key}")
    return filesystem, place
