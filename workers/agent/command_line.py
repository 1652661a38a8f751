"""`python -m workers.agent`: enrol a server, run its agent, show its status."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from workers.agent.machine.configuration import Configuration, ConfigurationError, load_configuration
from workers.agent.machine.durable_files import read_json, wait_for_room
from workers.agent.node_agent import NodeAgent
from workers.agent.orders.agent_state import AgentState, AgentStateError, Credential
from workers.agent.processes.inventory import describe
from workers.agent.talking.control_plane import (
    ControlPlane,
    CredentialRevoked,
    Fenced,
    RequestRefused,
    Unreachable,
)
from workers.agent.this_server import ThisServer, probe_server

logger = logging.getLogger(__name__)

AGENT_VERSION = "1"
REVOKED_EXIT_CODE = 77
LONGEST_ENROL_WAIT_SECONDS = 10.0

app = typer.Typer(help="The node agent of Punctual.", no_args_is_help=True, add_completion=False)

ConfigOption = Annotated[Path | None, typer.Option("--config", help="TOML file; see docs/agents.md.")]
ServerOption = Annotated[str | None, typer.Option(help="URL of the control plane's agent API.")]
StreamOption = Annotated[str | None, typer.Option(help="URL of the stream server.")]
StoreOption = Annotated[str | None, typer.Option(help="Durable store, any fsspec URL.")]
NameOption = Annotated[str | None, typer.Option(help="Name of this server.")]
DataOption = Annotated[Path | None, typer.Option(help="The agent's data folder.")]
AddressOption = Annotated[str | None, typer.Option(help="Where peers reach this server's workers.")]
SlotsOption = Annotated[int | None, typer.Option(min=0, help="CPU slots to declare.")]
TokenOption = Annotated[str | None, typer.Option("--token", help="One-time token for enrolment.")]


@app.command()
def run(
    config: ConfigOption = None,
    server_url: ServerOption = None,
    stream_url: StreamOption = None,
    checkpoint_url: StoreOption = None,
    name: NameOption = None,
    data: DataOption = None,
    address: AddressOption = None,
    slots: SlotsOption = None,
    warm_workers: Annotated[int | None, typer.Option(min=0, help="Workers kept ready.")] = None,
    report_seconds: Annotated[float | None, typer.Option(min=0.01, help="Time between reports.")] = None,
    token: TokenOption = None,
    allow_unsandboxed: Annotated[
        bool, typer.Option(help="Start although workers cannot be confined.")
    ] = False,
    stop_workers_on_exit: Annotated[
        bool, typer.Option(help="SIGTERM suspends and stops the workers too.")
    ] = False,
    verbose: Annotated[bool, typer.Option(help="Log more.")] = False,
) -> None:
    """Run the agent; enrol the server first if it is not enrolled and a token is given.

    SIGTERM ends the agent and leaves its workers running, for a restart. SIGINT (or SIGTERM with
    --stop-workers-on-exit) lets them store their state durably, and ends them too.
    """
    _configure_log(verbose)
    overrides = {
        "server_url": server_url,
        "stream_url": stream_url,
        "checkpoint_url": checkpoint_url,
        "name": name,
        "data": data,
        "address": address,
        "slots": slots,
        "warm_workers": warm_workers,
        "report_seconds": report_seconds,
        "enrol_token": token,
        "allow_unsandboxed": allow_unsandboxed or None,
        "stop_workers_on_exit": stop_workers_on_exit or None,
    }
    try:
        configuration = load_configuration(config, overrides)
        os.umask(0o022)
        wait_for_room(configuration.data)
        state = AgentState(configuration.data)
        server = probe_server(configuration)
        credential = state.credential or _enrol_when_reachable(configuration, state, server)
        agent = NodeAgent(configuration, state, credential, server)
    except (ConfigurationError, AgentStateError, OSError) as error:
        _fail(str(error))
    _stop_on_signals(agent, configuration)
    in_order = agent.run()
    state.close()
    logging.shutdown()
    # Skip the orderly interpreter exit, which would wait for transfers that the next start resumes.
    os._exit(0 if in_order else REVOKED_EXIT_CODE)


@app.command()
def enrol(
    token: Annotated[str, typer.Option("--token", help="One-time token for enrolment.")],
    config: ConfigOption = None,
    server_url: ServerOption = None,
    stream_url: StreamOption = None,
    checkpoint_url: StoreOption = None,
    name: NameOption = None,
    data: DataOption = None,
    address: AddressOption = None,
    slots: SlotsOption = None,
) -> None:
    """Enrol this server with a one-time token, and store its credential."""
    _configure_log(False)
    overrides = {
        "server_url": server_url,
        "stream_url": stream_url,
        "checkpoint_url": checkpoint_url,
        "name": name,
        "data": data,
        "address": address,
        "slots": slots,
    }
    try:
        configuration = load_configuration(config, overrides)
        state = AgentState(configuration.data)
        if state.credential is not None:
            _fail(
                f"already enrolled as server {state.credential.server_id}; to enrol anew, use another data "
                f"folder"
            )
        credential = _enrol(configuration, state, probe_server(configuration), token)
    except (ConfigurationError, AgentStateError, OSError, Unreachable) as error:
        _fail(str(error))
    typer.echo(f"enrolled as server {credential.server_id}")


@app.command()
def status(
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Say whether this server is enrolled, whether its agent runs, and which workers it has."""
    folder = data
    if folder is None:
        try:
            folder = load_configuration(config, {}).data
        except ConfigurationError as error:
            _fail(str(error))
    value = _status(folder)
    if as_json:
        typer.echo(json.dumps(value))
        return
    enrolled = f"enrolled as server {value['server_id']}" if value["server_id"] else "not enrolled"
    typer.echo(f"{folder}: {enrolled}; the agent {'runs' if value['running'] else 'does not run'}")
    for worker in value["workers"]:
        work = (
            f"job {worker['job']} generation {worker['generation']} rank {worker['rank']}"
            if worker["job"]
            else "warm"
        )
        typer.echo(f"  {worker['key'][:12]}  {worker['phase']:<12} {work}")


