"""The files of a bundle, a zip or one module, unpacked in memory. Limits apply to the unpacked content, not
to the sizes that headers claim."""

from __future__ import annotations

import io
import re
import stat
import struct
import zipfile
import zlib
from dataclasses import dataclass

from punctual.bundles.errors import BundleError
from punctual.bundles.layout import is_litter, member_path
from punctual.bundles.source import lone_module_name
from punctual.names import name_problem

_CHUNK_BYTES = 64 * 1024
_CENTRAL_ENTRY = b"PK\x01\x02"
_DRIVE = re.compile(r"[A-Za-z]:")
_TAKEN_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    UnicodeError,
    ValueError,
    NotImplementedError,
    OSError,
)


@dataclass(frozen=True, slots=True)
class BundleFile:
    """A file of a bundle with its unpacked size."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class BundleLimits:
    """Limits of a zip's content. ``ratio``: unpacked to packed bytes of one file, checked once it is
    large."""

    unpacked_bytes: int
    #: Number of files.
    files: int = 1000
    ratio: int = 200
    ratio_from_bytes: int = 1024 * 1024
    #: Length of a file's path.
    name_characters: int = 200


def read_files(content: bytes, filename: str, limits: BundleLimits) -> dict[str, bytes]:
    """Return the files of a zip by path, without litter of file managers, or the one `.py` file.

    Raises:
        BundleError: the content is neither, is broken or too large, or has names that leave the bundle.
    """
    lower = filename.lower()
    # An empty zip begins with its end record.
    if content[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return _unpack(content, limits)
    if lower.endswith(".zip"):
        raise BundleError("not_a_zip", f"{filename} is not a zip file: it does not begin as one does.")
    if lower.endswith(".py"):
        if zipfile.is_zipfile(io.BytesIO(content)):
            # Other programs may read the zip at its end instead.
            raise BundleError(
                "not_python", f"{filename} has a zip at its end; upload either Python or a zip."
            )
        return {f"{lone_module_name(filename)}.py": content}
    raise BundleError("unknown_kind", f"{filename or 'The file'} is neither a .py file nor a zip.")


def _unpack(content: bytes, limits: BundleLimits) -> dict[str, bytes]:
    # A cheap bound before the directory is read; doubled, because data may contain the mark by chance.
    if content.count(_CENTRAL_ENTRY) > 2 * limits.files:
        raise BundleError("too_many_files", f"The zip holds more than {limits.files} files.")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return _read_all(archive, limits)
    except BundleError:
        raise
    except _BROKEN as error:
        raise BundleError("broken_zip", f"The zip is damaged: {error}.") from error


def _read_all(archive: zipfile.ZipFile, limits: BundleLimits) -> dict[str, bytes]:
    named = [(member_path(info), info) for info in archive.infolist()]
    entries = [(path, info) for path, info in named if not is_litter(path)]
    if len(entries) > limits.files:
        raise BundleError(
            "too_many_files",
            f"The zip holds {len(entries)} files; at most {limits.files} are taken. "
            "Leave out data, environments and version control.",
        )
    contents: dict[str, bytes] = {}
    unpacked = 0
    for path, info in entries:
        _check_entry(info, path, limits)
        if path.endswith("/"):
            continue
        if path in contents:
            raise BundleError("duplicate_name", f"The zip holds {path} twice.")
        contents[path] = _read(archive, info, limits, limits.unpacked_bytes - unpacked)
        unpacked += len(contents[path])
    _check_folders(contents)
    if not contents:
        raise BundleError("empty", "The zip holds no file.")
    return contents


def _check_entry(info: zipfile.ZipInfo, name: str, limits: BundleLimits) -> None:
    shown = name.encode("unicode_escape", "replace").decode()[:80]
    parts = name.rstrip("/").split("/")
    if not name or len(name) > limits.name_characters or name_problem(name) is not None:
        raise BundleError("bad_name", f"The zip holds a file with an unusable name: '{shown}'.")
    if name.startswith("/") or _DRIVE.match(name) or not {"", ".", ".."}.isdisjoint(parts):
        raise BundleError(
            "path_traversal",
            f"'{shown}' does not stay inside the bundle; only relative paths are taken.",
        )
    mode = info.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise BundleError(
            "special_file", f"'{shown}' is a link or another special file; store a plain file instead."
        )
    if info.flag_bits & 0x1:
        raise BundleError("encrypted", f"'{shown}' is encrypted; store it without a password.")
    if info.compress_type not in _TAKEN_METHODS:
        raise BundleError(
            "compression", f"'{shown}' is compressed by an unusual method; use deflate or none."
        )


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo, limits: BundleLimits, left_bytes: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    with archive.open(info) as source:
        while piece := source.read(_CHUNK_BYTES):
            size += len(piece)
            if size > left_bytes:
                raise BundleError(
                    "zip_bomb",
                    f"The zip unpacks to more than {limits.unpacked_bytes} bytes; at most that is taken.",
                )
            if size > limits.ratio_from_bytes and size > limits.ratio * max(1, info.compress_size):
                raise BundleError(
                    "zip_bomb",
                    f"'{info.filename}' unpacks to more than {limits.ratio} times its packed size: "
                    "that is no training function.",
                )
            pieces.append(piece)
    return b"".join(pieces)


def _check_folders(contents: dict[str, bytes]) -> None:
    for path in contents:
        parts = path.split("/")
        for depth in range(1, len(parts)):
            if "/".join(parts[:depth]) in contents:
                raise BundleError(
                    "duplicate_name", f"'{'/'.join(parts[:depth])}' is both a file and a folder."
                )
