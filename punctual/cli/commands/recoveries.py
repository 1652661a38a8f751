"""`recoveries`, `memory-point`: a job's recoveries, and its newest recovery point."""

from __future__ import annotations

from punctual.cli import options, output, session
from punctual.client.durations import format_duration


def recoveries(job_id: options.JobId, as_json: options.Json = False) -> None:
    """List what a job recovered from: what was lost, from where its state came, how long it took."""
    with session.client() as client:
        found = client.job(job_id).recoveries()
    if as_json:
        output.print_json([one.raw for one in found])
        return
    output.print_table(
        ("DETECTED", "KIND", "OUTCOME", "STATE FROM", "LOST", "DOWN", "ATTEMPTS", "REASON"),
        [
            (one.detected_at, one.kind, one.outcome, one.source or "-",
            "-" if one.iterations_lost is None else f"{one.iterations_lost} it",
            format_duration(one.down_seconds), one.attempts, one.reason)
            for one in found
        ],
        right=("LOST", "DOWN", "ATTEMPTS"),
        empty="The job has not failed.",
    )  # fmt: skip


def memory_point(job_id: options.JobId, as_json: options.Json = False) -> None:
    """Show where a job's newest state is kept, and what the death of each server would cost now."""
    with session.client() as client:
        found = client.job(job_id).memory_point()
    if as_json:
        output.print_json(found)
        return
    facts = [("protection", found["protection"]), ("iterations done", found["iterations_done"])]
    for name in ("memory", "durable"):
        point = found[name]
        text = "none" if point is None else f"iteration {point['iteration']}, {_age(point)} old"
        facts.append((f"newest {'in memory' if name == 'memory' else 'on disk'}", text))
    if found["copies"] is not None:
        facts.append(("copies", _copies(found["copies"])))
    output.print_facts(facts)
    holder_of = {one["server"]: one for one in found["holders"]}
    output.print_table(
        ("SERVER", "KEEPS RANKS", "SIZE", "LOST IF IT DIED", "GOES ON FROM"),
        [
            (one["server"], ", ".join(map(str, holder_of.get(one["server"], {}).get("ranks", ()))) or "-",
            output.size_text(holder_of.get(one["server"], {}).get("bytes", 0)), _lost(one), one["source"])
            for one in found["if_lost"]
        ],
        right=("SIZE",),
        empty="It does not train now.",
    )  # fmt: skip


def _age(point: dict[str, float]) -> str:
    return format_duration(point["age_seconds"])


def _copies(copies: dict[str, float | None]) -> str:
    often = "after each iteration" if copies["every"] == 1 else f"every {copies['every']} iterations"
    cost = copies["measured_cost"]
    if cost is None:
        return often
    return f"{often}; measured, the time of iterations with them differs by {cost:+.1%}"


def _lost(one: dict[str, float | None]) -> str:
    seconds = one["seconds"]
    took = "" if seconds is None else f" ({format_duration(seconds)})"
    return f"{one['iterations']} iterations{took}"
