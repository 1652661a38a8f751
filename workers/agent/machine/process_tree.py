"""Killing everything that a worker started when no PID namespace does it (standard library only)."""

from __future__ import annotations

import os
import signal

from workers.agent.machine.resource_limits import descendants

_ROUNDS = 200


def kill_user(user_id: int) -> None:
    """Kill every process of the user `user_id`, which belongs to only one worker. Needs root."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(user_id, user_id, user_id)
            os.setresuid(user_id, user_id, user_id)
            # The kernel kills them in one step, so none can escape by forking.
            os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def kill_descendants(ancestor: int) -> None:
    """Kill all descendants of `ancestor`, which must be this process and a child subreaper.

    New ones may appear while the list is read, so it repeats until none is left. A process that forks without
    end could outrun it, so this is only the last resort.
    """
    for _ in range(_ROUNDS):
        found = descendants(ancestor)
        if not found:
            return
        for process_id in found:
            try:
                os.kill(process_id, signal.SIGKILL)
            except ProcessLookupError:
                continue
        _reap_all()


def _reap_all() -> None:
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return
