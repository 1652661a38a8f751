"""`python -m workers.inference_emulator`: be the inference scheduler of an invented inference cluster."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import structlog
import typer

from punctual.client import Client
from punctual.errors import ApiError, PunctualError
from simulation.inference.catalogue import read_usage
from simulation.inference.usage import PERIOD_SECONDS
from simulation.workloads.errors import TraceError
from workers.inference_emulator.emulator import Emulator
from workers.inference_emulator.load import RequestLoad
from workers.inference_emulator.order_book import OrderBook

_STEPS_PER_PERIOD = 10.0
_LONGEST_STEP_SECONDS = 5.0

app = typer.Typer(add_completion=False)
log = structlog.get_logger(__name__)


@app.command()
def emulate(
    url: Annotated[str, typer.Option(help="The platform's address.", envvar="PUNCTUAL_URL")],
    token: Annotated[
        str, typer.Option(help="The inference scheduler's credential.", envvar="PUNCTUAL_INFERENCE_TOKEN")
    ],
    usage: Annotated[
        str, typer.Option(help="A usage curve: daily, bursty, a public one or a file.")
    ] = "daily",
    servers: Annotated[
        int | None,
        typer.Option(min=1, help="Servers that the load is for; all that are enrolled unless told."),
    ] = None,
    speed_up: Annotated[
        float | None,
        typer.Option(min=0.001, help="Seconds of the curve per second; unless told, a sample a period."),
    ] = None,
    start_hour: Annotated[
        float, typer.Option(min=0.0, help="Where the curve begins, in hours after its first midnight.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="For synthetic curves.")] = 0,
    asks_back: Annotated[
        bool, typer.Option(help="Or leave asking servers back to the platform's forecast.")
    ] = True,
    uses_forecast: Annotated[
        bool, typer.Option(help="Lend and ask back by the platform's forecast too.")
    ] = True,
    state: Annotated[
        Path | None, typer.Option(help="File that keeps unfinished orders over restarts.")
    ] = None,
) -> None:
    """Serve an invented load; lend servers while they are idle, and ask them back before they are needed."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        series = read_usage(usage, seed=seed)
        with Client(url, token=token, retry_seconds=10.0) as client:
            # A credential is for one inference cluster.
            settings = client.inference.cluster(str(client.inference.clusters()[0]["name"]))
            count = servers or int(settings["standing"]["servers"])
            load = RequestLoad(
                series, count, speed_up or PERIOD_SECONDS / settings["period_seconds"], start_hour * 3600.0
            )
            log.info("emulating", inference_cluster=settings["name"], servers=count, usage=series.source)
            emulator = Emulator(
                inference=client.inference,
                name=settings["name"],
                load=load,
                period_seconds=settings["period_seconds"],
                book=OrderBook(state),
                asks_back=asks_back,
                uses_forecast=uses_forecast,
            )
            pause = min(_LONGEST_STEP_SECONDS, settings["period_seconds"] / _STEPS_PER_PERIOD)
            while not stop.is_set():
                _step(emulator)
                stop.wait(pause)
    except (PunctualError, TraceError, ValueError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


def _step(emulator: Emulator) -> None:
    """Take one step. Other refusals of the platform are logged and retried; an invalid credential ends the
    emulator."""
    try:
        emulator.step()
    except ApiError as error:
        if error.status in (401, 403, 404):
            raise
        log.warning("step failed", error=str(error))


if __name__ == "__main__":
    app()
