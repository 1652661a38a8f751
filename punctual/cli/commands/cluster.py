"""`cluster`, `servers`, `agents`: the cluster's resources, and their operation."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from punctual.cli import options, output, session
from punctual.client import Client, Gpu, Server
from punctual.client.durations import format_duration, parse_deadline
from punctual.errors import ConflictError

_SECONDS_BETWEEN_TABLES = 2.0
_NO_SERVERS = "No servers yet: an operator enrols agents (punctual agents token)."

servers_app = typer.Typer(help="List servers; drain them, and say until when they stay, as the operator.")
agents_app = typer.Typer(help="List node agents; enrol and revoke them as the operator.")
ServerName = Annotated[str, typer.Argument(metavar="SERVER", help="The server's name or id.")]


def cluster(watching: options.Watch = False, as_json: options.Json = False) -> None:
    """Show servers and GPUs, and which job uses each."""
    with session.client() as client:
        if not watching:
            _show_once(client, as_json)
            return
        live = (
            Live(console=output.console(), auto_refresh=False)
            if output.is_terminal() and not as_json
            else None
        )
        try:
            with live if live is not None else nullcontext():
                while True:
                    if live is not None:
                        live.update(
                            _picture(client.cluster.summary(), client.cluster.servers()), refresh=True
                        )
                    else:
                        _show_once(client, as_json, one_line=True)
                    time.sleep(_SECONDS_BETWEEN_TABLES)
        except KeyboardInterrupt:
            raise typer.Exit(0) from None


def _show_once(client: Client, as_json: bool, *, one_line: bool = False) -> None:
    summary, servers = client.cluster.summary(), client.cluster.servers()
    document = {"summary": summary, "servers": [server.raw for server in servers]}
    if as_json and one_line:
        output.print_json_line(document)
    elif as_json:
        output.print_json(document)
    else:
        output.console().print(_picture(summary, servers))


def _picture(summary: dict[str, Any], servers: Sequence[Server]) -> Group:
    rows = [
        (
            server.name,
            output.state_text(server.state, *_drain_mark(server)),
            _heard(server),
            _kinds(server),
            _gpu_cells(server),
        )
        for server in servers
    ]
    grid = output.table(("SERVER", "STATE", "HEARD", "GPU", "JOBS"), rows)
    lines = [Text(output.safe(line)) for line in summary_lines(summary)]
    return Group(*lines, *warnings(servers), grid if rows else Text(_NO_SERVERS))


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """Return the cluster's numbers, one line each for GPUs, jobs and promises."""
    gpus, planner = summary.get("gpus") or {}, summary.get("planner") or {}
    lines = [
        f"GPUs: {gpus.get('total', 0)} ({_counts(gpus.get('by_use'))})",
        f"Jobs: {_counts(summary.get('jobs'))}",
        f"Promises: {_counts(summary.get('promises'))}",
    ]
    lines += _standby_lines(summary.get("standby") or {})
    if planner and not planner.get("lease_held"):
        lines.append("The planner is not running: nothing is decided until it is.")
    return lines


def _standby_lines(standby: dict[str, Any]) -> list[str]:
    """Return a line on the standby servers of each GPU kind that should have some."""
    return [
        f"Standby servers of {pool.get('gpu_kind')}: {len(pool.get('ready') or ())} of {pool.get('wanted')} "
        f"ready; the rule asks for {pool.get('advised')} ({pool.get('servers')} servers)"
        + (f". {pool['note']}" if pool.get("note") else "")
        for pool in standby.get("pools") or ()
        if standby.get("standby_servers")
    ]


def warnings(servers: Sequence[Server]) -> list[Text]:
    """Return warnings about the cluster for all users."""
    bare = [server.name for server in servers if server.sandbox == "none"]
    text = f"Training functions run unprotected, without a sandbox, on: {', '.join(bare)}"
    return [Text(output.safe(text), style="bold red")] if bare else []


