"""Setup of child processes: a child dies with its parent, and PostgreSQL does not run as root.

PostgreSQL refuses to run as root. There are two ways around that, best first:

* `namespace`: the child enters its own user namespace in which our root is called `nobody`. No account is
  made, no permission is changed, and files stay ours.
* `nobody`: the child really becomes `nobody`; for machines that forbid user namespaces (many containers).
"""

from __future__ import annotations

import contextlib
import ctypes
import grp
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from launch.errors import LaunchError

RootMode = Literal["auto", "namespace", "nobody"]

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_CLONE_NEWUSER = 0x10000000
#: An id that has a passwd entry on every machine: initdb refuses ids without one.
_NOBODY_ID = 65534

# Loaded before any fork: between fork and exec a child should do as little as possible.
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Identity:
    """The user as which a server that refuses root runs."""

    #: Whether it gets its user id in a user namespace of its own.
    enter_user_namespace: bool = False
    user_id: int | None = None
    group_id: int | None = None

    def popen_arguments(self) -> dict[str, object]:
        """Return arguments of `subprocess.Popen` that change the child's user."""
        if self.user_id is None:
            return {}
        return {"user": self.user_id, "group": self.group_id, "extra_groups": [], "cwd": "/"}

    def own(self, path: Path) -> None:
        """Give `path` and everything in it to this identity."""
        if self.user_id is None or self.group_id is None:
            return
        os.chown(path, self.user_id, self.group_id)
        for folder, folders, files in os.walk(path):
            for name in (*folders, *files):
                os.chown(Path(folder, name), self.user_id, self.group_id, follow_symlinks=False)


def child_setup(death_signal: signal.Signals, *, identity: Identity | None = None) -> Callable[[], None]:
    """Return the function that a forked child runs before exec.

    The kernel sends `death_signal` to the child when the thread that forked it ends for any reason, so
    nothing of the platform outlives the supervisor. Fork from the main thread only.
    """
    parent = os.getpid()
    enter_namespace = identity is not None and identity.enter_user_namespace

    def run_in_child() -> None:
        if enter_namespace:
            _enter_user_namespace()
        # After the change of user, which clears the death signal.
        _libc.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return run_in_child


def name_process(name: str) -> None:
    """Set what the kernel calls this process: the first 15 bytes of ``name``."""
    _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def _enter_user_namespace() -> None:
    user, group = os.geteuid(), os.getegid()
    if _libc.unshare(_CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "cannot create a user namespace")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{_NOBODY_ID} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{_NOBODY_ID} {group} 1")


def unprivileged_identity(mode: RootMode = "auto") -> Identity:
    """Return the user as which PostgreSQL runs; an unprivileged user runs it as themselves.

    Raises LaunchError if root requests a user namespace and the machine does not permit one.
    """
    if os.geteuid() != 0:
        return Identity()
    if mode in ("auto", "namespace"):
        if _namespaces_work():
            return Identity(enter_user_namespace=True)
        if mode == "namespace":
            raise LaunchError("this machine forbids user namespaces: set PUNCTUAL_ROOT_MODE=nobody")
    return Identity(user_id=pwd.getpwnam("nobody").pw_uid, group_id=_nobody_group())


def _namespaces_work() -> bool:
    setup = child_setup(signal.SIGKILL, identity=Identity(enter_user_namespace=True))
    try:
        # S603: our own interpreter, and the child only checks its user id.
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", f"import os; raise SystemExit(os.geteuid() != {_NOBODY_ID})"],
            preexec_fn=setup,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def _nobody_group() -> int:
    with contextlib.suppress(KeyError):
        return grp.getgrnam("nogroup").gr_gid
    return pwd.getpwnam("nobody").pw_gid


def others_can_reach(path: Path) -> bool:
    """Return whether another user could open `path`: every folder above it permits traversal."""
    resolved = path.resolve()
    return all(parent.stat().st_mode & 0o001 for parent in (resolved, *resolved.parents) if parent.is_dir())
