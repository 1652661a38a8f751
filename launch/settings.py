"""Settings of a platform on one machine; docs/configuration.md lists the variables."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

from launch.emulating.emulated_kinds import emulated_kinds
from launch.emulating.emulated_link import emulated_link
from launch.errors import LaunchError
from launch.folders import PROJECT
from launch.privileges import RootMode

#: Compute times of an emulated accelerator (docs/protocols.md 3.1), slow enough that eight of them fit on two
#: cores. Every gradient is really computed, and is available no earlier than this model says.
DEFAULT_DEVICE_MODEL: Mapping[str, float] = {"fixed_seconds": 0.05, "seconds_per_sample": 0.008}
#: Instead of an emulated load: deployments load the inference servers and schedule them.
DEPLOYMENTS_USAGE = "deployments"


@dataclass(frozen=True)
class PlatformSettings:
    """Settings of one platform on one machine."""

    #: Folder of the database, files, logs and state.
    data: Path = PROJECT / "data"
    #: Interface that the platform's ports are bound to.
    host: str = "127.0.0.1"
    #: A fixed port that is taken is an error; None takes the next free one from `first_port` on.
    web_port: int | None = None
    agent_port: int | None = None
    stream_port: int | None = None
    first_port: int = 8000
    #: Ports for training between workers; each agent gets its own range. They lie below 32768, where the
    #: kernel's ports for outgoing connections start.
    first_worker_port: int = 21000
    worker_ports: int = 200
    #: Number of training agents.
    agents: int = 2
    #: Accelerators of each agent.
    slots: int = 4
    #: Kind of the emulated accelerator, or several with their speeds that are assigned to agents in turn
    #: (`emulated_kinds`); None: plain CPU slots.
    emulate: str | None = "emulated-gpu"
    #: Parameters of the emulated device's times.
    device_model: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_DEVICE_MODEL))
    #: Emulated links of their servers (docs/agents.md); None: the agents' defaults.
    links: Mapping[str, Any] | None = None
    #: Workers that each agent starts ahead of need.
    warm_workers: int = 2
    #: Agents of an inference cluster, whose servers serve deployments and may be lent to training; 0: none.
    inference_agents: int = 0
    #: Kind of their emulated accelerator; None: the same as the others'.
    inference_emulate: str | None = None
    #: Load that its emulated scheduler serves, or `DEPLOYMENTS_USAGE`; None: no scheduler reports, lends or
    #: asks back.
    inference_usage: str | None = None
    #: Length of a usage sample; it stands for five minutes of the load curve.
    inference_period_seconds: float = 10.0
    #: Whether the example jobs are submitted.
    examples: bool = True
    root_mode: RootMode = "auto"
    database_url: str | None = None
    redis_url: str | None = None
    #: Extra variables for the control plane's processes, such as SLOT_SECONDS.
    environment: Mapping[str, str] = field(default_factory=dict)
    #: Extra variables for the process of that name, of the control plane or an agent.
    each_environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: Extra entries for every agent's configuration file.
    agent_configuration: Mapping[str, Any] = field(default_factory=dict)
    #: Extra entries for the configuration file of the agent of that name.
    each_agent: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: File of the network namespace in which the agent of that name runs; by default the machine's own.
    agent_namespaces: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> PlatformSettings:
        """Return the settings from the environment. Raises LaunchError for an invalid value."""
        read = _Reader(environment)
        emulate = read.choice("PUNCTUAL_EMULATE", "emulated-gpu")
        inference_emulate = read.text("PUNCTUAL_INFERENCE_EMULATE", "") or None
        for text in filter(None, (emulate, inference_emulate)):
            emulated_kinds(text)
        link = read.choice("PUNCTUAL_EMULATED_LINK", "")
        root_mode = read.text("PUNCTUAL_ROOT_MODE", "auto")
        if root_mode not in get_args(RootMode):
            raise LaunchError(
                f"PUNCTUAL_ROOT_MODE must be one of {', '.join(get_args(RootMode))}, not {root_mode!r}"
            )
        return cls(
            data=Path(read.text("PUNCTUAL_DATA", str(PROJECT / "data"))).absolute(),
            host=read.text("PUNCTUAL_HOST", "127.0.0.1"),
            web_port=read.port("PUNCTUAL_WEB_PORT"),
            agent_port=read.port("PUNCTUAL_AGENT_PORT"),
            stream_port=read.port("PUNCTUAL_STREAM_PORT"),
            agents=read.number("PUNCTUAL_AGENTS", 2, least=0),
            slots=read.number("PUNCTUAL_SLOTS", 4, least=1),
            emulate=emulate,
            links=None if link is None else emulated_link(link),
            warm_workers=read.number("PUNCTUAL_WARM_WORKERS", 2, least=0),
            inference_agents=read.number("PUNCTUAL_INFERENCE_AGENTS", 1, least=0),
            inference_emulate=inference_emulate,
            inference_usage=read.choice("PUNCTUAL_INFERENCE_USAGE", ""),
            inference_period_seconds=float(read.number("PUNCTUAL_INFERENCE_PERIOD_SECONDS", 10, least=1)),
            examples=read.text("PUNCTUAL_EXAMPLES", "true").lower() not in ("false", "0", "no", "off"),
            root_mode=cast(RootMode, root_mode),
            database_url=read.text("DATABASE_URL", "") or None,
            redis_url=read.text("REDIS_URL", "") or None,
        )

    @property
    def has_emulated_load(self) -> bool:
        """Whether an emulated scheduler serves the inference cluster's load."""
        return self.inference_agents > 0 and self.inference_usage not in (None, DEPLOYMENTS_USAGE)

    def to_json(self) -> str:
        """Return the settings as text for `from_json`, with which a test passes them to the supervisor's
        process."""
        return json.dumps(dataclasses.asdict(self) | {"data": str(self.data)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> PlatformSettings:
        """Return the settings that `to_json` wrote."""
        values = json.loads(text)
        return cls(**(values | {"data": Path(values["data"])}))


class _Reader:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def text(self, name: str, default: str) -> str:
        return self._environment.get(name, default).strip()

    def choice(self, name: str, default: str) -> str | None:
        """Return the text, or None for an empty value or one that switches the setting off."""
        text = self.text(name, default)
        return None if text.lower() in ("", "none", "off", "false") else text

    def number(self, name: str, default: int, *, least: int) -> int:
        text = self.text(name, "") or str(default)
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise LaunchError(f"{name} must be a whole number of at least {least}, not {text!r}")
        return int(text)

    def port(self, name: str) -> int | None:
        port = self.number(name, 0, least=0)
        if port > 65535:
            raise LaunchError(f"{name} must be a port number below 65536, not {port}")
        return port or None
