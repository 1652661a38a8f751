"""`python -m launch`: start, inspect and stop the platform of this machine."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from launch.errors import LaunchError
from launch.folders import Folders
from launch.progress import Progress
from launch.settings import PlatformSettings
from launch.state import lock_holder, read_state
from launch.stopping import is_confirmed, open_promises
from launch.supervisor import Supervisor
from launch.waiting import wait_until

application = typer.Typer(
    help="Start, look at and stop the platform of this machine.", no_args_is_help=True, add_completion=False
)


@application.command()
def up(
    settings_file: Annotated[
        Path | None, typer.Option("--settings", help="A JSON file instead of the environment.")
    ] = None,
) -> None:
    """Start everything and keep it running until Ctrl-C."""
    Supervisor(_settings(settings_file), Progress()).run()


@application.command()
def status() -> None:
    """Show the processes of the running platform. Ends with 1 if none runs."""
    settings = PlatformSettings.from_environment()
    state = read_state(Folders(settings.data))
    if state is None:
        print(f"The platform does not run on {settings.data}. `make run` starts it.")
        raise typer.Exit(1)
    table = Table("process", "pid", "restarts", "log")
    for name, process in state["processes"].items():
        table.add_row(name, str(process["pid"] or "restarting"), str(process["restarts"]), process["log"])
    console = Console(highlight=False)
    console.print(table)
    console.print(f"{'Ready' if state['ready'] else 'Starting'}, since {state['started_at']}")
    console.print(f"Dashboard {state.get('web_url', 'not up yet')}")


@application.command()
def down(
    yes: Annotated[bool, typer.Option("--yes", help="Stop without a question.")] = False,
) -> None:
    """Stop the running platform in order, as Ctrl-C does. Where that breaks promises, ask at a terminal."""
    folders = Folders(PlatformSettings.from_environment().data)
    holder = lock_holder(folders)
    if holder is None:
        print(f"The platform does not run on {folders.data}.")
        return
    state = read_state(folders)
    if not yes and state is not None and state["ready"]:
        urls = state["database_url"], state["redis_url"]
        if not is_confirmed(lambda: open_promises(folders, *urls, _nothing), Progress(), _nothing):
            print("The platform runs on.")
            raise typer.Exit(1)
    os.kill(holder, signal.SIGTERM)
    if not wait_until(lambda: lock_holder(folders) is None, timeout_seconds=120):
        raise LaunchError(
            f"the platform (process {holder}) is still stopping after two minutes: see {folders.logs}"
        )
    print("Stopped.")


@application.command()
def demo(
    minutes: Annotated[float, typer.Option(help="How long new jobs keep arriving.")] = 5.0,
    seed: Annotated[int, typer.Option(help="Which mix of jobs.")] = 0,
) -> None:
    """Submit a mixed workload to the running platform."""
    from launch.showing.demo import run_demo

    run_demo(PlatformSettings.from_environment(), minutes=minutes, seed=seed)


def _nothing() -> None:
    return None


def _settings(file: Path | None) -> PlatformSettings:
    if file is None:
        return PlatformSettings.from_environment()
    return PlatformSettings.from_json(file.read_text(encoding="utf-8"))


def main(run: Callable[[], None] = application) -> None:
    """Run a command. Print a known problem as one line or with the end of a log, never as a traceback."""
    try:
        run()
    except LaunchError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
