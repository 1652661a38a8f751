"""Unpacking of untrusted bundles and environments: nothing is written outside the target, and sizes are
limited."""

from __future__ import annotations

import re
import stat
import tarfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import IO

from punctual.bundles.layout import is_litter, member_path, root_of_entry
from workers.agent.machine.durable_files import is_full

FILES_LIMIT = 20_000
BUNDLE_LIMIT_BYTES = 1 << 30
ENVIRONMENT_FILES_LIMIT = 500_000
ENVIRONMENT_LIMIT_BYTES = 64 << 30
PIECE_BYTES = 1 << 20

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z", re.ASCII)


class UnpackingError(Exception):
    """The archive is broken or malicious; the message says how. A retry does not help."""


def unpack_bundle(bundle: Path, entry: str, target: Path) -> None:
    """Unpack a function's bundle (a zip, or one Python file) into the new folder `target`.

    `entry` is `module:Class`; a single file gets the module's name, and the files of a zip are placed so that
    the module can be imported. Raises UnpackingError, and OSError if the disk is full.
    """
    target.mkdir()
    if zipfile.is_zipfile(bundle):
        _unpack_zip(bundle, entry, target)
        return
    module = entry.partition(":")[0]
    if not _MODULE.match(module):
        raise UnpackingError(f"the entry {entry!r} is not of the form module:Class")
    path = target.joinpath(*module.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bundle.read_bytes())


def unpack_environment(archive: Path, target: Path) -> None:
    """Unpack an environment (tar.gz) into the new folder `target`: files and folders, as in wheels.

    Does not use the standard library's filters, which require Python 3.11.4. Raises UnpackingError, and
    OSError if the disk is full.
    """
    target.mkdir()
    left_bytes = ENVIRONMENT_LIMIT_BYTES
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for number, member in enumerate(tar):
                path = PurePosixPath(member.name)
                if number >= ENVIRONMENT_FILES_LIMIT:
                    raise UnpackingError(f"the environment holds more than {ENVIRONMENT_FILES_LIMIT} files")
                if path.is_absolute() or ".." in path.parts:
                    raise UnpackingError(f"the environment's file {member.name!r} leads out of it")
                if member.isdir():
                    (target / path).mkdir(parents=True, exist_ok=True)
                    continue
                source = tar.extractfile(member) if member.isreg() else None
                if source is None:
                    raise UnpackingError(f"the environment's {member.name!r} is a link or a device")
                left_bytes -= _write(source, target / path, left_bytes, "the environment")
                (target / path).chmod(0o755 if member.mode & stat.S_IXUSR else 0o644)
    except (tarfile.TarError, EOFError, OSError) as error:
        if is_full(error):
            raise
        raise UnpackingError(f"the environment cannot be unpacked: {error}") from error


def _unpack_zip(bundle: Path, entry: str, target: Path) -> None:
    try:
        with zipfile.ZipFile(bundle) as archive:
            named = [(member_path(member), member) for member in archive.infolist()]
            members = {path: member for path, member in named if not is_litter(path)}
            if len(members) > FILES_LIMIT:
                raise UnpackingError(f"the bundle holds more than {FILES_LIMIT} files")
            root = root_of_entry([path for path in members if not path.endswith("/")], entry) or ""
            left_bytes = BUNDLE_LIMIT_BYTES
            for path, member in members.items():
                place = target / _safe_path(path, member).removeprefix(root)
                if path.endswith("/"):
                    place.mkdir(parents=True, exist_ok=True)
                else:
                    with archive.open(member) as source:
                        left_bytes -= _write(source, place, left_bytes, "the bundle")
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError, OSError) as error:
        if is_full(error):
            raise
        raise UnpackingError(f"the bundle cannot be unpacked: {error}") from error


def _safe_path(path: str, member: zipfile.ZipInfo) -> str:
    kind = stat.S_IFMT(member.external_attr >> 16)
    if path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise UnpackingError(f"the bundle's file {path!r} leads out of the bundle")
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise UnpackingError(f"the bundle's {path!r} is a link or a device")
    if member.flag_bits & 1:
        raise UnpackingError("the bundle is encrypted")
    return path


def _write(source: IO[bytes], path: Path, limit_bytes: int, whole: str) -> int:
    """Write one file, limited by its real size instead of the archive's claim."""
    path.parent.mkdir(parents=True, exist_ok=True)
    size = 0
    with path.open("wb") as file:
        while piece := source.read(PIECE_BYTES):
            size += len(piece)
            if size > limit_bytes:
                raise UnpackingError(f"{whole} unpacks to more than the {limit_bytes} bytes that are left")
            file.write(piece)
    return size
