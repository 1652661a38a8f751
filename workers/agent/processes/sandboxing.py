"""The confinement that works on this machine, and each worker's view."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import uuid
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path

from punctual.randomness import HASH_SEED
from workers.agent.confinement.sandbox import Sandbox, SandboxMode
from workers.agent.machine import clock
from workers.agent.machine.configuration import Configuration, ConfigurationError
from workers.agent.machine.resource_limits import (
    ResourceLimits,
    host_memory_bytes,
    remove_left_over,
    store_bytes,
    usable_groups,
)
from workers.agent.processes.inventory import Accelerator
from workers.agent.processes.worker_processes import launch, make_folder, read_exit, write_lease

logger = logging.getLogger(__name__)

PROBE_SECONDS = 20.0
USERS_PER_AGENT = 200
#: Needed by PyTorch and a small function, even on a small machine with many slots.
LEAST_MEMORY_BYTES = 1024**3
BOX_INSIDE = "/box"
RUNTIME_INSIDE = "/runtime"


class Sandboxing:
    """Builds the sandbox of each worker, in a mode that works."""

    def __init__(self, configuration: Configuration, runtime: Path, slots: int) -> None:
        """Probe the modes, for a server on which `slots` workers train at once.

        Raises ConfigurationError if none works and running without one is not allowed.
        """
        self._configuration = configuration
        self._runtime = runtime
        *_, last = self._users = worker_users(configuration)
        # First processes get a user that no worker has, if there is one to spare.
        self._first_user = last if last > self._users[0] else None
        left_bytes = host_memory_bytes() - store_bytes(configuration.memory_store_bytes)
        share = max(LEAST_MEMORY_BYTES, left_bytes // max(1, slots))
        groups = usable_groups()
        remove_left_over(groups)
        self.limits = ResourceLimits(
            configuration.worker_memory_bytes or share, configuration.worker_processes, groups
        )
        self.mode: SandboxMode = self._choose()

    def free_user(self, taken: Collection[int | None]) -> int | None:
        """Return a user that no living worker has; None if workers keep the agent's.

        Raises OSError if all are taken.
        """
        if self.mode == "none" or os.geteuid() != 0:
            return None
        for user_id in range(self._users[0], self._users[1] + 1):
            if user_id not in taken and user_id != self._first_user:
                return user_id
        raise OSError("every user of worker_users has a worker")

    def build(
        self, box: Path, user_id: int | None, accelerator: Accelerator | None, data_paths: Mapping[str, Path]
    ) -> Sandbox:
        """Return the sandbox of one worker; declared `data_paths` appear in its box."""
        first_user = None if user_id is None else self._first_user
        if self.mode != "namespaces":
            return Sandbox(
                self.mode, str(box), str(box), user_id, first_user_id=first_user, limits=self.limits
            )
        # The agent's interpreter and packages; those below /usr are already visible.
        prefixes = sorted({sys.prefix, sys.base_prefix, sys.exec_prefix} - {"/usr"})
        readable = [(prefix, prefix) for prefix in prefixes if not prefix.startswith("/usr/")]
        readable += [(str(path), str(path)) for path in self._configuration.readable]
        readable.append((str(self._runtime), RUNTIME_INSIDE))
        for (
            name,
            path,
        ) in data_paths.items():  # the box is read-only inside, so mount points must exist before
            place = box / "data" / name
            place.mkdir() if path.is_dir() else place.touch()
        data = [(str(path), f"{BOX_INSIDE}/data/{name}") for name, path in data_paths.items()]
        return Sandbox(
            mode="namespaces",
            box=str(box),
            box_inside=BOX_INSIDE,
            user_id=user_id,
            readable=tuple(readable),
            data=tuple(data),
            hidden=(str(self._configuration.data), *(str(path) for path in self._configuration.hide)),
            devices=() if accelerator is None else accelerator.device_files,
            first_user_id=first_user,
            limits=self.limits,
        )

    def environment(self, sandbox: Sandbox, accelerator: Accelerator | None) -> dict[str, str]:
        """Return all environment variables of a worker; none are inherited from the agent."""
        runtime = RUNTIME_INSIDE if sandbox.mode == "namespaces" else str(self._runtime)
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": f"{sandbox.box_inside}/home",
            "TMPDIR": f"{sandbox.box_inside}/tmp",
            "USER": "worker",
            "LOGNAME": "worker",
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "PYTHONPATH": runtime,
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": HASH_SEED,
            # Exactly its own GPU; a CPU slot must not find any.
            "CUDA_VISIBLE_DEVICES": accelerator.uuid if accelerator is not None and accelerator.cuda else "",
        }

    def _choose(self) -> SandboxMode:
        modes: list[SandboxMode] = ["namespaces", "user"] if os.geteuid() == 0 else ["namespaces"]
        problems = []
        for mode in modes:
            problem = self._probe(mode)
            if problem is None:
                return mode
            problems.append(f"{mode}: {problem}")
            logger.warning("workers cannot be confined by %s: %s", mode, problem)
        if self._configuration.allow_unsandboxed:
            logger.warning("workers run unconfined, as the setting allow_unsandboxed allows")
            return "none"
        raise ConfigurationError(
            f"workers cannot be confined here ({'; '.join(problems)}). Run the agent as root, allow user "
            "namespaces, or set allow_unsandboxed = true if every person who submits work may do whatever "
            "this agent may."
        )

    def _probe(self, mode: SandboxMode) -> str | None:
        """Run the interpreter once in a sandbox of that mode; return the problem, or None."""
        self.mode = mode
        folder = self._configuration.data / "workers" / f"probe-{uuid.uuid4().hex[:8]}"
        try:
            user_id = self.free_user(())
            box = make_folder(folder, user_id)
            sandbox = self.build(box, user_id, None, {})
            write_lease(folder, clock.boot_time_seconds() + PROBE_SECONDS)
            handle = launch(
                folder,
                command=[
                    sys.executable,
                    "-P",
                    "-c",
                    "import workers.runtime, tempfile; tempfile.TemporaryFile()",
                ],
                environment=self.environment(sandbox, None),
                sandbox=sandbox,
                log_limit_bytes=100_000,
                nice=0,
            )
            handle.wait(2 * PROBE_SECONDS)
            status = read_exit(folder)
            if status is not None and status.code == 0:
                return None
            output = [
                line
                for line in (folder / "worker.log").read_text(errors="replace").splitlines()
                if line.strip()
            ]
            return (status.message if status else "") or (
                output[-1] if output else "the launcher said nothing"
            )
        except OSError as error:
            return str(error)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def worker_users(configuration: Configuration) -> tuple[int, int]:
    """Return the range of user ids for this agent's workers, distinct for each data folder on the machine.

    Ids without an account; from 20,000 on if only the first 65,536 exist (in a container's user namespace).
    """
    if configuration.worker_users is not None:
        return configuration.worker_users
    number = zlib.crc32(os.fsencode(configuration.data))
    first = (
        200_000 + number % 5_000 * USERS_PER_AGENT
        if _user_id_exists(1_200_000)
        else 20_000 + number % 200 * USERS_PER_AGENT
    )
    return first, first + USERS_PER_AGENT - 1


def _user_id_exists(user_id: int) -> bool:
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = (int(field) for field in line.split())
        if first <= user_id < first + count:
            return True
    return False
