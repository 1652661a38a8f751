"""For any snapshot the core returns a feasible decision or an error that names the fault."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from scheduling.core.decide import replan
from scheduling.core.question.curves import curve_from_measurements
from scheduling.core.question.snapshot import (
    BlockedGpus,
    JobSnapshot,
    ServerSnapshot,
    ServiceClass,
    Snapshot,
    StoredPlan,
)
from scheduling.core.question.two_phase_options import TwoPhaseOptions
from scheduling.core.question.validation import LONGEST_RUN_SECONDS, check_job, suspects
from simulation.policies import policy_named
from tests.core.building import job, snapshot
from tests.core.garbage import check_decision, snapshots

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(600)  # compiles what other policies than the default one need
def test_no_snapshot_ends_the_interpreter_or_leads_to_nonsense(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.core.garbage", "100", "11", str(tmp_path / "tried")]
    run = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=600)
    tried = (tmp_path / "tried").read_text() if (tmp_path / "tried").exists() else ""
    assert run.returncode == 0, f"exit status {run.returncode} at\n{tried}\n{run.stderr[-3000:]}"
    answered, refused = (int(word.strip(",")) for word in run.stdout.split() if word.strip(",").isdigit())
    assert min(answered, refused) > 20, "the snapshots tried are all of one kind"


def is_faulty(checked: JobSnapshot) -> bool:
    try:
        check_job(checked)
    except ValueError:
        return True
    return False


@given(snapshots())
def test_batch_check_finds_the_faults_that_single_checks_find(question: Snapshot) -> None:
    faulty = [candidate for candidate in question.jobs if is_faulty(candidate)]
    assert suspects(question.jobs) == faulty
    # A job with figures that are not even numbers does not hide other jobs' faults.
    strange = replace(job("strange", 1.0, 9.0), finishing_seconds="long")  # type: ignore[arg-type]
    suspected = suspects([*question.jobs, strange])
    assert all(candidate in suspected for candidate in faulty)
    assert strange in suspected


def uneven(*levels: int) -> JobSnapshot:
    """Return a newcomer with these levels, which are not powers of two."""
    rates = {level: float(level) for level in levels}
    curve = curve_from_measurements(rates, powers_of_two=False)
    return replace(job(f"on {levels}", 30.0, 600.0), curve=curve)


@pytest.mark.parametrize(
    ("servers", "levels"),
    [((3, 3), (3,)), ((4, 4), (3,)), ((6, 6), (3, 6, 12)), ((8, 8), (5,)), ((6, 2), (8,))],
)
def test_levels_that_do_not_fit_whole_servers_get_gpus_that_exist(servers, levels) -> None:
    question = snapshot(servers, uneven(*levels), replace(uneven(*levels), id="second"))
    decision = replan(question)
    check_decision(question, decision)
    assert len(decision.placements[f"on {levels}"]) in levels


def test_job_with_lent_levels_above_its_holding_stays_in_place() -> None:
    steady = replace(
        uneven(2, 4), id="steady", newcomer=False, gpus_now=4, placement=(0, 1, 2, 3),
        lent_curve=curve_from_measurements({8: 9.0}),
    )  # fmt: skip
    question = snapshot(6, replace(steady, deadline_at=inf, service_class=ServiceClass.BEST_EFFORT))
    lent = ServerSnapshot("lent", 2, on_loan=True, same_kind=True)
    question = replace(question, servers=(*question.servers, lent))
    decision = policy_named("punctual").replan(question)
    check_decision(question, decision)
    assert decision.changes == ()


FACTS = [
    ({"remaining_iterations": nan}, "remaining_iterations nan"),
    ({"remaining_iterations": inf}, "remaining_iterations inf"),
    ({"remaining_iterations": -1.0}, "remaining_iterations -1"),
    ({"deadline_at": nan}, "deadline_at nan"),
    ({"deadline_at": -inf}, "deadline_at -inf"),
    ({"submitted_at": inf}, "submitted_at inf"),
    ({"pause_left_seconds": inf}, "pause_left_seconds inf"),
    ({"finishing_seconds": nan}, "finishing_seconds nan"),
    ({"placement": (99,), "gpus_now": 1, "newcomer": False}, "holds GPU 99; there are 4"),
    ({"placement": (0, 0), "gpus_now": 2, "newcomer": False}, "lists a GPU twice"),
    ({"gpus_now": 5, "newcomer": False}, "holds 5 GPUs; there are 4"),
]


@pytest.mark.parametrize(("facts", "words"), FACTS)
def test_a_figure_that_cannot_be_is_refused_by_its_name(facts, words) -> None:
    with pytest.raises(ValueError, match=words):
        replan(snapshot(4, replace(job("a", 10.0, 60.0), **facts)))


CURVES = [
    ({"pause_seconds": np.array([inf])}, "a pause is not between"),
    ({"throughput": np.array([nan])}, "a rate is not between"),
    ({"throughput": np.array([1e-30])}, "a rate is not between"),
    ({"levels": np.array([0])}, "do not ascend from 1"),
    ({"levels": np.array([1, 2])}, "differ in number"),
]


@pytest.mark.parametrize(("facts", "words"), CURVES)
def test_a_curve_that_cannot_be_is_refused(facts, words) -> None:
    valid = job("a", 10.0, 60.0, {1: 1.0})
    with pytest.raises(ValueError, match=words):
        replan(snapshot(4, replace(valid, curve=replace(valid.curve, **facts))))


def test_work_beyond_the_longest_run_is_refused_and_centuries_planned() -> None:
    centuries = job("long", 1e10, measured={1: 0.83})
    assert replan(snapshot(4, centuries)).plans["long"].finish_at > 3e9
    with pytest.raises(ValueError, match=re.escape(f"would take over {LONGEST_RUN_SECONDS:g} seconds")):
        replan(snapshot(4, job("endless", 1e12, measured={1: 0.5})))


def test_backward_plans_and_endless_blocks_are_refused() -> None:
    backwards = StoredPlan(np.array([5.0]), np.array([1.0]), np.array([1]), 9.0)
    with pytest.raises(ValueError, match="run backwards"):
        replan(snapshot(4, job("a", 10.0, 60.0, newcomer=False, promised=True, stored_plan=backwards)))
    with pytest.raises(ValueError, match="until is not a number"):
        replan(snapshot(4, blocked=(BlockedGpus((0,), nan),)))


def test_settings_and_servers_are_checked_too() -> None:
    valid = snapshot(4, job("a", 10.0, 60.0))
    twice = (ServerSnapshot("one", 2), ServerSnapshot("one", 2))
    for wrong, words in (
        (replace(valid, now=nan), "now is nan"),
        (replace(valid, settings=replace(valid.settings, slot_seconds=nan)), "slot_seconds must be positive"),
        (replace(valid, settings=replace(valid.settings, reserve_servers=-1)), "reserve_servers"),
        (replace(valid, servers=(ServerSnapshot("one", -4),)), "has -4 GPUs"),
        (replace(valid, servers=twice), "server one appears twice"),
    ):
        with pytest.raises(ValueError, match=words):
            replan(wrong)


@pytest.mark.parametrize(
    ("choice", "wrong"),
    [
        *(("most_work", value) for value in (-1, nan, inf, 0.5, "1000")),
        *(("reserve_servers", value) for value in (nan, inf, 1.5)),
        *(("two_phase", TwoPhaseOptions(expansion=value)) for value in (0, -1)),
        ("two_phase", TwoPhaseOptions(efficiency=nan)),
        ("two_phase", TwoPhaseOptions(change_seconds=inf)),
        ("two_phase", TwoPhaseOptions(ageing_weight=-1.0)),
    ],
)
def test_a_choice_that_no_decision_can_keep_to_is_refused_by_its_name(choice: str, wrong: Any) -> None:
    """A work limit that is no number would never be reached."""
    valid = snapshot(4, job("a", 10.0, 60.0))
    message = "two_phase: " if choice == "two_phase" else f"{choice} must"
    for policy in ("punctual", "lyra"):
        with pytest.raises(ValueError, match=message):
            policy_named(policy).replan(replace(valid, settings=replace(valid.settings, **{choice: wrong})))


@pytest.mark.parametrize("most_work", [None, 0, np.int64(7), 10**18])
def test_every_limit_of_work_decides_the_first_newcomer(most_work: int | None) -> None:
    question = snapshot(4, job("a", 10.0, 60.0))
    decision = replan(replace(question, settings=replace(question.settings, most_work=most_work)))
    assert [verdict.job_id for verdict in decision.verdicts] == ["a"]


def test_a_cluster_without_servers_promises_nothing() -> None:
    verdict = replan(Snapshot(0.0, 0.0, (), (job("a", 10.0, 60.0),))).verdicts[0]
    assert not verdict.admitted
