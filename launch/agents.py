"""The node agents that run on the platform's own machine, and the first users, project and jobs."""

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
from launch.emulated_kinds import emulated_kinds
from launch.errors import LaunchError
from launch.example_deployment import submitted_job
from launch.folders import PROJECT, Folders, write_private
from launch.process import ProcessSpecification
from launch.services import Addresses, base_environment
from launch.settings import DEPLOYMENTS_USAGE, PlatformSettings

#: As agents have it: what PyTorch needs even where a machine is small and its slots are many.
LEAST_WORKER_BYTES = 1024**3
#: Of the machine's memory one part in so many is for recovery points of all agents' workers.
STORE_PART = 8
#: Name of the process that emulates the inference scheduler.
EMULATOR = "inference-emulator"
INFERENCE_CLUSTER = "serving"
#: Where its load begins, in hours after the curve's midnight. The synthetic curves are at their highest then
#: and would let nothing be lent for the first minutes; from here on they fall, and servers are lent while
#: somebody still watches.
INFERENCE_START_HOUR = 2.0


class LocalAgents:
    """Enrols and describes the agents of this machine."""

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
        """Make users and project where they are missing; answer an enrolment token for each new agent.

        Raises LaunchError if the command fails or answers nonsense.
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
        """Who schedules the inference cluster; without a load this stays as operators set it."""
        if self._settings.inference_usage is None:
            return ()
        by_deployments = self._settings.inference_usage == DEPLOYMENTS_USAGE
        return "--inference-scheduled-by", "deployments" if by_deployments else "scheduler"

    def inference_emulator(self) -> ProcessSpecification:
        """The emulated inference scheduler: a client of the web server like any other."""
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
        """Submit the example functions and jobs, once in the life of the data."""
        submitted = self._folders.examples_submitted
        if not submitted.exists():
            write_private(submitted, commands.run("submit_examples"))

    def example_deployment(self) -> OneShot | None:
        """Start what deploys the example language model once it is trained; None if nothing is to be done."""
        job_id = submitted_job(self._folders) if self._settings.inference_agents else None
        if job_id is None:
            return None
        command = [sys.executable, "-m", "launch.example_deployment", job_id, str(self._folders.data)]
        log = self._folders.logs / "example-deployment.log"
        return OneShot("the deployment of the example language model", command, base_environment(), log)

    def specifications(self, tokens: Mapping[str, str]) -> Sequence[ProcessSpecification]:
        """Write each agent's configuration and describe its process."""
        kept = {name: self._enrolled_ports(name) for name in self.names}
        used = [last for _, last in filter(None, kept.values())]
        first_port = max([self._settings.first_worker_port, *(last + 1 for last in used)])
        newcomers = sum(found is None for found in kept.values())
        fresh = iter(ports.choose_ranges("127.0.0.1", newcomers, first_port, self._settings.worker_ports))
        return [
            self._specification(name, found or next(fresh), tokens.get(name)) for name, found in kept.items()
        ]

    def _enrolled_ports(self, name: str) -> tuple[int, int] | None:
        """The ports with which an agent enrolled: the control plane knows these, so they stay."""
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
            # SIGINT: let the workers write their state and stop; SIGTERM would leave them running.
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
    """This machine's memory for each worker of all its agents, each of which would count on the whole of
    it."""
    return max(LEAST_WORKER_BYTES, _machine_bytes() // max(1, workers))


def _worker_disk_bytes(folder: Path, workers: int) -> int:
    """A quarter of the free disk for all workers of all agents, each of which would count on the whole of it;
    a worker's successor has as much for a moment."""
    return max(1, shutil.disk_usage(folder).free // 4 // max(1, workers))


def _machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def to_toml(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """Write strings, numbers, booleans, lists and nested tables as TOML. JSON's scalars are TOML's too."""
    lines = [
        f"{name} = {json.dumps(value)}" for name, value in values.items() if not isinstance(value, Mapping)
    ]
    text = "\n".join(lines) + "\n"
    for name, value in values.items():
        if isinstance(value, Mapping):
            inner = (*path, name)
            text += f"\n[{'.'.join(inner)}]\n" + to_toml(value, inner)
    return text
