"""The few Linux calls that Python's standard library lacks (standard library only)."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_NOATIME = 1024
MS_NODIRATIME = 2048
MS_BIND = 4096
MS_REC = 16384
MS_UNBINDABLE = 1 << 17
MS_PRIVATE = 1 << 18
MS_RELATIME = 1 << 21
MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

CAP_SYS_NICE = 23

_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags`. Raises OSError if the kernel does not allow it."""
    _check(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """Mount `source` at `target`. Raises OSError."""
    result = _libc.mount(
        source.encode(),
        target.encode(),
        kind.encode() if kind is not None else None,
        ctypes.c_ulong(flags),
        options.encode() if options is not None else None,
    )
    _check(result, f"mount {source} at {target}")


def unmount(target: str, flags: int) -> None:
    """Remove the mount at `target`. Raises OSError."""
    _check(_libc.umount2(target.encode(), flags), f"unmount {target}")


def pivot_root(new_root: str, put_old: str) -> None:
    """Make `new_root` the root of the mount namespace, the old one visible at `put_old`. Raises OSError."""
    _check(_libc.pivot_root(new_root.encode(), put_old.encode()), "pivot_root")


def process_control(option: int, argument: int) -> None:
    """Call prctl(option, argument). Raises OSError."""
    zero = ctypes.c_ulong(0)
    _check(_libc.prctl(option, ctypes.c_ulong(argument), zero, zero, zero), f"prctl {option}")


def name_process(name: str) -> None:
    """Set this process's name in `ps` and `top`; the kernel keeps 15 bytes. Raises OSError."""
    text = ctypes.create_string_buffer(name.encode())
    zero = ctypes.c_ulong(0)
    _check(_libc.prctl(PR_SET_NAME, text, zero, zero, zero), "prctl PR_SET_NAME")


def drop_bounding_capabilities() -> None:
    """Drop the capabilities that file capabilities could grant. Does nothing without the right to. Raises
    OSError."""
    for capability in range(64):
        try:
            process_control(PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno in (
                errno.EINVAL,
                errno.EPERM,
            ):  # no higher capability known here, or not ours to drop
                return
            raise


def drop_capabilities() -> None:
    """Drop every capability of this process. Raises OSError."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0))
    nothing = ctypes.create_string_buffer(bytes(24))
    _check(_libc.capset(header, nothing), "capset")


def has_capability(number: int) -> bool:
    """Whether this process may use that capability now."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        effective = next((line for line in status if line.startswith("CapEff:")), "CapEff: 0")
    return bool(int(effective.split()[1], 16) >> number & 1)
