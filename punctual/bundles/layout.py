"""Archives made by Finder, GitHub and Windows: names of their members, litter, and the folder of the
function."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import replace

from punctual.bundles.errors import BundleError
from punctual.bundles.experts import read_expert_counts
from punctual.bundles.source import FunctionClass, find_function, importable, module_name, parse_modules
from punctual.names import normalised

#: Folders and files that file managers add.
_LITTER_FOLDERS = frozenset({"__MACOSX", "__pycache__", ".git"})
_LITTER_FILES = frozenset({".DS_Store", "Icon\r", "Thumbs.db", "ehthumbs.db", "desktop.ini", "Desktop.ini"})
_UTF8_FLAG = 0x800


def member_path(info: zipfile.ZipInfo) -> str:
    """Return a member's intended path, normalised (NFC); that of a folder ends with a slash.

    Windows may write backslashes between folders, and Finder UTF-8 without its flag.
    """
    name = info.orig_filename
    if not info.flag_bits & _UTF8_FLAG and not name.isascii():
        try:
            name = name.encode("cp437").decode("utf-8")
        except UnicodeError:
            pass
    return normalised(name.replace("\\", "/"))


def is_litter(path: str) -> bool:
    """Whether a member was added by a file manager. Paths that leave the bundle are never litter, so that
    they are refused."""
    parts = path.rstrip("/").split("/")
    if ".." in parts or "" in parts:
        return False
    *folders, name = parts
    if path.endswith("/"):
        folders.append(name)
    return not _LITTER_FOLDERS.isdisjoint(folders) or name in _LITTER_FILES or name.startswith("._")


def root_of_entry(paths: Collection[str], entry: str) -> str | None:
    """Return the folder (with its slash, empty for the top) from which `entry` can be imported; None if there
    is none.

    Only folders that contain all files are considered, outermost first.
    """
    module = entry.partition(":")[0].replace(".", "/")
    for root in ("", *_common_folders(paths)):
        if f"{root}{module}.py" in paths or f"{root}{module}/__init__.py" in paths:
            return root
    return None


def read_function(files: Mapping[str, bytes], entry: str | None) -> tuple[str, FunctionClass]:
    """Return the folder from which the function is imported, and its class.

    Args:
        files: contents by path, without litter. entry: `module:Class`, needed only if several classes inherit
            from `TrainingFunction`.

    Raises:
        BundleError: what is wrong, where, and what would be right.
    """
    found = root_of_entry(files, entry) if entry else None
    root = _root_of(files) if found is None else found
    modules = {
        module_name(path.removeprefix(root)): (path.removeprefix(root), text)
        for path, text in files.items()
        if path.endswith(".py")
    }
    function = find_function(parse_modules(modules), entry)
    if root_of_entry(files, function.entry) != root:
        raise BundleError(
            "entry",
            f"{function.entry} could be several files; zip the contents of {root} without the folder.",
        )
    return root, replace(function, experts=read_expert_counts(modules))


def _root_of(files: Mapping[str, bytes]) -> str:
    """Return the innermost folder that contains all files and is not a package that modules import."""
    root = ""
    for folder in _common_folders(files):
        name = folder.removeprefix(root).rstrip("/")
        if f"{folder}__init__.py" in files or (importable(name) and _is_package(name, folder, files)):
            break
        root = folder
    return root


def _is_package(name: str, folder: str, files: Mapping[str, bytes]) -> bool:
    """Whether modules import the folder by its name, rather than something of that name inside it."""
    if any(path.startswith((f"{folder}{name}.py", f"{folder}{name}/")) for path in files):
        return False
    line = re.compile(rb"^[ \t]*(?:from|import)[ \t]+" + name.encode() + rb"\b", re.MULTILINE)
    return any(line.search(text) for path, text in files.items() if path.endswith(".py"))


def _common_folders(paths: Collection[str]) -> list[str]:
    """Return the folders that contain all files, outermost first, each with its slash."""
    folders: list[str] = []
    shared = [path.split("/")[:-1] for path in paths]
    for parts in zip(*shared, strict=False):
        if len(set(parts)) > 1:
            break
        folders.append(f"{folders[-1] if folders else ''}{parts[0]}/")
    return folders
