"""Archives as Finder, GitHub and Windows make them: names of their members, what is litter, and the folder in
which the function lies."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import replace

from punctual.bundles.errors import BundleError
from punctual.bundles.experts import read_expert_counts
from punctual.bundles.source import FunctionClass, find_function, importable, module_name, parse_modules
from punctual.names import normalised

#: Folders and files that file managers add and nobody wants.
_LITTER_FOLDERS = frozenset({"__MACOSX", "__pycache__", ".git"})
_LITTER_FILES = frozenset({".DS_Store", "Icon\r", "Thumbs.db", "ehthumbs.db", "desktop.ini", "Desktop.ini"})
_UTF8_FLAG = 0x800


def member_path(info: zipfile.ZipInfo) -> str:
    """A member's path as it is meant, in one spelling (NFC); that of a folder ends with a slash.

    Windows has written backslashes between folders, and Finder UTF-8 without the flag that says so.
    """
    name = info.orig_filename
    if not info.flag_bits & _UTF8_FLAG and not name.isascii():
        try:
            name = name.encode("cp437").decode("utf-8")
        except UnicodeError:
            pass
    return normalised(name.replace("\\", "/"))


def is_litter(path: str) -> bool:
    """Whether a member is what a file manager has left beside the files. What leads elsewhere is never
    litter: it is refused."""
    parts = path.rstrip("/").split("/")
    if ".." in parts or "" in parts:
        return False
    *folders, name = parts
    if path.endswith("/"):
        folders.append(name)
    return not _LITTER_FOLDERS.isdisjoint(folders) or name in _LITTER_FILES or name.startswith("._")


def root_of_entry(paths: Collection[str], entry: str) -> str | None:
    """The folder (with its slash, empty for the top) from which `entry` can be imported; None where there is
    none.

    Only folders that hold all files are looked at, outermost first.
    """
    module = entry.partition(":")[0].replace(".", "/")
    for root in ("", *_common_folders(paths)):
        if f"{root}{module}.py" in paths or f"{root}{module}/__init__.py" in paths:
            return root
    return None


def read_function(files: Mapping[str, bytes], entry: str | None) -> tuple[str, FunctionClass]:
    """The folder from which the function is imported, and its class.

    Args:
        files: contents by path, without litter. entry: `module:Class`, needed only where several classes
            inherit from `TrainingFunction`.

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
    """The innermost folder that holds all files and is no package: one whose name no module imports."""
    root = ""
    for folder in _common_folders(files):
        name = folder.removeprefix(root).rstrip("/")
        if f"{folder}__init__.py" in files or (importable(name) and _is_package(name, folder, files)):
            break
        root = folder
    return root


def _is_package(name: str, folder: str, files: Mapping[str, bytes]) -> bool:
    """Whether modules import the folder by its name, and nothing inside of it that is called so too."""
    if any(path.startswith((f"{folder}{name}.py", f"{folder}{name}/")) for path in files):
        return False
    line = re.compile(rb"^[ \t]*(?:from|import)[ \t]+" + name.encode() + rb"\b", re.MULTILINE)
    return any(line.search(text) for path, text in files.items() if path.endswith(".py"))


def _common_folders(paths: Collection[str]) -> list[str]:
    """The folders that hold all files, outermost first, each with its slash."""
    folders: list[str] = []
    shared = [path.split("/")[:-1] for path in paths]
    for parts in zip(*shared, strict=False):
        if len(set(parts)) > 1:
            break
        folders.append(f"{folders[-1] if folders else ''}{parts[0]}/")
    return folders
