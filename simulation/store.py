"""Files of studies in the durable store (`CHECKPOINT_URL`), below `simulations/<study>/`."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import fsspec
import structlog
from django.conf import settings

log = structlog.get_logger(__name__)

ROOT = "simulations"
#: Files of a comparison.
COMPARISON_FILE, REPORT_FILE = "comparison.json.gz", "report.html.gz"
#: Files of a run (`simulation/reports/parquet.py`).
RESULT_FILES = ("jobs.parquet", "cluster.parquet", "allocations.parquet")
#: Further files of a run if servers were lent.
LOAN_FILES = ("loans.parquet", "reclaims.parquet")


def study_folder(study_id: int) -> str:
    """Return the key of a study's folder."""
    return f"{ROOT}/{study_id}"


def put(files: list[Path], key: str) -> None:
    """Copy local files into the folder ``key``. Raises OSError if the store fails."""
    filesystem, place = _place(key)
    filesystem.makedirs(place, exist_ok=True)
    for file in files:
        filesystem.put_file(str(file), f"{place}/{file.name}.part")
        filesystem.mv(f"{place}/{file.name}.part", f"{place}/{file.name}")


def fetch(key: str, names: list[str], folder: Path) -> None:
    """Copy files of the folder ``key`` into a local one. Raises OSError if one is missing."""
    filesystem, place = _place(key)
    for name in names:
        filesystem.get_file(f"{place}/{name}", str(folder / name))


def open_file(key: str, name: str) -> IO[bytes]:
    """Open a file of the folder ``key``. Raises OSError if it is missing or the store is unavailable."""
    filesystem, place = _place(key)
    opened: IO[bytes] = filesystem.open(f"{place}/{name}", "rb")
    return opened


def remove(key: str) -> bool:
    """Delete a folder with its files. Return False, and log a warning, if that fails."""
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
    """Return the ids of the studies that have files in the store."""
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
