"""Properties of every reclaim by every method on random layouts."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.lyra.reclaiming.choosing import Reclaim, ReclaimGroup, choose_servers
from scheduling.core.lyra.reclaiming.effects import effects_of
from scheduling.core.lyra.reclaiming.methods import ReclaimMethod
from scheduling.core.together.sharing import usable_workers
from tests.core.lyra.reclaim_layouts import Mix, asking_for, best_fit_question, inelastic, random_question

SEEDS = st.integers(0, 1 << 20)
INFORMED = st.sampled_from([ReclaimMethod.LYRA, ReclaimMethod.IMPROVED, ReclaimMethod.OPTIMAL])
QUICK = st.sampled_from([method for method in ReclaimMethod if method is not ReclaimMethod.OPTIMAL])


def drawn(seed, *, exact_last_pick=True):
    question = random_question(np.random.default_rng(seed), elastic=True)
    other = {"count_owned_servers": seed % 3 == 0, "fewest_workers_first": seed % 2 == 0}
    return replace(question, exact_last_pick=exact_last_pick, **other)


def job_of_pairs(question):
    return np.repeat(np.arange(question.workers.offsets.size - 1), np.diff(question.workers.offsets))


def same(first: Reclaim, second: Reclaim) -> bool:
    return all(
        np.array_equal(getattr(first, field.name), getattr(second, field.name)) for field in fields(Reclaim)
    )


@given(SEEDS, QUICK, st.booleans())
def test_exactly_the_requested_number_of_loaned_servers_goes_back(seed, method, exact_last_pick):
    question = drawn(seed, exact_last_pick=exact_last_pick)
    returned = choose_servers(question, method).returned
    assert (
        returned.size == np.unique(returned).size == min(question.servers, int(question.fleet.on_loan.sum()))
    )
    assert question.fleet.on_loan[returned].all()


@given(SEEDS, QUICK)
def test_jobs_with_base_workers_on_returned_servers_are_preempted(seed, method):
    question = drawn(seed)
    reclaim = choose_servers(question, method)
    job, workers = job_of_pairs(question), question.workers
    leaving = np.isin(workers.server, reclaim.returned)
    stopped = np.unique(job[leaving & (workers.base > 0)])
    assert reclaim.preempted.tolist() == stopped.tolist()
    assert reclaim.newly_preempted.sum() == stopped.size
    scaled = leaving & (workers.flexible > 0) & ~np.isin(job, stopped)
    scaled_in = zip(reclaim.scale_in_job, reclaim.scale_in_server, reclaim.scale_in_workers, strict=True)
    expected = zip(job[scaled], workers.server[scaled], workers.flexible[scaled], strict=True)
    assert sorted(scaled_in) == sorted(expected)
    gpus = ((workers.base + workers.flexible) * question.gpus_per_worker[job])[
        np.isin(job, stopped) & ~leaving
    ]
    assert reclaim.collateral_gpus == gpus.sum()


@given(SEEDS, INFORMED)
def test_idle_then_flexible_then_preempting_servers_are_returned(seed, method):
    question = drawn(seed)
    reclaim = choose_servers(question, method)
    assert reclaim.group.tolist() == sorted(reclaim.group.tolist())
    loaned = np.flatnonzero(question.fleet.on_loan)
    bound = set(question.workers.server[question.workers.base > 0].tolist())
    present = set(question.workers.server.tolist())
    idle = sum(server not in present for server in loaned.tolist())
    without_base = sum(server not in bound for server in loaned.tolist())
    count = reclaim.returned.size
    assert reclaim.returned_from(ReclaimGroup.IDLE) == min(count, idle)
    assert reclaim.returned_from(ReclaimGroup.FLEXIBLE) == min(count, without_base) - min(count, idle)
    if count <= without_base:
        assert reclaim.preempted.size == 0


@given(SEEDS, st.sampled_from(list(ReclaimMethod)))
def test_the_same_question_has_the_same_answer(seed, method):
    question = drawn(seed)
    assert same(choose_servers(question, method), choose_servers(question, method))


@given(SEEDS, st.integers(1, 40), st.booleans())
def test_improved_is_never_worse_than_lyra(seed, count, exact_last_pick):
    mix = Mix({(1, 1): 0.3, (2, 1): 0.2, (2, 3): 0.2, (1, 8): 0.15, (2, 8): 0.1, (4, 8): 0.05})
    question = asking_for(best_fit_question(24, count, mix, seed % 8), min(count, 23))
    question = replace(question, exact_last_pick=exact_last_pick)
    lyra = choose_servers(question, ReclaimMethod.LYRA)
    improved = choose_servers(question, ReclaimMethod.IMPROVED)
    assert (improved.preempted.size, improved.collateral_gpus) <= (lyra.preempted.size, lyra.collateral_gpus)


def test_v2_random_and_smallest_count_first_match_expectations():
    figure = inelastic({"a": {1: 8, 2: 8}, "b": {3: 8}, "c": {4: 8, 5: 2}, "d": {5: 2, 6: 8}}, 2, servers=6)
    for method, expected in ((ReclaimMethod.RANDOM, 32 / 15), (ReclaimMethod.SCF, 19 / 10)):
        stopped = np.array(
            [choose_servers(replace(figure, seed=seed), method).preempted.size for seed in range(2_000)]
        )
        assert abs(stopped.mean() - expected) <= 3 * stopped.std() / np.sqrt(stopped.size)


@pytest.mark.parametrize("method", [ReclaimMethod.RANDOM, ReclaimMethod.SCF])
def test_seed_determines_random_choices(method):
    question = inelastic({str(server): {server: 8} for server in range(1, 9)}, 4, servers=8)
    answers = {
        tuple(sorted(choose_servers(replace(question, seed=seed), method).returned.tolist()))
        for seed in range(20)
    }
    assert len(answers) > 1


def test_smallest_count_first_counts_once_and_counts_flexible_workers():
    """Server 1 hosts two jobs, so servers 0 and 2 go first, although preempting the job of server 0 would
    leave only one job on server 1."""
    question = inelastic({"a": {1: 2, 2: 2}, "b": {2: 2}, "c": {3: 2}}, 2, servers=3)
    reclaim = choose_servers(question, ReclaimMethod.SCF)
    assert sorted(reclaim.returned.tolist()) == [0, 2]
    assert reclaim.cost.tolist() == [1.0, 1.0]


@given(SEEDS, QUICK)
def test_reclaim_effects_equal_workers_missing_in_the_next_division(seed, method):
    """The reclaim's own figures, the workers that remain usable, and the count per GPU agree."""
    question = drawn(seed)
    reclaim = choose_servers(question, method)
    job, workers, jobs = job_of_pairs(question), question.workers, question.workers.offsets.size - 1
    returned = np.isin(np.arange(question.fleet.gpus.size), reclaim.returned)
    remaining = usable_workers(workers, question.fleet._replace(gpus=np.where(returned, 0, 1)))
    assert not returned[remaining.server].any()
    alive = np.flatnonzero(np.diff(workers.offsets) > 0)
    emptied = np.flatnonzero(np.diff(remaining.offsets) == 0)
    only_flexible_there = np.setdiff1d(np.intersect1d(alive, emptied), reclaim.preempted)
    assert np.isin(reclaim.preempted, emptied).all()
    assert np.isin(only_flexible_there, reclaim.scale_in_job).all()
    all_workers = workers.base + workers.flexible
    base = np.concatenate(
        [np.arange(count) < own for count, own in zip(all_workers, workers.base, strict=True)]
    )
    by_gpu = effects_of(
        np.repeat(job, all_workers), np.repeat(workers.server, all_workers), base, returned, jobs
    )
    assert np.flatnonzero(by_gpu.preempted).tolist() == reclaim.preempted.tolist()
    assert np.flatnonzero(by_gpu.scaled_in).tolist() == np.unique(reclaim.scale_in_job).tolist()
    kept_workers = np.bincount(np.repeat(job, all_workers)[by_gpu.kept], minlength=jobs)
    owner = np.repeat(np.arange(jobs), np.diff(remaining.offsets))
    assert (
        kept_workers.tolist()
        == np.bincount(owner, weights=remaining.base + remaining.flexible, minlength=jobs).tolist()
    )
