"""`manage.py reproduce gemini`: every row beside what was published, and a job under failures."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from django.core.management import call_command

from recovery.traffic.modes import TrafficMode, compare
from research.gemini import model
from research.gemini.failing_job import FailingJob
from research.gemini.figures import FIGURES
from research.gemini.figures.frequency import reduction
from research.gemini.figures.interference import gpt2_40b
from research.gemini.measured import measured, measured_tables
from research.gemini.measured_recovery import frequency_tables, measured_recovery, recovery_tables
from research.gemini.points.sources import Tier
from research.gemini.published import VALUES
from research.gemini.specs import FailureSpec, PromiseSpec
from simulation.engine.outside.happenings import HappeningKind

#: The whole reproduction takes ten seconds of a processor.
whole = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return all figures but the promises, whose runs take a minute; `test_recovery_from_memory` covers
    these."""
    folder = tmp_path_factory.mktemp("gemini")
    only = ",".join(name for name in FIGURES if name != "promises")
    call_command(
        "reproduce", "gemini", "--folder", str(folder), "--json", str(folder / "out.json"), "--only", only,
        stdout=io.StringIO(), stderr=io.StringIO(),
    )  # fmt: skip
    return json.loads((folder / "out.json").read_text())


@whole
def test_everything_that_should_hold_does(found):
    checks = [*found["checks"], *(check for figure in found["figures"] for check in figure["checks"])]
    assert len(checks) > 20
    assert [check["name"] for check in checks if check["met"] is not True] == []
    assert found["left_out"] == []


@whole
def test_every_published_value_has_a_row_and_every_deviation_a_cause(found):
    rows = [row for figure in found["figures"] for row in figure["rows"]]
    assert {(row["figure"], row["quantity"], row["x"]) for row in rows} >= set(VALUES)
    assert found["counts"]["unexplained"] == 0
    beyond = [row for row in rows if row["beyond_band"]]
    assert {(row["figure"], row["quantity"]) for row in beyond} == {("effective", "Strawman")}
    # The page marks fitted values, so that they do not look like results.
    calibrated = {row["quantity"] for row in rows if row["calibrated"]}
    assert calibrated == {TrafficMode.BLOCKING.value, TrafficMode.WITHOUT_PIPELINE.value}


@whole
def test_naive_interleaving_is_out_of_memory_and_has_no_value(found):
    (interference,) = (figure for figure in found["figures"] if figure["name"] == "interference")
    (naive,) = (row for row in interference["rows"] if row["quantity"] == TrafficMode.NAIVE.value)
    assert naive["ours"] is None
    assert naive["missing"] == "out of memory"


@whole
def test_measured_interference_has_its_own_table(found, tmp_path):
    (interference,) = (figure for figure in found["figures"] if figure["name"] == "interference")
    shown = [table for table in interference["tables"] if table["title"] == "Measured on emulated links"]
    assert [row["mode"] for table in shown for row in table["rows"]] == [
        row["mode"] for result in measured().values() for row in result["rows"]
    ]
    file = tmp_path / "measured.json"
    assert measured_tables(measured(file)) == (), "nothing was measured, so nothing is shown"
    row = {"mode": "gemini", "iteration_seconds": 0.25, "over_none": 0.004, "points_per_iteration": 1.0}
    plan = {"with_seconds": 0.2505, "without_seconds": 0.25}
    result = {"rows": [row], "plan": plan, "machine": "x", "load": 0.2, "rounds": 2}
    file.write_text(json.dumps({"idle": result}))
    (table,) = measured_tables(measured(file))
    assert table.rows == (("idle", "gemini", "250 ms", "+0.4%", "+0.2%", "1.00", "0"),)
    file.write_text("[]")
    with pytest.raises(ValueError, match="does not hold"):
        measured(file)


@whole
def test_measured_recovery_costs_have_their_own_table(found, tmp_path):
    for name, title in (("recovery", "Measured: a lost server"), ("frequency", "Measured: a checkpoint")):
        (figure,) = (figure for figure in found["figures"] if figure["name"] == name)
        assert len([entry for entry in figure["tables"] if entry["title"].startswith(title)]) == 1
    file = tmp_path / "measured.json"
    assert recovery_tables(measured_recovery(file)) == (), "nothing was measured, so nothing is shown"
    setting = {
        "machine": "x", "load": 0.2, "megabytes": 200, "share": 0.02, "network_bytes_per_second": 1e8,
        "iteration_seconds": 2.0,
    }  # fmt: skip
    loss = dict.fromkeys(
        ("detection", "fence", "resources", "start", "lost_work", "checkpoint", "period"), 2.0
    )
    losses = {
        way: [loss | {"load": load, "wasted": 2.0 + load} for load in loads]
        for way, loads in (("memory", (1.0, 2.0, 3.0)), ("storage", (40.0,)))
    }
    file.write_text(json.dumps(setting | {"losses": losses}))
    (table,) = recovery_tables(measured_recovery(file))
    assert table.rows[-1] == ("wasted", "4.0 s", "42.0 s", "10.5"), "medians, and their ratio"
    file.write_text(json.dumps(setting | {"losses": {"memory": losses["memory"]}}))
    assert frequency_tables(measured_recovery(file)) == (), "one way alone compares with nothing"
    file.write_text("{}")
    with pytest.raises(ValueError, match="does not hold"):
        measured_recovery(file)