def _counts(numbers: Any) -> str:
    given = numbers.items() if isinstance(numbers, dict) else ()
    return ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in given if number) or "none"


def _drain_mark(server: Server) -> list[str]:
    marks = [server.drain] if server.drain not in ("none", "") else []
    return [*marks, "standby"] if server.standby else marks


def _heard(server: Server) -> str:
    return "never" if server.silent_seconds is None else f"{format_duration(server.silent_seconds)} ago"


def _kinds(server: Server) -> str:
    counted = Counter(f"{gpu.kind} (emulated)" if gpu.emulated else gpu.kind for gpu in server.gpus)
    return ", ".join(f"{number} x {kind}" for kind, number in sorted(counted.items())) or "-"


def _gpu_cells(server: Server) -> str:
    counted = Counter(_gpu_cell(gpu) for gpu in server.gpus)
    return ", ".join(f"{number} x {what}" for what, number in counted.items()) or "-"


def _gpu_cell(gpu: Gpu) -> str:
    if not gpu.healthy:
        return "unhealthy"
    if gpu.job is None:
        return "idle"
    return str(gpu.job.get("id") or gpu.job.get("name") or "busy")


@servers_app.callback(invoke_without_command=True)
def servers(context: typer.Context, as_json: options.Json = False) -> None:
    """List servers."""
    if context.invoked_subcommand is not None:
        return
    with session.client() as client:
        found = client.cluster.servers()
    if as_json:
        output.print_json([server.raw for server in found])
        return
    output.print_table(
        ("ID", "NAME", "STATE", "GPUS", "MEMORY", "UNTIL", "DRAIN", "REASON"),
        [
            (
                s.id, s.name, output.state_text(s.state, *(["standby"] if s.standby else [])), len(s.gpus),
                output.size_text(s.memory_bytes) if s.memory_bytes else "-",
                output.time_text(s.available_until) if s.available_until else "-",
                s.drain, s.drain_reason,
            )
            for s in found
        ],
        right=("GPUS", "MEMORY"),
        empty=_NO_SERVERS,
    )  # fmt: skip


@servers_app.command()
def drain(
    server: ServerName,
    force: Annotated[bool, typer.Option("--force", help="Drain even if promises break.")] = False,
    reason: Annotated[str, typer.Option("--reason", help="The reason, for the history.")] = "",
    as_json: options.Json = False,
) -> None:
    """Drain a server. Refused with a list of the promises that this breaks, unless forced."""
    with session.client() as client:
        found = client.cluster.server(server)
        with _listing_broken("--force drains and breaks these promises", as_json):
            document = client.cluster.drain(found, force=force, reason=reason)
    if as_json:
        output.print_json(document)
    else:
        output.say(f"Server {found.name} is being drained.")


@servers_app.command()
def until(
    server: ServerName,
    end: Annotated[
        str, typer.Argument(metavar="TIME", help="2030-01-31T14:00Z, a duration such as 8h, or `for-good`.")
    ],
    force: Annotated[bool, typer.Option("--force", help="Even if promises break.")] = False,
    as_json: options.Json = False,
) -> None:
    """Set when a server leaves: its workers move away in time, and no promise relies on it afterwards."""
    moment = None if end == "for-good" else _moment(end)
    with session.client() as client:
        found = client.cluster.server(server)
        with _listing_broken("--force lets it leave and breaks these promises", as_json):
            document = client.cluster.set_end(found, moment, force=force)
    if as_json:
        output.print_json(document)
    elif moment is None:
        output.say(f"Server {found.name} stays for good.")
    else:
        output.say(f"Server {found.name} is there until {output.time_text(moment)}.")


def _moment(text: str) -> datetime:
    end = parse_deadline(text, named="end of the server")
    return datetime.now(UTC) + end if isinstance(end, timedelta) else end


