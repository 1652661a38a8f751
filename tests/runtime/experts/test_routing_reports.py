"""Counts of tokens and times of all-to-alls reach the agent, bounded, even if the function reads them too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from emulated_links.rates import EXPERTS, ServerLinks
from moe.lina.packing import PackingDecision, Reason
from moe.moesys.all_to_all import Algorithm, AllToAllChoice
from punctual.moe import ExpertPlacement, GroupExchange, MoELayer, RoutingCounts, routing_counts
from punctual.protocol import limits
from punctual.protocol.experts import ExpertRouting
from punctual.protocol.reports import check
from tests.communication.hooks.ranks import run_on_ranks
from tests.runtime.conftest import FUNCTIONS, emulated
from tests.runtime.experts.test_expert_parallel import RANKS, Mixture
from tests.runtime.in_process import runner_of
from workers.runtime.at_home.local_agent import LocalAgent
from workers.runtime.emulation.emulated_network import BACKEND, Emulation, register
from workers.runtime.emulation.places import Places
from workers.runtime.iterating.iteration import IterationRunner
from workers.runtime.iterating.routing import RoutingReports, reportable
from workers.runtime.lina.communication import ScheduledCommunication
from workers.runtime.lina.exchange import PipelinedExchange
from workers.runtime.measuring.row_times import (
    WARM_UP_ITERATIONS,
    IterationRows,
    RowTimes,
    timing_fields,
    traffic_fields,
    union_seconds,
)
from workers.runtime.try_function import find_entry

CPU = torch.device("cpu")


class Reading(Mixture):
    """A function that reads the counts itself."""

    def train(self, batch: Any, model: nn.Module) -> Any:
        loss = super().train(batch, model)
        (counts,) = routing_counts(model).values()
        assert counts.tokens == 40
        return loss


def records_of(
    runner: IterationRunner, iterations: int, decisions: Sequence[PackingDecision] = ()
) -> list[dict[str, Any]]:
    """Return the records of some iterations, validated as agents do."""
    records: list[dict[str, Any]] = []
    runner.rows.watching = True
    left = [decisions]
    reports = RoutingReports(
        runner.parts.module, runner.rows, records.append, take_decisions=lambda: left.pop() if left else ()
    )
    # One record, even on a slow machine.
    reports._due_at = math.inf
    for iteration in range(iterations):
        counts = runner.run(iteration).routing.counts
        reports.iteration_done(iteration + 1, counts, is_last=iteration + 1 == iterations)
    checked = [check(ExpertRouting, fields) for fields in records]
    assert [problem for _, problem in checked] == [""] * len(records)
    return [fields for fields, _ in checked if fields is not None]


def test_token_counts_read_in_train_still_reach_the_agent(alone: None) -> None:
    (record,) = records_of(runner_of(Reading({})), 5)
    (layer,) = record["layers"]
    assert (record["iteration"], record["iterations"], record["timing"]) == (5, 5, None)
    assert (layer["name"], layer["tokens"], layer["two_expert_tokens"]) == ("1", 5 * 40, 5 * 40)
    assert sum(layer["rows"]) == 2 * 5 * 40
    assert sum(layer["dropped"]) >= 5 * (80 - 3 * 22)
    assert 1.0 <= layer["balance_loss"] < 2.0
    assert layer["hosts"] == [[], [], []]


def test_metrics_are_reported_though_train_reads_the_counts(alone: None) -> None:
    assert runner_of(Reading({})).run(0).values["moe/two_expert_share"] == 1


DECISION = PackingDecision(3, 1, 2, 0.01, 0.02, Reason.EXPERTS_SHORTER)


def spread_and_trained(box: str) -> tuple[dict[str, Any], dict[str, Any], bool, bool]:
    """Train with spread experts; return rank 0's record, that under Lina's schedule, and whether the emulated
    clock timed the all-to-alls without and with the schedule."""
    runner = runner_of(Mixture({}))
    (record,) = records_of(runner, WARM_UP_ITERATIONS + 2, [DECISION])
    schedule = {"kind": "lina", "choices": {"partition_bytes": 200, "packs": False}}
    lina = runner_of(Mixture({}), synchronisers=[schedule])
    (scheduled,) = records_of(lina, WARM_UP_ITERATIONS + 2)
    lina.synchronisation.close()
    return record, scheduled, *timed_by_emulated_clock(box)


def timed_by_emulated_clock(box: str) -> tuple[bool, bool]:
    links = ServerLinks.from_message(emulated()["links"])
    emulation = Emulation(links, Places((0, 1), (0, 0)), Path(box))
    register(emulation)
    group = dist.new_group(backend=BACKEND, group_desc=EXPERTS)
    layer = MoELayer(8, 8, experts=2)
    layer.exchange = GroupExchange(ExpertPlacement(((0,), (1,)), RANKS), group)
    times = RowTimes(layer, CPU, None)
    times.watching, times._left_cold = True, 0
    times.begins()
    layer(torch.randn(64, 8))
    spans = [(begin, end) for _, begin, end in times._spans]
    is_emulated = len(spans) == 2 and spans[-1] == group.last
    communication = ScheduledCommunication()
    layer.exchange = PipelinedExchange(ExpertPlacement(((0,), (1,)), RANKS), group, communication, name="")
    times.begins()
    layer(torch.randn(64, 8))
    communication.flush()
    times.ends()
    communication.close()
    spans = [(begin, end) for _, begin, end in times._spans]
    return is_emulated, len(spans) == 2 and spans[-1] == group.last


def test_all_to_alls_are_timed_and_hosts_named(alone: None, tmp_path: Path) -> None:
    for record, scheduled, *are_emulated in run_on_ranks(RANKS, spread_and_trained, str(tmp_path)):
        timing = record["timing"]
        assert record["layers"][0]["hosts"] == [[0], [0], [1]]
        assert record["decisions"] == [asdict(DECISION)]
        # Two exchanges, there and back, in each of two passes.
        assert (timing["iterations"], len(timing["spans"])) == (2, 4)
        assert 0 < timing["all_to_all_seconds"] < timing["iteration_seconds"]
        assert sum(span["begin_seconds"] < timing["backward_seconds"] for span in timing["spans"]) == 2
        assert are_emulated == [True, True]
        timing = scheduled["timing"]
        begun = [span["begin_seconds"] < timing["backward_seconds"] for span in timing["spans"]]
        # The same exchanges, each in several pieces.
        assert timing["iterations"] == 2
        assert begun.count(True) == begun.count(False) >= 4
        assert 0 < timing["all_to_all_seconds"] < timing["iteration_seconds"]


def test_profile_tells_what_a_layer_exchanges() -> None:
    """Two layers, each with rows there and back in both passes."""
    forward = ((0, 0.0, 1.0), (0, 3.0, 4.0), (1, 5.0, 6.0), (1, 8.0, 9.0))
    backward = tuple(
        (layer, 10.0 + 3 * number, 12.0 + 3 * number) for number, layer in enumerate((1, 1, 0, 0))
    )
    fields = traffic_fields([IterationRows(30.0, 9.5, (*forward, *backward), 800.0)])
    assert fields == {
        "layers": 2, "row_bytes": 800.0, "all_to_all_seconds": 1.0, "backward_all_to_all_seconds": 2.0,
        "expert_seconds": 2.0,
    }  # fmt: skip
    assert traffic_fields([]) is None


def test_predictions_are_reported_with_the_measurements() -> None:
    """One all-to-all in two phases of 3 s that were predicted to take 2 s, one flat of 1 s."""
    choices = (AllToAllChoice(Algorithm.HIERARCHICAL, 4.0, 2.0), AllToAllChoice(Algorithm.FLAT, 1.0, 5.0))
    spans = ((0, 0.0, 3.0), (0, 5.0, 6.0))
    timing = timing_fields([IterationRows(10.0, 4.0, spans, 8.0, choices, "measured")], [0])
    assert timing is not None
    assert timing["between_servers"] == {
        "rates_source": "measured", "hierarchical_share": 0.5, "flat_seconds": 2.5,
        "hierarchical_seconds": 3.5,
        "predicted_seconds": 1.5, "measured_seconds": 2.0,
    }  # fmt: skip
    on_one_server = timing_fields([IterationRows(10.0, 4.0, spans, 8.0)], [0])
    assert on_one_server is not None
    assert on_one_server["between_servers"] is None


def counts_of(experts: int, rows: int = 1) -> RoutingCounts:
    return RoutingCounts(rows, 0, torch.full((experts,), rows), torch.zeros(experts, dtype=torch.int64))


def test_the_first_layers_that_fit_are_reported() -> None:
    counts = {"a\nb": counts_of(2), "large": counts_of(limits.EXPERTS_OF_A_LAYER + 1)}
    counts |= {f"{number}": counts_of(2) for number in range(limits.MOE_LAYERS_OF_A_MODEL + 3)}
    assert list(reportable(counts)) == [f"{number}" for number in range(limits.MOE_LAYERS_OF_A_MODEL)]


def test_a_record_is_bounded_and_kept_until_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    now, confirmed, records = [0.0], [False], list[dict[str, Any]]()
    monkeypatch.setattr("workers.runtime.iterating.routing.time.monotonic", lambda: now[0])
    monkeypatch.setattr(limits, "MOE_LAYERS_OF_A_MODEL", 2)
    experts = 8
    layers = [MoELayer(2, 2, experts=experts) for _ in range(3)]
    model = nn.Sequential(*layers)
    reports = RoutingReports(model, RowTimes(model, CPU, None), records.append, lambda: confirmed[0])
    for iteration in (1, 2):
        now[0] += 60
        reports.iteration_done(iteration, [counts_of(experts, 10**8)] * len(layers), is_last=False)
        confirmed[0] = True
    (record,) = records
    fields, problem = check(ExpertRouting, record)
    assert fields is not None, problem
    assert (fields["iterations"], len(fields["layers"]), fields["other_layers"]) == (2, 2, 1)
    assert fields["layers"][1]["rows"] == [2 * 10**8] * experts
    monkeypatch.setattr(limits, "COMMUNICATION_RECORD_BYTES", 100)
    reports.iteration_done(3, [counts_of(experts)] * len(layers), is_last=True)
    assert len(records) == 1


def test_overlapping_all_to_alls_count_once() -> None:
    assert union_seconds([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)]) == 4.0


def test_a_worker_reports_all_its_iterations(agent: LocalAgent) -> None:
    source = FUNCTIONS / "mixture_of_experts.py"
    assignment = {
        "function": {"entry": find_entry(source)},
        "hyperparameters": {"global_batch_size": 8},
        "termination": {"max_iterations": 12, "target": None},
    }
    generation = agent.start_generation(source, assignment, 1).wait_until_ready()
    report = generation.train_from_nothing().report()
    events = [event for event in generation.leader.of_kind("event") if event["kind"] == "expert_routing"]
    checked = [check(ExpertRouting, event) for event in events]
    records = [fields for fields, _ in checked if fields is not None]
    assert len(records) == len(events) > 0, checked
    assert sum(record["iterations"] for record in records) == 12
    assert records[-1]["iteration"] == 12
    assert sum(record["layers"][0]["tokens"] for record in records) == 12 * 8 * 5
    assert report["final"]["own_two_expert_share"] == report["final"]["moe/two_expert_share"] == 1