def test_the_full_version_asks_for_more_days():
    for figure in FIGURES.values():
        short, full = (
            {replace(spec, days=0.0) for spec in figure.runs(length) if isinstance(spec, FailureSpec)}
            for length in (False, True)
        )
        assert short == full


@pytest.mark.parametrize("shape", [(1.0,), (1.0, 3.0), (5.0, 1.0, 1.0), (1.0,) * 30])
def test_gpt2_40b_under_three_modes_whatever_the_spans(shape):
    """Done means 16: +10.1 %, +3.5 %, 0, and naive interleaving out of memory."""
    iteration = gpt2_40b(shape)
    share = {mode.mode: mode.extension_seconds / iteration.iteration_seconds for mode in compare(iteration)}
    assert share[TrafficMode.BLOCKING] == pytest.approx(0.101, abs=1e-6)
    assert share[TrafficMode.WITHOUT_PIPELINE] == pytest.approx(0.035, abs=1e-6)
    assert share[TrafficMode.GEMINI] == 0.0
    assert {mode.mode for mode in compare(iteration) if mode.out_of_memory} == {TrafficMode.NAIVE}


@pytest.mark.parametrize(
    ("link", "expected"),
    [(100.0, (17, 34, 51, 68)), (200.0, (34, 68, 102, 136)), (400.0, (68, 136, 204, 272))],
)
def test_g7_checkpoint_time_over_storage(link, expected):
    assert tuple(round(reduction(machines, link)) for machines in (4, 8, 12, 16)) == expected


def test_servers_lost_under_promises_are_as_many_as_are_in_reserve():
    for spec in FIGURES["promises"].runs(True):
        assert isinstance(spec, PromiseSpec)
        losses = [loss for loss in spec.losses(1e6) if loss.kind is HappeningKind.SERVER_LOST]
        assert len({loss.target for loss in losses}) == len(losses) == spec.reserve
    assert {spec.name for spec in FIGURES["promises"].runs(True)} == {
        spec.name for spec in FIGURES["promises"].runs(False)
    }


def test_gpt2_100b_has_the_published_sizes():
    trained = model.gpt2_100b()
    assert trained.state_bytes == 1.2e12
    assert trained.machine_bytes == 75e9
    assert trained.storage_seconds == 480.0
    assert trained.memory_seconds() < 3.0


# A job under failures -------------------------------------------------------------------------

SMALL = replace(FailureSpec(16, days=60.0).job(), failures_a_day=0.05)


def run(seed=0, **changed):
    return FailingJob(replace(SMALL, **changed), seed).run()


def test_process_failures_load_local_memory_and_lose_one_iteration():
    record = run(hardware_share=0.0)
    assert set(record.tiers) == {Tier.LOCAL}
    assert set(record.lost_iterations) == {1}
    phases = SMALL.detection_seconds + SMALL.serialization_seconds + SMALL.warm_up_seconds
    assert min(record.downtime_seconds) == pytest.approx(phases)


def test_failures_of_machines_load_from_peers():
    record = run(hardware_share=1.0)
    assert record.tiers[Tier.PEER] > 0.9 * sum(record.tiers.values())
    assert record.tiers[Tier.LOCAL] == 0


def test_servers_that_have_to_be_waited_for_cost_time():
    spare, late = run(hardware_share=1.0), run(hardware_share=1.0, standby=False)
    wait = SMALL.replacement_seconds
    assert min(late.downtime_seconds) - min(spare.downtime_seconds) == pytest.approx(wait)
    assert late.effective_share < spare.effective_share


def test_without_memory_points_failures_load_durable_storage():
    record = run(in_memory=False)
    assert set(record.tiers) == {Tier.DURABLE}
    period = SMALL.durable_period_seconds + SMALL.durable_load_seconds
    assert max(record.lost_iterations) <= period / SMALL.iteration_seconds + 1
    assert record.effective_share < run().effective_share


def test_loss_of_both_copies_falls_back_to_durable_storage():
    """With this failure rate both servers of a pair fail within one recovery."""
    record = run(machines=2, hardware_share=1.0, failures_a_day=40.0, days=20.0)
    assert record.tiers[Tier.DURABLE] > 0
    assert record.during_recovery > 0


def test_without_failures_all_time_is_useful():
    record = run(failures_a_day=0.0)
    assert record.effective_share == pytest.approx(1.0, abs=1e-3)
    assert record.failures == 0


def test_the_same_seed_gives_the_same_run():
    assert run(seed=3) == run(seed=3)
    assert run(seed=3) != run(seed=4)