@contextmanager
def _listing_broken(hint: str, as_json: bool) -> Iterator[None]:
    """Print the promises that a refusal lists."""
    try:
        yield
    except ConflictError as error:
        broken = error.extra.get("broken_promises")
        if isinstance(broken, list) and broken and not as_json:
            _print_broken(broken)
        elif as_json:
            output.print_json({"broken_promises": broken or [], "detail": error.message})
        if broken:
            error.hint = hint
        raise


def _print_broken(promises: list[Any]) -> None:
    known = [promise for promise in promises if isinstance(promise, dict)]
    output.print_table(
        ("JOB", "NAME", "PROJECT", "DEADLINE"),
        [(p.get("job"), p.get("name"), p.get("project"), p.get("deadline_at")) for p in known],
    )


@servers_app.command()
def undrain(server: ServerName, as_json: options.Json = False) -> None:
    """Use a server again."""
    with session.client() as client:
        found = client.cluster.server(server)
        document = client.cluster.undrain(found)
    if as_json:
        output.print_json(document)
    else:
        output.say(f"Server {found.name} is used again.")


@servers_app.command()
def standby(
    count: Annotated[
        int | None,
        typer.Argument(
            metavar="COUNT", min=0, help="Standby servers for each kind of GPU; omit it to show them."
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Show or set the number of standby servers, which stay free until another server is lost."""
    with session.client() as client:
        summary = client.cluster.summary() if count is None else client.cluster.set_standby(count)
    pools = summary.get("standby") or {}
    if as_json:
        output.print_json(pools)
        return
    output.print_table(
        ("GPU", "SERVERS", "WANTED", "READY", "AWAY", "ADVISED", "NOTE"),
        [
            (
                pool.get("gpu_kind"), pool.get("servers"), pool.get("wanted"),
                ", ".join(pool.get("ready") or ()) or "-", ", ".join(pool.get("away") or ()) or "-",
                pool.get("advised"), pool.get("note"),
            )
            for pool in pools.get("pools") or ()
        ],
        right=("SERVERS", "WANTED", "ADVISED"),
        empty=_NO_SERVERS,
    )  # fmt: skip


@agents_app.callback(invoke_without_command=True)
def agents(context: typer.Context, as_json: options.Json = False) -> None:
    """List node agents with the time of their last reports."""
    if context.invoked_subcommand is not None:
        return
    with session.client() as client:
        found = client.cluster.agents()
    if as_json:
        output.print_json(found)
        return
    output.print_table(
        ("ID", "SERVER", "VERSION", "HEARD", ""),
        [
            (
                agent.get("id"),
                agent.get("server_name"),
                agent.get("version"),
                f"{format_duration(agent.get('silent_seconds') or 0.0)} ago",
                "revoked" if agent.get("revoked_at") else "fenced" if agent.get("fenced") else " ",
            )
            for agent in found
        ],
        empty="No agents yet: enrol one (punctual agents token).",
    )


@agents_app.command("token")
def enrolment_token(
    server: Annotated[str, typer.Option("--server", help="Only for a server of this name.")] = "",
    inference_cluster: Annotated[
        str, typer.Option("--inference-cluster", help="Enrol the server in this inference cluster.")
    ] = "",
    as_json: options.Json = False,
) -> None:
    """Make a token with which one agent enrols once."""
    with session.client() as client:
        document = client.cluster.create_enrolment_token(
            server_name=server, inference_cluster=inference_cluster
        )
    if as_json:
        output.print_json(document)
    else:
        output.say(str(document.get("token", "")))
        valid = format_duration(float(document.get("valid_seconds") or 0))
        output.note(f"Give it to one agent within {valid}; it is shown this once.")


@agents_app.command("revoke")
def revoke_agent(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's id.")],
    as_json: options.Json = False,
) -> None:
    """Revoke an agent's credential; its workers stop when their lease ends."""
    with session.client() as client:
        document = client.cluster.revoke_agent(agent)
    if as_json:
        output.print_json(document)
    else:
        output.say(f"Agent {agent} is revoked.")
