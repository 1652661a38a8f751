"""The confinement of a worker: in namespaces, under another user, or (only if a setting allows it) in
neither.

Standard library only: the launcher uses this file without installed packages.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from workers.agent.confinement import mounts
from workers.agent.machine import linux
from workers.agent.machine.resource_limits import ResourceLimits

SandboxMode = Literal["namespaces", "user", "none"]
OPEN_FILES_LIMIT = 65536
#: The kernel's limit on a user's processes is slightly above the one whose excess is reported.
_PROCESSES_ABOVE = 16


@dataclass(frozen=True)
class Sandbox:
    """A worker's view and identity.

    `box`: its folder outside, `box_inside`: the same folder inside. `user_id`: the user that it becomes; None
    keeps the agent's (an ordinary user cannot change). `first_user_id`: the same for the first process, above
    the worker. `readable` and `data`: (source, target) pairs; the targets of `data` lie in the box.
    """

    mode: SandboxMode
    box: str
    box_inside: str
    user_id: int | None = None
    readable: tuple[tuple[str, str], ...] = ()
    data: tuple[tuple[str, str], ...] = ()
    #: Paths that the worker cannot see.
    hidden: tuple[str, ...] = ()
    #: Device files that the worker may use.
    devices: tuple[str, ...] = field(default=())
    first_user_id: int | None = None
    limits: ResourceLimits | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Sandbox:
        """Parse the result of `to_json`."""
        return cls(
            mode=value["mode"],
            box=value["box"],
            box_inside=value["box_inside"],
            user_id=value["user_id"],
            readable=tuple((source, target) for source, target in value["readable"]),
            data=tuple((source, target) for source, target in value["data"]),
            hidden=tuple(value["hidden"]),
            devices=tuple(value["devices"]),
            first_user_id=value.get("first_user_id"),
            limits=None if value.get("limits") is None else ResourceLimits.from_json(value["limits"]),
        )

    def to_json(self) -> dict[str, Any]:
        """Return this sandbox as plain JSON values."""
        return {
            "mode": self.mode,
            "box": self.box,
            "box_inside": self.box_inside,
            "user_id": self.user_id,
            "readable": [list(pair) for pair in self.readable],
            "data": [list(pair) for pair in self.data],
            "hidden": list(self.hidden),
            "devices": list(self.devices),
            "first_user_id": self.first_user_id,
            "limits": None if self.limits is None else self.limits.to_json(),
        }


def separate_processes() -> None:
    """Put every process started from now on into a new PID namespace. Raises OSError.

    An ordinary user first needs a user namespace, in which the caller keeps its user id and access to its
    files.
    """
    user_id, group_id = os.geteuid(), os.getegid()
    if user_id == 0:
        linux.unshare(linux.CLONE_NEWPID)
        return
    linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWPID)
    for name, content in (
        ("setgroups", "deny"),
        ("uid_map", f"{user_id} {user_id} 1"),
        ("gid_map", f"{group_id} {group_id} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(content)


def enter(sandbox: Sandbox, root_folder: str) -> None:
    """Apply the worker's file tree and limits to this process, which keeps its user. Raises OSError.

    In mode "namespaces" the caller must be the first process of its PID namespace. The worker's file tree is
    mounted under the empty folder `root_folder`, invisible to all others.
    """
    os.umask(0o022)
    _limit_resources(sandbox)
    if sandbox.mode == "namespaces":
        linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWIPC)
        mounts.build_root(
            root_folder,
            box=sandbox.box,
            readable=sandbox.readable,
            data=sandbox.data,
            hidden=sandbox.hidden,
            devices=sandbox.devices,
            shared_memory_bytes=None if sandbox.limits is None else sandbox.limits.memory_bytes // 2,
        )
    linux.drop_bounding_capabilities()  # while it still has the right to


def give_up_privileges(user_id: int | None) -> None:
    """Become the given user, if any, without the right to change again. Raises OSError."""
    if user_id is not None:
        os.setgroups([])
        os.setresgid(user_id, user_id, user_id)
        os.setresuid(user_id, user_id, user_id)
    linux.drop_capabilities()
    linux.process_control(linux.PR_SET_NO_NEW_PRIVS, 1)


def seal() -> None:
    """Prevent unprivileged processes from inspecting this one: its memory, descriptors and environment.

    Raises OSError.
    """
    linux.process_control(linux.PR_SET_DUMPABLE, 0)


def _limit_resources(sandbox: Sandbox) -> None:
    """Limit processes, disable core dumps (they could contain others' data), allow enough files, and let the
    out-of-memory killer choose the worker first."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limit = OPEN_FILES_LIMIT if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_LIMIT)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    # The limit applies to a user id that only this worker has, or to a user namespace that only it has.
    if sandbox.limits is not None and (sandbox.user_id is not None or sandbox.mode == "namespaces"):
        processes = sandbox.limits.processes + _PROCESSES_ABOVE
        own = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        processes = processes if own == resource.RLIM_INFINITY else min(own, processes)
        resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")
