"""Packing of a training function for upload: one `.py`, a folder, a class or a module. It is never
executed."""

from __future__ import annotations

import inspect
import io
import os
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import ModuleType

import pathspec

from punctual.errors import BundleError

IGNORE_FILE = ".punctualignore"
MAXIMUM_FILES = 2_000
MAXIMUM_BYTES = 100 * 1024 * 1024
_ALWAYS_IGNORED = (
    ".git/", ".hg/", ".svn/", "__pycache__/", "*.py[co]", ".venv/", "venv/", "node_modules/",
    ".ipynb_checkpoints/",
    ".mypy_cache/", ".pytest_cache/", ".ruff_cache/", ".tox/", "*.egg-info/", IGNORE_FILE,
    # Litter of file managers.
    ".DS_Store", "._*", "Icon\r", "__MACOSX/", "[Tt]humbs.db", "[Dd]esktop.ini",
)  # fmt: skip
#: Timestamp of all zip entries, so that the same files always give the same digest.
_FIXED_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Bundle:
    """The uploaded content of a function. `entry`: `module:Class` if known."""

    #: Name of the zip file or Python source.
    filename: str
    #: Bytes to be uploaded.
    content: bytes
    suggested_name: str
    entry: str | None = None


def pack(
    function: str | os.PathLike[str] | type | ModuleType,
    *,
    entry: str | None = None,
    requirements: str | os.PathLike[str] | None = None,
) -> Bundle:
    """Pack a path (`.py`, `.zip` or folder), a class or a module.

    A class or module in a package is packed with the whole package, so that its imports work. `requirements`:
    a requirements file to add to a single `.py`, class or module.

    Raises:
        BundleError: the function cannot be found, read or packed.
    """
    if isinstance(function, type | ModuleType):
        source, found_entry = _source_of(function)
        entry = entry or found_entry
    else:
        source = _expanded(function)
    extra = _requirements_file(requirements)
    name = suggested_name(source)
    if source.is_dir():
        prefix = source.name if _is_package(source) and not isinstance(function, str | os.PathLike) else ""
        return Bundle(f"{name}.zip", _zip(dict(_files_of(source, prefix)) | extra), name, entry)
    suffix = source.suffix.lower()
    if suffix == ".zip" and extra:
        raise BundleError("a zip brings its own requirements.txt", hint="put it into the zip")
    content = _read(source)
    if extra:
        return Bundle(f"{name}.zip", _zip({source.name: content} | extra), name, entry)
    if suffix not in (".py", ".zip"):
        raise BundleError(f"{source} is neither a .py nor a .zip nor a folder")
    return Bundle(source.name, content, name, entry)


def suggested_name(source: Path) -> str:
    """Return a function name derived from a file's or folder's name: letters, digits, `-` and `_`."""
    stem = source.resolve().stem if source.suffix.lower() in (".py", ".zip") else source.resolve().name
    name = "".join(character if character.isascii() and (character.isalnum() or character in "-_") else "-"
                   for character in stem).strip("-")  # fmt: skip
    return name[:100] or "function"


def _source_of(thing: type | ModuleType) -> tuple[Path, str | None]:
    """Return the file or package folder of a class or module, and the entry of a class."""
    module = thing if isinstance(thing, ModuleType) else sys.modules.get(thing.__module__)
    filename = getattr(module, "__file__", None)
    if module is None or not filename or not filename.endswith(".py"):
        raise BundleError(
            f"{thing.__name__} has no source file (defined in a notebook or at a prompt?)",
            hint="save it as a .py",
        )
    if isinstance(thing, type) and "<locals>" in thing.__qualname__:
        raise BundleError(
            f"{thing.__name__} is defined inside a function", hint="move it to the top of its file"
        )
    file = Path(filename).resolve()
    root = file
    while _is_package(root.parent):
        root = root.parent
    parts = list(file.relative_to(root.parent).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    entry = f"{'.'.join(parts)}:{thing.__qualname__}" if inspect.isclass(thing) else None
    return root, entry


def _expanded(path: str | os.PathLike[str]) -> Path:
    try:
        expanded = Path(path).expanduser()
        expanded.resolve()
        expanded.is_dir()
    except RuntimeError as error:
        raise BundleError("the home folder in the file's name is not known") from error
    except (OSError, ValueError) as error:
        raise BundleError("the file's name cannot be used") from error
    return expanded


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").is_file()


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAXIMUM_BYTES:
            raise _too_large(path)
        return path.read_bytes()
    except FileNotFoundError:
        raise BundleError(f"there is no file {path}") from None
    except ValueError:
        raise BundleError("the file's name cannot be used") from None
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}") from error


def _requirements_file(path: str | os.PathLike[str] | None) -> dict[str, bytes]:
    return {} if path is None else {"requirements.txt": _read(_expanded(path))}


def _files_of(folder: Path, prefix: str) -> Iterator[tuple[str, bytes]]:
    """Yield the bundle names and contents of a folder's files, except ignored ones."""
    total_bytes = 0
    for count, path in enumerate(_kept_paths(folder), start=1):
        content = _read(path)
        total_bytes += len(content)
        if total_bytes > MAXIMUM_BYTES or count > MAXIMUM_FILES:
            raise _too_large(folder)
        yield str(PurePosixPath(prefix, path.relative_to(folder).as_posix())), content


def _kept_paths(folder: Path) -> Iterator[Path]:
    ignored = _ignore_rules(folder)
    real_folder = folder.resolve()

    def refuse(error: OSError) -> None:
        raise BundleError(f"{error.filename} cannot be read: {error.strerror}") from error

    for parent, folders, files in os.walk(folder, onerror=refuse):
        here = Path(parent)
        kept = [
            name
            for name in folders
            if not ignored.match_file(f"{(here / name).relative_to(folder).as_posix()}/")
        ]
        folders[:] = sorted(kept)
        for name in sorted(files) + [name for name in folders if (here / name).is_symlink()]:
            path = here / name
            if ignored.match_file(path.relative_to(folder).as_posix()):
                continue
            if path.is_symlink() and (path.is_dir() or real_folder not in path.resolve().parents):
                raise BundleError(
                    f"{path} is a link to a folder or out of the bundle",
                    hint=f"copy it, or list it in {IGNORE_FILE}",
                )
            if path.is_file():
                yield path


def _ignore_rules(folder: Path) -> pathspec.PathSpec[pathspec.Pattern]:
    own = folder / IGNORE_FILE
    try:
        lines = own.read_text(encoding="utf-8-sig").splitlines() if own.is_file() else []
        return pathspec.PathSpec.from_lines("gitignore", [*_ALWAYS_IGNORED, *lines])
    except UnicodeDecodeError as error:
        raise BundleError(f"{own} is not UTF-8") from error
    except (ValueError, OSError) as error:
        raise BundleError(f"{own} cannot be used: {error}") from error


def _zip(files: dict[str, bytes]) -> bytes:
    if not any(name.endswith(".py") for name in files):
        raise BundleError("the folder holds no .py file")
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _FIXED_TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, files[name])
    return target.getvalue()


def _too_large(path: Path) -> BundleError:
    return BundleError(
        f"{path} holds more than {MAXIMUM_FILES} files or {MAXIMUM_BYTES // 1024**2} MiB",
        hint=f"list what is not code in {IGNORE_FILE}; large data is named by --data",
    )
