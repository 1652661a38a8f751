"""`job ID --communication`: a report for people on how a job's gradients are sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from punctual.cli import output

_PLANS = ("PLAN", "CODEC", "PREDICTED", "MEASURED", "BETWEEN SERVERS", "MEMORY")
_LEVELS = ("GPUS", "SERVERS", "PLAN", "CODEC", "PREDICTED", "MEASURED", "SPEED-UP")


def say_communication(report: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the content of `GET /jobs/{id}/communication/`."""
    if as_json:
        output.print_json(report)
        return
    output.print_facts(_facts(report))
    chosen = report["chosen"]
    if chosen is None:
        output.say("The job has no communication plan: its gradients are all-reduced uncompressed.")
    else:
        rows = [_plan(chosen, report["measured_seconds"], "→ ")]
        for other in report["beaten"]:
            measured = report["seconds_without_plan"] if other["planner"] == "dense" else None
            rows.append(_plan(other, measured, "  "))
        output.print_table(_PLANS, rows, right=_PLANS[2:], empty="")
    if report["given_up"]:
        output.say(f"The plan was given up: {report['given_up']}.", style="yellow")
    if report["levels"]:
        output.say("Plans by number of GPUs; promises rest on what was measured, never on predictions:")
        output.print_table(_LEVELS, [_level(each) for each in report["levels"]], right=_LEVELS[4:], empty="")


def _facts(report: Mapping[str, Any]) -> list[tuple[str, Any]]:
    allowed = f"allowed: {', '.join(report['codecs'])}" if report["lossy"] == "allowed" else "refused"
    profile, links = report["profile"], report["links"]
    return [
        ("Lossy codecs", allowed),
        ("Plan family", report["family"]),
        ("Gradients", f"measured {output.time_text(profile['measured_at'])}" if profile else "not measured"),
        ("Links", _links(links) if links else None),
        ("Generation", report["generation"]),
    ]  # fmt: skip


def _links(links: Mapping[str, Any]) -> str:
    between = links["between"]
    emulated = ", emulated" if links.get("emulated") and links["told_by"] == "measured" else ""
    microseconds = round(1e6 * between["latency_seconds"], 1)
    return (
        f"{8e-9 * between['bytes_per_second']:.3g} Gbit/s and {microseconds:,g} µs "
        f"between servers ({links['told_by']}{emulated})"
    )


def _plan(plan: Mapping[str, Any], measured: float | None, mark: str) -> tuple[str, ...]:
    predicted = plan["predicted"]
    return (
        f"{mark}{plan['planner']}",
        plan["codec"],
        _seconds(predicted["iteration_seconds"]),
        _seconds(measured),
        _megabytes(predicted["bytes_between"]),
        _megabytes(plan["buffer_bytes"]),
    )


def _level(level: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        str(level["gpus"]),
        str(level["servers"]),
        f"{level['planner']}{' (given up)' if level['given_up'] else ''}",
        level["codec"],
        _seconds(level["predicted_seconds"]),
        _seconds(level["measured_seconds"]),
        f"{level['speedup']:.2f}",
    )


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.1f} ms"


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.1f} MB"
