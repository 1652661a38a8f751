"""The policies that Lyra is compared with, each by the rule that sets it apart."""

from __future__ import annotations

import numpy as np
import pytest

from scheduling.core.lyra.base_demands import BaseOrder
from scheduling.core.lyra.flexible_demands import Growth
from scheduling.core.lyra.tick import TwoPhase
from scheduling.core.question.two_phase_options import TwoPhaseOptions
from scheduling.policies.shares_workers import chosen_rules
from simulation.outcome import RunOutcome
from simulation.workloads.tuning import Tuning, tuned_gain
from tests.simulation.lending.worlds import Job, completion_seconds, run, usage_of


def gpus_at(outcome: RunOutcome, job: int, at: float) -> int:
    """GPUs that a job holds at a time."""
    held = outcome.allocations
    rows = np.flatnonzero((held.job == job) & (held.time <= at))
    return int(held.gpus[rows[-1]]) if rows.size else 0


def test_sjf_starts_the_shortest_job_and_grows_none() -> None:
    outcome = run([Job(100.0, 8, 8), Job(60.0, 4, 8), Job(10.0, 8, 8)], policy="sjf")
    assert completion_seconds(outcome) == pytest.approx([110.0, 230.0, 10.0]), (
        "the second takes 120 s at its base"
    )


def test_first_come_policies_hold_to_the_order_in_which_jobs_came() -> None:
    jobs = [Job(100.0, 4, 4), Job(50.0, 8, 8), Job(20.0, 4, 4)]
    assert completion_seconds(run(jobs, policy="fifo")) == pytest.approx([100.0, 150.0, 170.0])
    assert completion_seconds(run(jobs, policy="fifo_backfill")) == pytest.approx([100.0, 150.0, 20.0])


def test_afs_grows_the_job_whose_rate_gains_most_for_its_work() -> None:
    jobs = [Job(600.0, 2, 6), Job(60.0, 2, 6)]
    assert gpus_at(run(jobs, policy="afs"), 1, at=0.0) == 6
    assert gpus_at(run(jobs, policy="lyra"), 0, at=0.0) == 6, "Lyra favours the greatest total of time saved"


def test_gandiva_grows_no_job_while_one_waits() -> None:
    """The second job needs the whole server, so the first may not grow onto the rest of it."""
    outcome = run([Job(100.0, 4, 8), Job(50.0, 8, 8)], policy="lyra_gandiva")
    assert gpus_at(outcome, 0, at=0.0) == 4
    assert gpus_at(run([Job(100.0, 4, 8)], policy="lyra_gandiva"), 0, at=0.0) == 8


def test_gandiva_takes_back_from_the_job_that_grew_last() -> None:
    """Job 0 grows at its start, job 1 when job 2 has ended; then job 3 needs two GPUs."""
    jobs = [
        Job(1000.0, 2, 4),
        Job(1000.0, 2, 4, submitted_at=2.0),
        Job(20.0, 2, 2, submitted_at=2.0),
        Job(20.0, 2, 2, submitted_at=100.0),
    ]
    outcome = run(jobs, policy="lyra_gandiva")
    assert [gpus_at(outcome, job, at=60.0) for job in (0, 1)] == [4, 4]
    assert [gpus_at(outcome, job, at=101.0) for job in (0, 1, 3)] == [4, 2, 2]


class TestOpportunistic:
    """Jobs that run on both kinds wait for idle inference servers, even beside idle owned servers."""

    IDLE = usage_of(*[0] * 40)

    def test_a_fungible_job_waits_for_a_loan_beside_idle_owned_gpus(self) -> None:
        jobs = [Job(900.0, 1, 1), Job(900.0, 1, 1, fungible=True)]
        outcome = run(jobs, policy="opportunistic", inference_servers=4, usage=self.IDLE)
        assert outcome.jobs.started_at.tolist() == [0.0, 300.0]
        assert outcome.loans is not None
        assert outcome.loans.lent_gpus_busy.max() == 3

    def test_job_larger_than_any_loan_runs_on_owned_servers(self) -> None:
        jobs = [Job(600.0, 6, 6, fungible=True)]
        outcome = run(jobs, policy="opportunistic", inference_servers=4, usage=self.IDLE)
        assert outcome.jobs.started_at.tolist() == [0.0]

    def test_a_job_that_was_stopped_three_times_runs_on_owned_servers(self) -> None:
        """Every ten minutes all servers are lent, and reclaimed five minutes later; the job needs six."""
        usage = usage_of(*[0, 1] * 40)
        outcome = run(
            [Job(400.0, 1, 1, fungible=True)], policy="opportunistic", inference_servers=4, usage=usage
        )
        assert outcome.jobs.preemptions.tolist() == [3]
        assert outcome.loans is not None
        assert outcome.loans.owned_gpus_busy.max() == 1

    def test_without_inference_cluster_all_jobs_run_on_owned_servers(self) -> None:
        outcome = run([Job(100.0, 1, 1, fungible=True)], policy="opportunistic")
        assert completion_seconds(outcome) == pytest.approx([100.0])


def test_the_operator_chooses_only_among_rules_that_a_policy_has() -> None:
    options = TwoPhaseOptions(shortest_at_most=True, single_knapsack=True, ageing_weight=0.5, naive=True)
    lyra = chosen_rules(TwoPhase(), options)
    assert (lyra.order, lyra.growth) == (BaseOrder.SHORTEST_AT_MOST, Growth.SINGLE_KNAPSACK)
    assert (lyra.ageing_weight, lyra.naive, lyra.flexible_in_holes) == (0.5, True, True)
    fifo = TwoPhase(order=BaseOrder.FIRST_COME, growth=Growth.NONE)
    chosen = chosen_rules(fifo, options)
    assert (chosen.order, chosen.growth) == (fifo.order, fifo.growth)
    assert chosen_rules(fifo, None) is fifo


def test_tuned_jobs_gain_by_their_workers_and_inelastic_ones_do_not() -> None:
    gain = tuned_gain(np.array([0.5, 1.0, 2.0, 4.0]), Tuning())
    assert gain[0] == pytest.approx(1.0, abs=0.01)
    assert (np.diff(gain) > 0.0).all()
    assert gain[-1] < 2.0
    jobs = [Job(600.0, 2, 8), Job(600.0, 8, 8, submitted_at=1.0)]
    tuned, plain = (completion_seconds(run(jobs, policy=name, servers=2)) for name in ("lyra_tuned", "lyra"))
    assert tuned[0] < plain[0]
    assert tuned[1] == pytest.approx(plain[1])


def test_without_a_fixed_part_of_a_step_a_larger_batch_gains_nothing() -> None:
    assert tuned_gain(np.array([0.5, 2.0]), Tuning(fixed_share=0.0)) == pytest.approx([1.0, 1.0])
