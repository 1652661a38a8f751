"""The agent's configuration: a TOML file, overridden by environment variables, overridden by command-line
options."""

from __future__ import annotations

import os
import socket
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from emulated_links.rates import DEFAULT_LINKS, ServerLinks
from punctual.protocol.storage import missing_library
from workers.agent.machine.storage_libraries import usual_schemes

EMULATED_PREFIX = "emulated-"
DEVICE_MODEL_FIELDS = ("fixed_seconds", "seconds_per_sample")
#: Settings of the former device model with a formula for the all-reduce.
LINKS_INSTEAD = (
    "latency_seconds",
    "intra_server_bytes_per_second",
    "inter_server_bytes_per_second",
    "parameter_bytes",
)
GIBIBYTE = 1024**3

# Environment variables with special names; every other setting is PUNCTUAL_AGENT_<NAME>.
VARIABLES = {
    "AGENT_URL": "server_url",
    "STREAM_URL": "stream_url",
    "CHECKPOINT_URL": "checkpoint_url",
    "PUNCTUAL_ENROL_TOKEN": "enrol_token",
    "PUNCTUAL_ENROL_TOKEN_FILE": "enrol_token_file",
}


class ConfigurationError(ValueError):
    """A setting is missing or invalid; the message names it and what is expected."""


@dataclass(frozen=True)
class Emulation:
    """A declared accelerator that CPU slots emulate, and its server's links. `model` has the fields of
    protocol 3.1."""

    kind: str
    model: Mapping[str, float]
    links: ServerLinks
    memory_bytes: int | None


@dataclass(frozen=True)
class Configuration:
    """The settings of one server; docs/agents.md explains each."""

    server_url: str
    stream_url: str
    checkpoint_url: str
    data: Path
    name: str
    address: str
    port_range: tuple[int, int] = (21000, 21999)
    rack: str = ""
    power_domain: str = ""
    interface: str | None = None
    slots: int = 0
    gpus: bool = True
    emulate: Emulation | None = None
    warm_workers: int = 1
    nursery: bool = True
    report_seconds: float | None = None
    allow_unsandboxed: bool = False
    hide: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    data_roots: tuple[Path, ...] = ()
    data_schemes: tuple[str, ...] = field(default_factory=usual_schemes)
    data_options: Mapping[str, Mapping[str, Any]] = field(
        default_factory=lambda: {"s3": {"anon": True}, "gs": {"token": "anon"}, "abfs": {"anon": True}}
    )
    allow_private_addresses: bool = False
    data_limit_bytes: int = 100 * GIBIBYTE
    cache_limit_bytes: int = 200 * GIBIBYTE
    log_limit_bytes: int = 64 * 1024**2
    worker_memory_bytes: int | None = None
    worker_disk_bytes: int | None = None
    worker_disk_writes_bytes: int | None = None
    worker_disk_bytes_per_second: int | None = None
    worker_processes: int = 1024
    memory_store_bytes: int | None = None
    memory_point_share: float = 0.02
    worker_users: tuple[int, int] | None = None
    runtime_source: Path | None = None
    stop_workers_on_exit: bool = False
    stop_seconds: float = 10.0
    available_until: datetime | None = None
    enrol_token: str | None = field(default=None, repr=False)
    enrol_token_file: Path | None = None


_WHOLE_NUMBERS = (
    "slots",
    "warm_workers",
    "data_limit_bytes",
    "cache_limit_bytes",
    "log_limit_bytes",
    "worker_memory_bytes",
    "worker_disk_bytes",
    "worker_disk_writes_bytes",
    "worker_disk_bytes_per_second",
    "worker_processes",
    "memory_store_bytes",
)
#: With less, no worker could import PyTorch or start the threads of training.
_LEAST = {"worker_memory_bytes": 256 * 1024**2, "worker_processes": 64}
_SHARES = ("memory_point_share",)
_SECONDS = ("report_seconds", "stop_seconds")
_SWITCHES = ("gpus", "nursery", "allow_unsandboxed", "allow_private_addresses", "stop_workers_on_exit")
_FOLDER_LISTS = ("hide", "readable", "data_roots")
_PAIRS = ("port_range", "worker_users")
_TEXTS = (
    "server_url", "stream_url", "checkpoint_url", "name", "address", "rack", "power_domain", "interface",
    "enrol_token",
)  # fmt: skip


