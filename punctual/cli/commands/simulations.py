"""`simulations`: simulations of other policies or another cluster. For operators."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from punctual.cli import options, output, session
from punctual.client.durations import format_duration
from punctual.errors import InvalidInputError

simulations_app = typer.Typer(help="Simulate traces, or the live cluster as it is now, as the operator.")
StudyId = Annotated[int, typer.Argument(metavar="STUDY", help="The study's id.", min=1)]
_LIVE = "live"


@simulations_app.callback(invoke_without_command=True)
def simulations(context: typer.Context, as_json: options.Json = False) -> None:
    """List studies."""
    if context.invoked_subcommand is not None:
        return
    with session.client() as client:
        found = list(client.simulations.studies())
    if as_json:
        output.print_json(found)
        return
    output.print_table(
        ("ID", "NAME", "JOBS", "RUNS", "DONE"),
        [
            (
                study["id"],
                study["name"],
                study["trace"] or "live cluster",
                len(study["runs"]),
                sum(run["state"] == "done" for run in study["runs"]),
            )
            for study in found
        ],
        right=("RUNS", "DONE"),
        empty="No study yet: punctual simulations start TRACE --policies punctual,edf",
    )


@simulations_app.command("choices")
def choices(as_json: options.Json = False) -> None:
    """List the available traces and policies."""
    with session.client() as client:
        found = client.simulations.choices()
    if as_json:
        output.print_json(found)
        return
    output.say(f"Policies: {', '.join(found['policies'])}")
    output.say(f"Of these use borrowed servers: {', '.join(found['borrowing_policies'])}")
    usages = [usage["name"] for usage in found["inference_usages"] if usage["available"]]
    output.say(f"Usage of inference servers: {', '.join(usages)}; with live also: measured")
    output.print_table(
        ("TRACE", "JOBS", "SERVERS", "GPUS PER SERVER", "IS"),
        [
            (trace["name"], trace["jobs"], trace["servers"], trace["gpus_per_server"], trace["description"])
            for trace in found["traces"]
            if trace["available"]
        ],
        right=("JOBS", "SERVERS", "GPUS PER SERVER"),
    )


@simulations_app.command("start")
def start(
    jobs: Annotated[str, typer.Argument(metavar="TRACE", help="A trace's name, or: live")],
    policies: Annotated[str, typer.Option("--policies", help="Names, separated by commas.")] = "punctual",
    servers: Annotated[
        str, typer.Option("--servers", help="Numbers, separated by commas; one run each.")
    ] = "",
    gpus_per_server: Annotated[
        int | None, typer.Option("--gpus-per-server", min=1, help="By default as the trace's authors had it.")
    ] = None,
    newcomers: Annotated[
        str,
        typer.Option(
            "--newcomers",
            help="open, prudent, or both separated by a comma; prudent keeps room for small jobs.",
        ),
    ] = "",
    inference_servers: Annotated[
        str,
        typer.Option(
            "--inference-servers",
            help="Numbers of lending servers, separated by commas; one run each, 0 without loans.",
        ),
    ] = "",
    inference_usage: Annotated[
        str | None,
        typer.Option(
            "--inference-usage", help="Name of the usage trace of lending servers; with live also: measured."
        ),
    ] = None,
    inference_gpu_type: Annotated[
        str | None,
        typer.Option("--inference-gpu-type", help="Kind of GPU of lending servers; by default T4."),
    ] = None,
    reclaim: Annotated[
        str | None, typer.Option("--reclaim", help="How reclaimed servers are chosen.")
    ] = None,
    headroom: Annotated[
        float | None, typer.Option("--headroom", help="Share that is never lent.", min=0, max=1)
    ] = None,
    forecaster: Annotated[
        str | None, typer.Option("--forecaster", help="The forecaster of their usage.")
    ] = None,
    limit_jobs: Annotated[
        int | None,
        typer.Option("--limit-jobs", help="Number of jobs at most, the first ones of the trace.", min=1),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of everything random.")] = 0,
    with_declined: Annotated[
        bool, typer.Option("--with-declined", help="With live: include declined jobs.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Show the figures once all runs have ended.")] = False,
    as_json: options.Json = False,
) -> None:
    """Start a study: a run of each policy on each number of servers, with and without servers on loan."""
    asked: dict[str, Any] = {"seed": seed, "with_declined": with_declined}
    asked |= {"source": _LIVE} if jobs == _LIVE else {"trace": jobs}
    if gpus_per_server is not None:
        asked["gpus_per_server"] = gpus_per_server
    if limit_jobs is not None:
        asked["limit_jobs"] = limit_jobs
    of_loans = {
        "inference_usage": inference_usage,
        "inference_gpu_type": inference_gpu_type,
        "reclaim": reclaim,
        "headroom": headroom,
        "forecaster": forecaster,
    }
    asked |= {name: value for name, value in of_loans.items() if value is not None}
    lent = _numbers("--inference-servers", inference_servers)
    names, rules = _words(policies), _words(newcomers)
    with session.client() as client:
        study = client.simulations.start(
            policies=names,
            servers=_numbers("--servers", servers),
            inference_servers=lent,
            newcomers=rules,
            **asked,
        )
        for sentence in study["notes"]:
            output.note(sentence)
        if wait:
            output.note(f"Study {study['id']} is under way; Ctrl-C lets go of it.")
            study = client.simulations.wait(study["id"])
    if as_json:
        output.print_json(study)
    elif wait:
        _print_runs(study)
    else:
        output.say(
            f"Study {study['id']}: {len(study['runs'])} runs. See: punctual simulations show {study['id']}"
        )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(option: str, text: str) -> list[int]:
    parts = _words(text)
    if not all(part.isdecimal() for part in parts):
        raise InvalidInputError(f"{option} takes numbers with commas, such as 4,6, not {text}")
    return [int(part) for part in parts]


@simulations_app.command("show")
def show(study: StudyId, as_json: options.Json = False) -> None:
    """Show a study: the progress and the results of its runs."""
    with session.client() as client:
        found = client.simulations.study(study)
    if as_json:
        output.print_json(found)
    else:
        _print_runs(found)


def _print_runs(study: dict[str, Any]) -> None:
    lends = any(run["inference_servers"] for run in study["runs"])
    of_loans = ("ON LOAN", "PREEMPTED BY RECLAIMS", "SERVERS SHORT") if lends else ()
    counts = (
        "DEADLINES MET",
        "AT MOST",
        "DECLINED",
        "PROMISED BUT LATE",
        "MEAN JCT OF BEST EFFORT",
        *of_loans,
    )
    output.print_table(
        ("POLICY", "NEWCOMERS", "SERVERS", "STATE", "PROGRESS", *counts, "SIMULATED", ""),
        [_row(run, lends) for run in study["runs"]],
        right=("SERVERS", "PROGRESS", *counts),
    )


def _row(run: dict[str, Any], lends: bool) -> tuple[Any, ...]:
    facts = run.get("summary") or {}
    met = f"{facts['deadlines_met']} of {facts['slo_jobs']}" if facts else "-"
    completion = facts.get("best_effort_mean_jct_seconds")
    bound = facts.get("deadlines_met_bound")
    return (
        run["policy"], run["newcomers"], _servers(run), output.state_text(run["state"]),
        f"{100 * run['progress']:.0f}%", met, "-" if bound is None else bound, facts.get("declined", "-"),
        facts.get("admitted_late", "-"),
        "-" if completion is None else format_duration(completion), *(_loans(run, facts) if lends else ()),
        format_duration(run["simulated_seconds"]), run["error"],
    )  # fmt: skip


def _servers(run: dict[str, Any]) -> str:
    """Return the numbers of training servers and of inference servers."""
    lent = run["inference_servers"]
    return f"{run['servers']} + {lent}" if lent else str(run["servers"])


def _loans(run: dict[str, Any], facts: dict[str, Any]) -> tuple[Any, ...]:
    """Return the mean number of servers on loan, jobs preempted by reclaims, and the largest shortfall of
    inference servers."""
    if not run["inference_servers"] or not facts:
        return ("-", "-", "-")
    mean = facts["servers_on_loan_mean"]
    return (
        "-" if mean is None else f"{mean:.1f}",
        facts["reclaim_preemptions"],
        facts["shortfall_servers_max"],
    )


@simulations_app.command("cancel")
def cancel(study: StudyId, as_json: options.Json = False) -> None:
    """Cancel the unfinished runs of a study."""
    with session.client() as client:
        document = client.simulations.cancel(study)
    if as_json:
        output.print_json(document)
    else:
        output.say(f"Study {study} is being cancelled.")


@simulations_app.command("delete")
def delete(study: StudyId, as_json: options.Json = False) -> None:
    """Delete a study with its results."""
    with session.client() as client:
        client.simulations.delete(study)
    if as_json:
        output.print_json({"id": study, "deleted": True})
    else:
        output.say(f"Study {study} is deleted.")
