"""This server's resources for workers, determined once at the agent's start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from workers.agent.machine.configuration import Configuration
from workers.agent.processes.inventory import Accelerator, find_accelerators
from workers.agent.processes.runtime_staging import stage_runtime
from workers.agent.processes.sandboxing import Sandboxing


@dataclass(frozen=True)
class ThisServer:
    """`runtime`: the folder of the staged runtime. `sandboxing`: the confinement of workers here."""

    accelerators: tuple[Accelerator, ...]
    runtime: Path
    sandboxing: Sandboxing


def probe_server(configuration: Configuration) -> ThisServer:
    """Find the accelerators, stage the runtime and probe the sandbox. Raises ConfigurationError, OSError."""
    accelerators = find_accelerators(configuration)
    runtime = stage_runtime(configuration.data / "runtime", configuration.runtime_source)
    return ThisServer(accelerators, runtime, Sandboxing(configuration, runtime, len(accelerators)))
