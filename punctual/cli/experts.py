"""`job ID --experts`: a report for people on how a job's mixture-of-experts layers use their experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from punctual.cli import output
from punctual.client.models import Metric

_LAYERS = ("LAYER", "TOKENS", "TWO EXPERTS", "DROPPED", "BALANCE LOSS", "LOAD OF EACH EXPERT (1: EVEN)")
_HOMES = ("LAYER", "EXPERTS", "WORKERS")
_DECISIONS = ("ITERATION", "PACKING", "EXPERTS COMPUTE", "ALL-TO-ALL", "REASON")
#: For a layer with more experts, only the most and the least used ones are named.
_LISTED_EXPERTS, _NAMED_EXPERTS = 16, 4
_NAMED_WORKERS = 8


def say_experts(report: Mapping[str, Any], metrics: Sequence[Metric], *, as_json: bool) -> None:
    """Print the content of `GET /jobs/{id}/experts/`, and the tiers of experts from the job's metrics."""
    if as_json:
        output.print_json(report)
        return
    if not report["layers"] and not report["other_layers"]:
        output.say("Its workers have reported no mixture-of-experts layers.")
        return
    output.print_facts([*_facts(report), *_tiers(metrics)])
    output.print_table(_LAYERS, [_layer(layer) for layer in report["layers"]], right=_LAYERS[1:5], empty="")
    if report["other_layers"]:
        output.say(f"{report['other_layers']} more layers are not reported: they are too many or too large.")
    _say_homes(report)
    if report["decisions"]:
        rows = [_decision(decision) for decision in report["decisions"]]
        output.print_table(_DECISIONS, rows, right=_DECISIONS[2:4], empty="")


def _facts(report: Mapping[str, Any]) -> list[tuple[str, Any]]:
    last, count = report["iteration"], report["iterations"]
    return [
        ("Iterations", f"{last - count + 1} to {last}, in generation {report['generation']}"),
        ("Reported", output.time_text(report["told_at"])),
        ("All-to-all", _all_to_all(report)),
        *_between_servers(report["all_to_all"]),
    ]


def _all_to_all(report: Mapping[str, Any]) -> str:
    timing = report["all_to_all"]
    if timing is None:
        return "no rows travel between workers" if _are_everywhere(report["layers"]) else "not measured yet"
    return (
        f"{timing['share']:.0%} of an iteration: {_milliseconds(timing['all_to_all_seconds'])} of "
        f"{_milliseconds(timing['iteration_seconds'])}"
    )


def _between_servers(timing: Mapping[str, Any] | None) -> list[tuple[str, Any]]:
    times = (timing or {}).get("between_servers")
    if times is None:
        return []
    predicted, flat, hierarchical, measured = (
        _milliseconds(times[f"{name}_seconds"]) for name in ("predicted", "flat", "hierarchical", "measured")
    )
    text = (
        f"{times['hierarchical_share']:.0%} hierarchical; an all-to-all took {measured}, predicted "
        f"{predicted} by {times['rates_source']} rates (flat {flat}, hierarchical {hierarchical})"
    )
    return [("Between servers", text)]


def _tiers(metrics: Sequence[Metric]) -> list[tuple[str, Any]]:
    """Return means over the iterations whose metrics include tiers."""
    tier_metrics = [metric.values for metric in metrics if "moe/tier_hits" in metric.values]
    if not tier_metrics:
        return []
    hits, stall, read, written = (
        fmean(values.get(f"moe/tier_{name}", 0.0) for values in tier_metrics)
        for name in ("hits", "stall_seconds", "bytes_read", "bytes_written")
    )
    text = (
        f"{hits:.0%} of the states were found in host memory; an iteration waited {_milliseconds(stall)} for "
        f"the others, read {read / 1e6:,.1f} MB from disk and wrote {written / 1e6:,.1f} MB"
    )
    return [("Tiers", text)]


def _are_everywhere(layers: Sequence[Mapping[str, Any]]) -> bool:
    return all(layer["hosts"] is not None and not any(layer["hosts"]) for layer in layers)


def _layer(layer: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        _layer_name(layer),
        f"{layer['tokens']:,}",
        f"{layer['two_expert_share']:.1%}",
        f"{layer['dropped_share']:.1%}",
        f"{layer['balance_loss']:.3f}",
        _load(layer["load"]),
    )


def _layer_name(layer: Mapping[str, Any]) -> str:
    return layer["name"] or "(the model)"


def _load(load: Sequence[float]) -> str:
    if len(load) <= _LISTED_EXPERTS:
        return "  ".join(f"{times:.2f}" for times in load)
    most = sorted(range(len(load)), key=lambda expert: -load[expert])
    named = [
        ", ".join(f"{expert} ({load[expert]:.2f})" for expert in experts)
        for experts in (most[:_NAMED_EXPERTS], most[: -_NAMED_EXPERTS - 1 : -1])
    ]
    return f"most: {named[0]}; least: {named[1]}"


def _say_homes(report: Mapping[str, Any]) -> None:
    layers = report["layers"]
    if _are_everywhere(layers):
        output.say("Every worker has all experts.")
        return
    servers = {worker["rank"]: f"{worker['server']}:{worker['gpu']}" for worker in report["workers"]}
    same = len({str(layer["hosts"]) for layer in layers}) == 1
    rows = [
        ("all" if same else _layer_name(layer), experts, homes)
        for layer in layers[: 1 if same else None]
        for experts, homes in _runs(layer["hosts"], servers)
    ]
    output.print_table(_HOMES, rows, empty="")


def _runs(hosts: list[list[int]] | None, servers: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    """Return runs of consecutive experts with the same workers, and these workers."""
    if hosts is None:
        yield "all", "not reported: too many"
        return
    first = 0
    for last, ranks in enumerate(hosts):
        if last + 1 == len(hosts) or hosts[last + 1] != ranks:
            yield f"{first}" if first == last else f"{first} to {last}", _workers(ranks, servers)
            first = last + 1


def _workers(ranks: Sequence[int], servers: Mapping[int, str]) -> str:
    if not ranks:
        return "all"
    named = [
        f"{rank} on {servers[rank]}" if rank in servers else f"{rank}" for rank in ranks[:_NAMED_WORKERS]
    ]
    others = len(ranks) - len(named)
    return ", ".join(named) + (f" and {others} more" if others else "")


def _decision(decision: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        decision["iteration"],
        f"{decision['from_factor']} → {decision['to_factor']}",
        _milliseconds(decision["ffn_seconds"]),
        _milliseconds(decision["all_to_all_seconds"]),
        decision["reason"],
    )


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"