def load_configuration(
    file: Path | None, overrides: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> Configuration:
    """Read the settings. Paths in the file are relative to its folder. Raises ConfigurationError."""
    values = _read_file(file) if file is not None else {}
    base = file.parent.absolute() if file is not None else Path.cwd()
    known = {item.name for item in fields(Configuration)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise ConfigurationError(
            f"{file}: unknown setting {unknown[0]!r}; known are {', '.join(sorted(known))}"
        )
    values |= _from_environment(environment, known)
    values |= {name: value for name, value in overrides.items() if value is not None}
    return _check(values, base)


def _read_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} is not TOML: {error}") from error


def _from_environment(environment: Mapping[str, str], known: set[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for variable, text in environment.items():
        name = VARIABLES.get(variable) or variable.removeprefix("PUNCTUAL_AGENT_").lower()
        if text == "" or (variable not in VARIABLES and not variable.startswith("PUNCTUAL_AGENT_")):
            continue
        if name not in known:
            raise ConfigurationError(f"{variable}: there is no setting {name!r}")
        found[name] = _from_text(variable, name, text)
    return found


def _from_text(variable: str, name: str, text: str) -> Any:
    """Return an environment variable's text as the value that a TOML file would give."""
    if name in _TEXTS or name in ("data", "enrol_token_file", "runtime_source"):
        return text
    if name in _FOLDER_LISTS:
        return text.split(":")
    if name in _SWITCHES:
        text = text.lower()
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{variable}: cannot read {text!r}") from error


def _check(values: dict[str, Any], base: Path) -> Configuration:
    checked: dict[str, Any] = {}
    for name, value in values.items():
        checked[name] = _check_one(name, value, base)
    for name in ("server_url", "stream_url", "checkpoint_url"):
        if name not in checked:
            raise ConfigurationError(
                f"{name} is not set (in the file, or by an environment variable or option)"
            )
    for name in ("server_url", "stream_url"):
        if not checked[name].startswith(("http://", "https://")):
            raise ConfigurationError(f"{name} must start with http:// or https://, not {checked[name]!r}")
        checked[name] = checked[name].rstrip("/")
    if "://" not in checked["checkpoint_url"]:
        checked["checkpoint_url"] = (base / checked["checkpoint_url"]).absolute().as_uri()
    checked["checkpoint_url"] = checked["checkpoint_url"].rstrip("/")
    for scheme in (checked["checkpoint_url"].partition("://")[0], *checked.get("data_schemes", ())):
        if missing := missing_library(scheme):
            raise ConfigurationError(f"{scheme}:// cannot be used on this server: {missing}")
    checked.setdefault("data", base / "agent-data")
    checked.setdefault("name", socket.gethostname())
    checked.setdefault("address", socket.gethostname())
    if checked.get("emulate") is not None and not checked.get("slots"):
        raise ConfigurationError("emulate needs slots: how many accelerators to emulate")
    first, last = checked.get("port_range", (21000, 21999))
    if not 1024 <= first <= last <= 65535:
        raise ConfigurationError(f"port_range must lie within 1024 and 65535, not {first} to {last}")
    return Configuration(**checked)


def _check_one(name: str, value: Any, base: Path) -> Any:
    if name in _TEXTS:
        return _typed(name, value, str, "a text")
    if name in ("data", "enrol_token_file", "runtime_source"):
        return base / Path(_typed(name, value, (str, Path), "a path")).expanduser()
    if name in _SWITCHES:
        return _typed(name, value, bool, "true or false")
    if name in _FOLDER_LISTS:
        return tuple(
            base / Path(_typed(name, item, (str, Path), "paths")).expanduser() for item in _list(name, value)
        )
    if name in _PAIRS:
        pair: list[int] = [_number(name, item, int) for item in _list(name, value)]
        if len(pair) != 2 or pair[0] > pair[1]:
            raise ConfigurationError(f"{name} must be two numbers, first and last")
        return tuple(pair)
    if name in _WHOLE_NUMBERS:
        number = _number(name, value, int)
        if number < _LEAST.get(name, 0):
            raise ConfigurationError(f"{name} must be at least {_LEAST[name]}, not {number}")
        return number
    if name == "available_until":
        moment: datetime = _typed(name, value, datetime, "a time such as 2030-01-31T14:00:00Z")
        if moment.tzinfo is None:
            raise ConfigurationError(f"{name} needs an offset, such as Z for UTC")
        return moment
    if name in _SECONDS or name in _SHARES:
        return _real(name, value)
    if name == "data_schemes":
        return tuple(_typed(name, item, str, "names of schemes") for item in _list(name, value))
    return _emulation(value) if name == "emulate" else _typed(name, value, dict, "a table")


def _typed(name: str, value: Any, kinds: type | tuple[type, ...], expected: str) -> Any:
    if not isinstance(value, kinds):
        raise ConfigurationError(f"{name} must be {expected}, not {value!r}")
    return value


def _list(name: str, value: Any) -> list[Any]:
    return list(_typed(name, value, (list, tuple), "a list"))


def _number(name: str, value: Any, kinds: type | tuple[type, ...]) -> Any:
    number: Any = value
    if isinstance(value, bool) or not isinstance(value, kinds) or number < 0:
        raise ConfigurationError(f"{name} must be a number of at least 0, not {value!r}")
    return number


def _real(name: str, value: Any) -> float:
    number = float(_number(name, value, (int, float)))
    if name in _SHARES and not 0 < number <= 1:
        raise ConfigurationError(f"{name} must be above 0 and at most 1, not {value!r}")
    return number


def _links(value: Any) -> ServerLinks:
    try:
        return ServerLinks.from_message({**DEFAULT_LINKS, **_typed("emulate.links", value, dict, "a table")})
    except ValueError as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"emulate.links: {error}") from error


def _emulation(value: Any) -> Emulation:
    table = dict(_typed("emulate", value, dict, "a table"))
    name = _typed("emulate.name", table.pop("name", None), str, "a text")
    memory_bytes = table.pop("memory_bytes", None)
    links = _links(table.pop("links", DEFAULT_LINKS))
    missing = [field_name for field_name in DEVICE_MODEL_FIELDS if field_name not in table]
    if missing:
        raise ConfigurationError(f"emulate.{missing[0]} is not set")
    unknown = sorted(set(table) - {*DEVICE_MODEL_FIELDS, "forward_share"})
    if unknown and unknown[0] in LINKS_INSTEAD:
        raise ConfigurationError(
            f"emulate.{unknown[0]} is no part of a device model: what is sent takes its time on the links "
            "that emulate.links declares"
        )
    if unknown:
        raise ConfigurationError(f"emulate.{unknown[0]} is no part of a device model")
    model = {key: float(_number(f"emulate.{key}", item, (int, float))) for key, item in table.items()}
    if model.get("forward_share", 0.0) > 1:
        raise ConfigurationError(f"emulate.forward_share must be at most 1, not {model['forward_share']:g}")
    return Emulation(
        # The prefix is mandatory, so that the kind shows everywhere that it is emulated.
        kind=EMULATED_PREFIX + name.removeprefix(EMULATED_PREFIX),
        model=model,
        links=links,
        memory_bytes=None if memory_bytes is None else _number("emulate.memory_bytes", memory_bytes, int),
    )
