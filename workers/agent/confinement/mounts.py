"""The file tree of a sandboxed worker: built from a list of visible folders, so that all else is hidden.

Standard library only: the launcher uses this file without installed packages.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from workers.agent.machine import linux

# Folders that system programs and libraries need. /run, /var, /home, /root, /srv, /mnt and the platform's
# folders are left out.
# 21 mountinfo's encoding of blanks and backslashes
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/sys")
PLAIN_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
WRITABLE_BOX_FOLDERS = ("out", "home", "tmp")

_ESCAPED = re.compile(r"\\([0-7]{3})")  # how mountinfo writes blanks and backslashes
_OPTION_FLAGS = {
    "nosuid": linux.MS_NOSUID,
    "nodev": linux.MS_NODEV,
    "noexec": linux.MS_NOEXEC,
    "noatime": linux.MS_NOATIME,
    "nodiratime": linux.MS_NODIRATIME,
    "relatime": linux.MS_RELATIME,
}


def build_root(
    root: str,
    *,
    box: str,
    readable: Iterable[tuple[str, str]],
    data: Iterable[tuple[str, str]],
    hidden: Iterable[str],
    devices: Iterable[str],
    shared_memory_bytes: int | None = None,
) -> None:
    """Mount the worker's file tree at the folder `root` and enter it.

    `box` appears as /box, read-only except for its `out`, `home` and `tmp`. Each (source, target) of
    `readable` and `data` appears read-only at its target. `hidden` folders are covered. /dev/shm is limited
    to `shared_memory_bytes`. Needs a separate mount namespace. Raises OSError.
    """
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("worker", root, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755,size=4m")
    # A visible folder may contain this very tree, which must not appear in itself.
    linux.mount("none", root, None, linux.MS_UNBINDABLE)
    for folder in SYSTEM_FOLDERS:
        _bind_system_folder(root, folder)
    _bind_name_resolution(root)
    _build_devices(root, devices, shared_memory_bytes)
    os.makedirs(root + "/proc")
    linux.mount("proc", root + "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    bind(f"{box}/tmp", root + "/tmp", read_only=False)
    for source, target in readable:
        bind(source, root + target, read_only=True)
    for folder in hidden:  # before the box and declared data, which may lie inside a hidden folder
        _cover(root + folder)
    _bind_box(root, box)
    for source, target in data:
        bind(source, root + target, read_only=True)
    _enter(root)


def bind(source: str, target: str, *, read_only: bool) -> None:
    """Bind the file or folder `source` to `target`, without set-user-id programs. Raises OSError."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.exists(target):
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
    # Recursive, because a user namespace must not reveal what a mount below `source` hides.
    linux.mount(source, target, None, linux.MS_BIND | linux.MS_REC)
    for mount_point, flags in _mounts_below(os.path.realpath(target)):
        wanted = flags | linux.MS_NOSUID | (linux.MS_RDONLY if read_only else 0)
        linux.mount("none", mount_point, None, linux.MS_REMOUNT | linux.MS_BIND | wanted)


def _mounts_below(folder: str) -> list[tuple[str, int]]:
    """Return (mount point, flags that a remount must keep) for each mount at or below `folder`."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        fields = line.split(" ")
        mount_point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4])
        if mount_point == folder or mount_point.startswith(folder.rstrip("/") + "/"):
            flags = 0
            for option in fields[5].split(","):
                flags |= _OPTION_FLAGS.get(option, linux.MS_RDONLY if option == "ro" else 0)
            found.append((mount_point, flags))
    return found


def _bind_system_folder(root: str, folder: str) -> None:
    if os.path.islink(folder):  # /bin -> usr/bin
        os.symlink(os.readlink(folder), root + folder)
    elif os.path.isdir(folder):
        bind(folder, root + folder, read_only=True)


def _bind_name_resolution(root: str) -> None:
    """If /etc/resolv.conf links into /run, make that one file visible."""
    actual = os.path.realpath("/etc/resolv.conf")
    if os.path.isfile(actual) and not os.path.exists(root + actual):
        bind(actual, root + actual, read_only=True)


def _build_devices(root: str, devices: Iterable[str], shared_memory_bytes: int | None) -> None:
    os.makedirs(root + "/dev/shm")
    for device in (*PLAIN_DEVICES, *devices):
        if os.path.exists(device):
            bind(device, root + device, read_only=False)
    size = "" if shared_memory_bytes is None else f",size={shared_memory_bytes}"
    linux.mount("shm", root + "/dev/shm", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, f"mode=1777{size}")
    os.symlink("/proc/self/fd", root + "/dev/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"{root}/dev/{name}")


def _bind_box(root: str, box: str) -> None:
    bind(box, root + "/box", read_only=True)
    for name in WRITABLE_BOX_FOLDERS:
        bind(f"{box}/{name}", f"{root}/box/{name}", read_only=False)


def _cover(folder: str) -> None:
    if os.path.isdir(folder):
        flags = linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
        linux.mount("hidden", folder, "tmpfs", flags, "mode=555,size=4k")
    elif os.path.exists(folder):
        linux.mount("/dev/null", folder, None, linux.MS_BIND)


def _enter(root: str) -> None:
    os.chdir(root)
    linux.pivot_root(".", ".")
    linux.unmount(".", linux.MNT_DETACH)
    os.chdir("/")
    flags = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("none", "/", None, flags)
