"""A private copy of workers' imports (`punctual/protocol/staged.py`), so that their `sys.path` never contains
this repository's root."""

from __future__ import annotations

import compileall
import hashlib
import shutil
import uuid
from pathlib import Path

from punctual.protocol.staged import STAGED

SOURCE_ROOT = Path(__file__).resolve().parents[3]


def stage_runtime(folder: Path, source_root: Path | None = None) -> Path:
    """Copy the runtime into a subfolder of `folder` named after its content; return the subfolder.
    `source_root`: by default where the agent is installed.

    Workers of an earlier version keep theirs. Raises OSError, and FileNotFoundError for a missing package.
    """
    source_root = source_root or SOURCE_ROOT
    files = _files(source_root)
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(source_root)}\0".encode() + path.read_bytes())
    staged = folder / digest.hexdigest()[:16]
    if staged.exists():
        return staged
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{uuid.uuid4().hex}"
    for path in files:
        target = partial / path.relative_to(source_root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    # Workers cannot write here, and would compile at each start.
    compileall.compile_dir(partial, quiet=2, invalidation_mode=None)
    partial.rename(staged)
    return staged


def _files(source_root: Path) -> list[Path]:
    found: list[Path] = []
    for name in STAGED:
        path = source_root / name
        if not path.exists():
            raise FileNotFoundError(
                f"{path} is missing: the worker's runtime is not installed beside the agent"
            )
        found.extend([path] if path.is_file() else path.rglob("*.py"))
        found.extend(path.rglob("py.typed"))
    return sorted(found)