def _status(folder: Path) -> dict[str, Any]:
    credential = read_json(folder / "credential.json")
    workers = []
    for path in sorted((folder / "workers").glob("*/launch.json")):
        assignment = read_json(path.parent / "assignment.json") or {}
        progress = read_json(path.parent / "progress.json") or {}
        ended = (path.parent / "exit.json").exists()
        workers.append(
            {
                "key": path.parent.name,
                "job": assignment.get("job"),
                "generation": assignment.get("generation"),
                "rank": assignment.get("rank"),
                "phase": "exited" if ended else progress.get("phase", "starting"),
            }
        )
    return {
        "server_id": credential and credential["server_id"],
        "running": _is_locked(folder / "lock"),
        "workers": workers,
    }


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _enrol_when_reachable(configuration: Configuration, state: AgentState, server: ThisServer) -> Credential:
    """Enrol, waiting for a control plane that is not up yet. Raises ConfigurationError."""
    token = configuration.enrol_token
    if token is None and configuration.enrol_token_file is not None:
        token = configuration.enrol_token_file.read_text().strip()
    if not token:
        raise ConfigurationError(
            f"this server is not enrolled ({configuration.data} holds no credential): give a one-time token "
            "in PUNCTUAL_ENROL_TOKEN, enrol_token_file or --token"
        )
    wait_seconds = 0.2
    while True:
        try:
            return _enrol(configuration, state, server, token)
        except Unreachable as error:
            logger.warning("cannot enrol yet: %s", error)
            time.sleep(wait_seconds)
            wait_seconds = min(LONGEST_ENROL_WAIT_SECONDS, 2 * wait_seconds)


def _enrol(configuration: Configuration, state: AgentState, server: ThisServer, token: str) -> Credential:
    sandboxing = server.sandboxing
    control_plane = ControlPlane(configuration.server_url)
    try:
        answer = control_plane.enrol(
            {
                "token": token,
                "name": configuration.name,
                "address": configuration.address,
                "port_range": list(configuration.port_range),
                "inventory": describe(
                    server.accelerators, sandboxing.mode, configuration, sandboxing.limits.memory_bytes
                ),
                "agent_version": AGENT_VERSION,
                "rack": configuration.rack,
                "power_domain": configuration.power_domain,
                "available_seconds": _available_seconds(configuration),
            }
        )
    except (CredentialRevoked, Fenced, RequestRefused) as error:
        raise ConfigurationError(f"the control plane does not enrol this server: {error}") from error
    finally:
        control_plane.close()
    credential = Credential(
        server_id=str(answer["server_id"]),
        credential=str(answer["credential"]),
        server_url=configuration.server_url,
        lease_seconds=float(answer["lease_seconds"]),
        report_seconds=float(answer["report_seconds"]),
    )
    state.store_credential(credential)
    logger.info("enrolled as server %s", credential.server_id)
    return credential


def _available_seconds(configuration: Configuration) -> float | None:
    """Return how long the server stays available; None if it stays. Raises ConfigurationError."""
    if configuration.available_until is None:
        return None
    seconds = (configuration.available_until - datetime.now(UTC)).total_seconds()
    if seconds <= 0:
        raise ConfigurationError(
            f"available_until is over: {configuration.available_until.isoformat()}; a server that enrols "
            "must still be there"
        )
    return seconds


def _stop_on_signals(agent: NodeAgent, configuration: Configuration) -> None:
    """Stop in order on the first signal, at once on the second."""
    asked = threading.Event()

    def take(number: int, frame: object) -> None:
        if asked.is_set():
            os._exit(128 + number)
        asked.set()
        agent.stop(stop_workers=number == signal.SIGINT or configuration.stop_workers_on_exit)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, take)


def _configure_log(verbose: bool) -> None:
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    for name in ("httpx", "httpcore", "fsspec"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _fail(message: str) -> NoReturn:
    typer.echo(f"agent: {message}", err=True)
    raise typer.Exit(2)
