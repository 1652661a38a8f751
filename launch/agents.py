"""The node agents on the platform's own machine, and the first users, project and jobs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launch import ports
from launch.commands import ManagementCommands, OneShot
from launch.credentials import DEMO_USER, OPERATOR_USER, Credentials
from launch.emulating.emulated_kinds import emulated_kinds
from launch.errors import LaunchError
from launch.folders import PROJECT, Folders, write_private
from launch.process import ProcessSpecification
from launch.services import Addresses, base_environment
from launch.settings import DEPLOYMENTS_USAGE, PlatformSettings
from launch.showing.example_deployment import submitted_job

#: Same minimum as in the agents: PyTorch needs this much even on a small machine with many slots.
LEAST_WORKER_BYTES = 1024**3
#: 1/STORE_PART of the machine's memory holds recovery points of all agents' workers.
STORE_PART = 8
#: Name of the process that emulates the inference scheduler.
EMULATOR = "inference-emulator"
INFERENCE_CLUSTER = "serving"
#: Start of the emulated load, in hours after the curve's midnight. The synthetic curves peak at midnight, so
#: nothing could be lent in the first minutes. From this hour on they fall, and servers are lent soon after
#: the start.
INFERENCE_START_HOUR = 2.0


class LocalAgents:
    """Enrols the agents of this machine and builds their process specifications."""

    def __init__(
        self, settings: PlatformSettings, folders: Folders, addresses: Addresses, credentials: Credentials
    ) -> None:
        self._settings = settings
        self._folders = folders
        self._addresses = addresses
        self._credentials = credentials
        self._inference_names = [
            f"{INFERENCE_CLUSTER}-{number}" for number in range(1, settings.inference_agents + 1)
        ]
        self.names = [
            *(f"node-{number}" for number in range(1, settings.agents + 1)),
            *self._inference_names,
        ]

    def bootstrap(self, commands: ManagementCommands) -> Mapping[str, str]:
        """Create missing users and the project. Returns an enrolment token for each new agent.

        Raises LaunchError if the command fails or prints something else than JSON.
        """
        newcomers = [name for name in self.names if not self._credential(name).exists()]
        arguments = []
        for name in newcomers:
            arguments += ["--inference-agent" if name in self._inference_names else "--agent", name]
        if self._inference_names:
            arguments += ["--inference-cluster", INFERENCE_CLUSTER]
            arguments += ["--inference-period-seconds", str(self._settings.inference_period_seconds)]
            arguments += self._inference_scheduler()
        answer = commands.run(
            "bootstrap_demo",
            *arguments,
            secrets={
                "PUNCTUAL_DEMO_USER": DEMO_USER,
                "PUNCTUAL_DEMO_PASSWORD": self._credentials.demo_password,
                "PUNCTUAL_OPERATOR_USER": OPERATOR_USER,
                "PUNCTUAL_OPERATOR_PASSWORD": self._credentials.operator_password,
                "PUNCTUAL_INFERENCE_CREDENTIAL": self._credentials.inference_credential,
            },
        )
        try:
            found = json.loads(answer)
            return {str(name): str(token) for name, token in found["agents"].items()}
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise LaunchError(f"`manage.py bootstrap_demo` answered {answer[:200]!r}") from error

    def _inference_scheduler(self) -> Sequence[str]:
        """Return options that set the inference cluster's scheduler; none without a load, so that operators'
        setting stays."""
        if self._settings.inference_usage is None:
            return ()
        by_deployments = self._settings.inference_usage == DEPLOYMENTS_USAGE
        return "--inference-scheduled-by", "deployments" if by_deployments else "scheduler"

    def inference_emulator(self) -> ProcessSpecification:
        """Return the process of the emulated inference scheduler, an ordinary client of the web server."""
        state = self._folders.run / "inference-orders.json"
        return ProcessSpecification(
            name=EMULATOR,
            command=[
                sys.executable, "-m", "workers.inference_emulator", "--usage",
                str(self._settings.inference_usage), "--start-hour", str(INFERENCE_START_HOUR), "--state",
                str(state),
            ],
            environment=base_environment()
            | {
                "PUNCTUAL_URL": self._addresses.web_url,
                "PUNCTUAL_INFERENCE_TOKEN": self._credentials.inference_credential,
            },
            log=self._folders.logs / f"{EMULATOR}.log",
            working_folder=PROJECT,
            stop_grace_seconds=15.0,
        )  # fmt: skip

    def submit_examples(self, commands: ManagementCommands) -> None:
        """Submit the example functions and jobs, once per data folder."""
        submitted = self._folders.examples_submitted
        if not submitted.exists():
            write_private(submitted, commands.run("submit_examples"))

    def example_deployment(self) -> OneShot | None:
        """Start the process that deploys the example language model once it is trained; None if there is
        nothing to do."""
        job_id = submitted_job(self._folders) if self._settings.inference_agents else None
        if job_id is None:
            return None
        command = [sys.executable, "-m", "launch.showing.example_deployment", job_id, str(self._folders.data)]
        log = self._folders.logs / "example-deployment.log"
        return OneShot("the deployment of the example language model", command, base_environment(), log)

    def specifications(self, tokens: Mapping[str, str]) -> Sequence[ProcessSpecification]:
        """Write each agent's configuration and return its process specification."""
        enrolled_ports = {name: self._enrolled_ports(name) for name in self.names}
        used = [last for _, last in filter(None, enrolled_ports.values())]
        first_port = max([self._settings.first_worker_port, *(last + 1 for last in used)])
        newcomers = sum(found is None for found in enrolled_ports.values())
        fresh = iter(ports.choose_ranges("127.0.0.1", newcomers, first_port, self._settings.worker_ports))
        return [
            self._specification(name, found or next(fresh), tokens.get(name))
            for name, found in enrolled_ports.items()
        ]

    def _enrolled_ports(self, name: str) -> tuple[int, int] | None:
        """Return the ports with which an agent enrolled. They must not change, since the control plane has
        stored them."""
        configuration = self._folders.agents / name / "agent.toml"
        if not self._credential(name).exists() or not configuration.exists():
            return None
        first, last = tomllib.loads(configuration.read_text(encoding="utf-8"))["port_range"]
        return int(first), int(last)

    def _specification(
        self, name: str, port_range: tuple[int, int], token: str | None
    ) -> ProcessSpecification:
        folder = self._folders.agents / name
        folder.mkdir(mode=0o711, exist_ok=True)
        configuration = folder / "agent.toml"
        write_private(configuration, to_toml(self._configuration(name, port_range)))
        credential = self._credential(name)
        namespace = self._settings.agent_namespaces.get(name)
        inside = [] if namespace is None else ["nsenter", f"--net={namespace}", "--"]
        return ProcessSpecification(
            name=f"agent-{name}",
            command=[*inside, sys.executable, "-m", "workers.agent", "run", "--config", str(configuration)],
            environment=base_environment() | ({"PUNCTUAL_ENROL_TOKEN": token} if token else {}),
            log=self._folders.logs / f"agent-{name}.log",
            working_folder=PROJECT,
            is_ready=credential.exists,
            # SIGINT: workers write their state and stop; SIGTERM would leave them running.
            stop_signal=signal.SIGINT,
            stop_grace_seconds=25.0,
        )

    def _credential(self, name: str) -> Path:
        return self._folders.agents / name / "credential.json"

    def _configuration(self, name: str, port_range: tuple[int, int]) -> dict[str, Any]:
        settings, folders, addresses = self._settings, self._folders, self._addresses
        configuration: dict[str, Any] = {
            "name": name,
            "server_url": addresses.agent_url,
            "stream_url": addresses.stream_url,
            "data": str(folders.agents / name),
            "address": "127.0.0.1",
            "port_range": list(port_range),
            "slots": settings.slots,
            "worker_memory_bytes": _worker_memory_bytes(len(self.names) * settings.slots),
            "worker_disk_bytes": _worker_disk_bytes(folders.data, len(self.names) * settings.slots),
            "memory_store_bytes": _machine_bytes() // STORE_PART // max(1, len(self.names)),
            "warm_workers": settings.warm_workers,
            "checkpoint_url": settings.environment.get("CHECKPOINT_URL", f"file://{folders.checkpoints}"),
            "hide": [str(folders.data), str(folders.sockets)],
        }
        if settings.emulate is not None:
            text = settings.emulate
            if name in self._inference_names:
                text = settings.inference_emulate or text
            kinds = emulated_kinds(text)
            kind = kinds[self.names.index(name) % len(kinds)]
            links = {} if settings.links is None else {"links": settings.links}
            configuration["emulate"] = {
                "name": kind.name, **kind.device_model(settings.device_model), **links
            }  # fmt: skip
        own = settings.each_agent.get(name, {})
        return configuration | dict(settings.agent_configuration) | dict(own)


def _worker_memory_bytes(workers: int) -> int:
    """Return the memory limit per worker in bytes: the machine's memory divided by all workers of all its
    agents."""
    return max(LEAST_WORKER_BYTES, _machine_bytes() // max(1, workers))


def _worker_disk_bytes(folder: Path, workers: int) -> int:
    """Return the disk limit per worker in bytes: a quarter of the free disk divided by all workers of all
    agents.

    During a hand-over, a worker and its successor use the limit at the same time.
    """
    return max(1, shutil.disk_usage(folder).free // 4 // max(1, workers))


def _machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def to_toml(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """Return strings, numbers, booleans, lists and nested tables as TOML. JSON's scalars are valid TOML."""
    lines = [
        f"{name} = {json.dumps(value)}" for name, value in values.items() if not isinstance(value, Mapping)
    ]
    text = "\n".join(lines) + "\n"
    for name, value in values.items():
        if isinstance(value, Mapping):
            inner = (*path, name)
            text += f"\n[{'.'.join(inner)}]\n" + to_toml(value, inner)
    return text
