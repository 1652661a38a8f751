"""`deployments load`: requests to a deployment at a rate, for demos and trials."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer

from punctual.cli import options, output, session
from punctual.cli.inputs import read_inputs
from punctual.client.load import AddressBook, OpenLoop, Outcomes, Rate
from punctual.errors import InvalidInputError

TOKEN_NAME = "load"


def load(
    deployment_id: Annotated[str, typer.Argument(metavar="DEPLOYMENT", help="Its id or name.")],
    values: Annotated[
        list[str] | None, typer.Argument(metavar="INPUT...", help="Inputs, each as JSON.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="A JSON list of inputs; - for standard input.")
    ] = None,
    rate: Annotated[float, typer.Option("--rate", help="Requests per second; with --day the peak.")] = 10.0,
    minutes: Annotated[float, typer.Option("--minutes", min=0.01, help="How long to send requests.")] = 2.0,
    day_minutes: Annotated[
        float | None,
        typer.Option("--day", min=0.01, help="Follow a daily curve; length of its day in minutes."),
    ] = None,
    at_once: Annotated[int, typer.Option("--at-once", min=1, max=1000, help="Concurrent requests.")] = 64,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the arrival times.")] = 0,
    as_json: options.Json = False,
) -> None:
    """Send requests to its servers at a rate, each with one of the inputs, and count the outcomes."""
    inputs = read_inputs(values or [], file)
    try:
        curve = Rate(rate, None if day_minutes is None else 60.0 * day_minutes)
    except ValueError as error:
        raise InvalidInputError(str(error)) from error
    with session.client() as client:
        deployments = client.deployments
        deployment_id = deployments.find(deployment_id)
        token = deployments.issue_token(deployment_id, TOKEN_NAME)
        loop = OpenLoop(
            AddressBook(deployments, deployment_id), str(token["token"]), inputs, curve, at_once, seed
        )
        try:
            with contextlib.suppress(KeyboardInterrupt):
                loop.run(60.0 * minutes, None if as_json else _say)
        finally:
            deployments.revoke_token(deployment_id, int(token["id"]))
    total = loop.total()
    if as_json:
        output.print_json(summary(total))
    else:
        _say(total)


def summary(outcomes: Outcomes) -> dict[str, Any]:
    """Return the outcomes as a JSON document."""
    return {
        "sent": outcomes.sent,
        "skipped": outcomes.skipped,
        "late": outcomes.late,
        "answered": outcomes.answered,
        "retried": outcomes.retried,
        "failed": outcomes.failed,
        "latency_seconds": {
            name: outcomes.percentile(share) for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
        },
    }


def _say(outcomes: Outcomes) -> None:
    failed = ", ".join(f"{count} {why}" for why, count in sorted(outcomes.failed.items())) or "none"
    p50, p95 = (outcomes.percentile(share) for share in (0.5, 0.95))
    latency = "-" if p50 is None or p95 is None else f"median {1000 * p50:.0f} ms, p95 {1000 * p95:.0f} ms"
    output.say(
        f"{outcomes.sent} sent, {outcomes.answered} answered ({latency}), {outcomes.retried} retried, "
        f"failed: {failed}, skipped: {outcomes.skipped}, sent late: {outcomes.late}"
    )
