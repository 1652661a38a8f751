"""`inference`: inference clusters and their loans, for operators and, with its credential, for an inference
scheduler."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from punctual.cli import options, output, session
from punctual.client.durations import format_duration, parse_duration
from punctual.errors import InvalidInputError

inference_app = typer.Typer(help="List inference clusters; lend and reclaim their servers by hand.")
ClusterName = Annotated[str, typer.Argument(metavar="CLUSTER", help="The inference cluster's name.")]
OrderId = Annotated[
    str | None, typer.Option("--id", help="The order's UUID: the same one sent again changes nothing.")
]


@inference_app.callback(invoke_without_command=True)
def inference(context: typer.Context, as_json: options.Json = False) -> None:
    """List inference clusters."""
    if context.invoked_subcommand is not None:
        return
    with session.client() as client:
        found = [client.inference.cluster(str(row["name"])) for row in client.inference.clusters()]
    if as_json:
        output.print_json(found)
        return
    output.print_table(
        ("NAME", "SERVERS", "AT HOME", "ON LOAN", "BEING RETURNED", "USAGE", "FORECAST", "LENDING"),
        [_row(cluster) for cluster in found],
        right=("SERVERS", "AT HOME", "ON LOAN", "BEING RETURNED", "USAGE", "FORECAST"),
        empty="No inference cluster yet: punctual inference create NAME",
    )


def _row(cluster: dict[str, Any]) -> tuple[Any, ...]:
    standing = cluster["standing"]
    return (
        cluster["name"], standing["servers"], standing["at_home"], standing["on_loan"],
        standing["reclaiming"],
        _share(standing["usage"]), _share(standing["forecast"]), "on" if cluster["lending"] else "off",
    )  # fmt: skip


def _share(sample: dict[str, Any] | None) -> str:
    return "-" if sample is None else f"{100 * sample['usage']:.0f}%"


def _source(sample: dict[str, Any] | None) -> str:
    return "-" if sample is None else sample.get("source") or "of a source not stated"


@inference_app.command("show")
def show(name: ClusterName, as_json: options.Json = False) -> None:
    """Show an inference cluster: settings, servers, and what its lending rule would do now."""
    with session.client() as client:
        found, servers = client.inference.cluster(name), client.inference.servers(name)
    if as_json:
        output.print_json({**found, "servers": servers})
        return
    standing = found["standing"]
    decision = standing["decision"] or {}
    facts = [
        ("lending", "on" if found["lending"] else "off"),
        ("never lent", f"{standing['reserve']} servers ({100 * found['headroom_fraction']:g}%)"),
        ("forecaster", found["forecaster"]),
        ("usage, forecast", f"{_share(standing['usage'])}, {_share(standing['forecast'])}"),
        ("usage is", _source(standing["usage"])),
        ("needed, to be on loan", f"{decision.get('need', '-')}, {decision.get('target', '-')} servers"),
        ("missing", f"{decision.get('shortfall', '-')} servers"),
        ("held at least", format_duration(found["minimum_hold_seconds"])),
        ("scheduled by", _scheduler(found)),
    ]
    output.print_facts(facts)
    output.print_table(
        ("SERVER", "STATE", "WHITELIST", "", "GPUS"),
        [
            (
                row["name"],
                output.state_text(row["state"]),
                row["whitelist"],
                row["lending_state"],
                row["gpus"],
            )
            for row in servers
        ],
        right=("GPUS",),
        empty=f"No servers yet: punctual agents token --inference-cluster {name}",
    )


@inference_app.command("orders")
def orders(name: ClusterName, as_json: options.Json = False) -> None:
    """List loan and reclaim orders with what they cost."""
    with session.client() as client:
        loans, reclaims = client.inference.loan_orders(name), client.inference.reclaim_orders(name)
    if as_json:
        output.print_json({"loan_orders": loans, "reclaim_orders": reclaims})
        return
    rows = [(row["created_at"], _loan_row(row)) for row in loans]
    rows += [(row["created_at"], _reclaim_row(row)) for row in reclaims]
    output.print_table(
        ("AT", "ORDER", "BY", "STATE", "SERVERS", "PREEMPTED", "TOOK"),
        [row for _, row in sorted(rows, key=lambda pair: pair[0], reverse=True)],
        right=("PREEMPTED", "TOOK"),
        empty="No order yet.",
    )


def _loan_row(order: dict[str, Any]) -> tuple[Any, ...]:
    return (
        output.time_text(order["created_at"]), "loan", order["source"], output.state_text(order["state"]),
        ", ".join(order["servers"]), "-", "-",
    )  # fmt: skip


def _reclaim_row(order: dict[str, Any]) -> tuple[Any, ...]:
    seconds = order["seconds_to_return"]
    names = ", ".join(row["server"] for row in order["servers"])
    return (
        output.time_text(order["created_at"]), "reclaim", order["source"], output.state_text(order["state"]),
        names or f"{order['count']} wanted",
        "-" if order["preempted_jobs"] is None else order["preempted_jobs"],
        "-" if seconds is None else format_duration(seconds),
    )  # fmt: skip


@inference_app.command("events")
def events(
    name: ClusterName,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of rows, newest first.")] = 30,
    as_json: options.Json = False,
) -> None:
    """Show the history of its servers, newest first."""
    with session.client() as client:
        found = [row for row, _ in zip(client.inference.events(name), range(limit), strict=False)]
    if as_json:
        output.print_json(found)
        return
    output.print_table(
        ("AT", "WHAT", "AT HOME", "ON LOAN", "BEING RETURNED"),
        [
            (
                output.time_text(row["happened_at"]),
                row["message"],
                row["at_home"],
                row["on_loan"],
                row["reclaiming"],
            )
            for row in found
        ],
        right=("AT HOME", "ON LOAN", "BEING RETURNED"),
        empty="Nothing yet.",
    )


@inference_app.command("lend")
def lend(
    name: ClusterName,
    servers: Annotated[list[str], typer.Argument(metavar="SERVER...", help="Names of the servers to lend.")],
    order_id: OrderId = None,
    as_json: options.Json = False,
) -> None:
    """Lend servers to training: all of them or none."""
    with session.client() as client:
        order = client.inference.lend(name, order_id or str(uuid.uuid4()), servers)
    if as_json:
        output.print_json(order)
    else:
        output.say(f"Loan order {order['id']}: {order['state']}.")


@inference_app.command("reclaim")
def reclaim(
    name: ClusterName,
    count: Annotated[int, typer.Argument(min=1, help="Number of servers; the platform chooses which.")],
    within: Annotated[
        str | None,
        typer.Option(
            "--within", metavar="DURATION", help="When they are needed, such as 5m; by default now."
        ),
    ] = None,
    order_id: OrderId = None,
    as_json: options.Json = False,
) -> None:
    """Reclaim servers: idle ones first, then those that stop no job, then the cheapest."""
    wanted_by = None
    if within is not None:
        wanted_by = datetime.now(UTC) + parse_duration(within)
    with session.client() as client:
        order = client.inference.ask_back(name, order_id or str(uuid.uuid4()), count, wanted_by=wanted_by)
    if as_json:
        output.print_json(order)
    else:
        output.say(f"Reclaim order {order['id']}: {order['state']}. See: punctual inference orders {name}")


@inference_app.command("create")
def create(name: ClusterName, as_json: options.Json = False) -> None:
    """Make an inference cluster (operator)."""
    with session.client() as client:
        document = client.inference.create(name)
    if as_json:
        output.print_json(document)
    else:
        output.say(f"Made. Its agents: punctual agents token --inference-cluster {name}")


@inference_app.command("lending")
def lending(
    name: ClusterName,
    switch: Annotated[
        str, typer.Argument(metavar="on|off", help="on: servers are lent while their load is low.")
    ],
    as_json: options.Json = False,
) -> None:
    """Switch lending on or off (operator). Servers on loan stay until they are reclaimed."""
    if switch not in ("on", "off"):
        raise InvalidInputError(f"on or off, not {switch}")
    with session.client() as client:
        document = client.inference.change(name, lending=switch == "on")
    if as_json:
        output.print_json(document)
    else:
        output.say(f"Lending from {name} is {switch}.")


@inference_app.command("set")
def change(
    name: ClusterName,
    settings: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE...", help="Settings as `punctual inference show --json` names them."
        ),
    ],
    as_json: options.Json = False,
) -> None:
    """Change settings (operator), such as minimum_hold_seconds=600 or forecaster=ridge."""
    changes = {key: _value(text) for key, text in options.pairs(settings, "a setting").items()}
    with session.client() as client:
        document = client.inference.change(name, **changes)
    if as_json:
        output.print_json(document)
    else:
        output.say(f"{name}: " + ", ".join(f"{key} is {document[key]}" for key in changes))


def _scheduler(found: dict[str, Any]) -> str:
    if found["scheduled_by"] == "deployments":
        return "its deployments"
    return "its scheduler, asked back by forecast" if found["asks_back_by_forecast"] else "its scheduler"


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@inference_app.command("credential")
def credential(name: ClusterName, as_json: options.Json = False) -> None:
    """Print a new credential for its scheduler (operator); the previous one stops working."""
    with session.client() as client:
        issued = client.inference.credential(name)
    if as_json:
        output.print_json({"credential": issued})
    else:
        output.say(issued)
        output.note("Keep it now: it is not shown again.")


@inference_app.command("train")
def train(
    name: ClusterName,
    forecaster: Annotated[str, typer.Option("--forecaster", help="By default the one of the cluster.")] = "",
    as_json: options.Json = False,
) -> None:
    """Train a forecaster now (operator); each is trained every day anyway."""
    with session.client() as client:
        training = client.inference.train(name, forecaster)
    if as_json:
        output.print_json(training)
    else:
        output.say(f"Training {training['id']} of {training['forecaster']} is {training['state']}.")
