"""Worked examples of reclaiming: V1, V2, V11 to V13, V18 of Lyra's specification."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from scheduling.core.lyra.fleet import Fleet, Speeds, WorkerMap
from scheduling.core.lyra.reclaiming.choosing import ReclaimGroup, choose_servers
from scheduling.core.lyra.reclaiming.greedy import greedy_picks
from scheduling.core.lyra.reclaiming.methods import ReclaimMethod
from scheduling.core.lyra.reclaiming.question import costs, gpu_fraction, layout_of, server_fraction
from tests.core.lyra.reclaim_layouts import asking_for, inelastic, question_of

FIGURE = {"a": {1: 8, 2: 8}, "b": {3: 8}, "c": {4: 8, 5: 2}, "d": {5: 2, 6: 8}}
INFORMED = (ReclaimMethod.LYRA, ReclaimMethod.IMPROVED, ReclaimMethod.OPTIMAL)


def figure(count, **facts):
    return inelastic(FIGURE, count, servers=6, **facts)


def layout(question):
    return layout_of(question.fleet, question.workers, question.gpus_per_worker)


def answer(question, method=ReclaimMethod.LYRA):
    """Return the servers given back, numbered from 1; the jobs preempted; the GPUs freed on other servers."""
    reclaim = choose_servers(question, method)
    return [int(row) + 1 for row in reclaim.returned], reclaim.preempted.tolist(), reclaim.collateral_gpus


def named(preempted, names="abcd"):
    return "".join(names[row] for row in preempted)


def test_v1_the_costs_of_a_server_by_both_fractions():
    places = layout(figure(1))
    assert costs(places, gpu_fraction(places)).tolist() == pytest.approx([0.5, 0.5, 1.0, 0.8, 0.4, 0.8])
    assert costs(places, server_fraction(places)).tolist() == pytest.approx([0.5, 0.5, 1.0, 0.5, 1.0, 0.5])
    assert places.hosted.tolist() == [1, 1, 1, 1, 2, 1]


@pytest.mark.parametrize(
    ("count", "returned", "preempted", "collateral"),
    [
        (1, [3], "b", 0),
        (2, [1, 2], "a", 0),
        (3, [1, 2, 3], "ab", 0),
        (4, [1, 2, 4, 3], "abc", 2),
        (5, [1, 2, 4, 5, 6], "acd", 0),
    ],
)
def test_v2_lyra_with_the_last_pick_by_number_of_jobs(count, returned, preempted, collateral):
    servers, stopped, gpus = answer(figure(count))
    assert (servers, named(stopped), gpus) == (returned, preempted, collateral)


@pytest.mark.parametrize(
    ("count", "returned", "preempted", "collateral"),
    [
        (1, [3], "b", 0),
        (2, [1, 2], "a", 0),
        (3, [1, 2, 4], "ac", 2),
        (4, [1, 2, 4, 6], "acd", 4),
        (5, [1, 2, 4, 5, 6], "acd", 0),
    ],
)
def test_v2_lyra_as_published(count, returned, preempted, collateral):
    servers, stopped, gpus = answer(figure(count, exact_last_pick=False))
    assert (servers, named(stopped), gpus) == (returned, preempted, collateral)


@pytest.mark.parametrize("exact_last_pick", [True, False])
@pytest.mark.parametrize("method", list(ReclaimMethod))
def test_v2_every_method_returns_all_servers_when_all_are_requested(method, exact_last_pick):
    for count in (6, 7):
        servers, stopped, gpus = answer(figure(count, exact_last_pick=exact_last_pick), method)
        assert (sorted(servers), named(stopped), gpus) == ([1, 2, 3, 4, 5, 6], "abcd", 0)


@pytest.mark.parametrize("method", [ReclaimMethod.IMPROVED, ReclaimMethod.OPTIMAL])
def test_v2_the_optimum(method):
    fewest = [len(answer(figure(count), method)[1]) for count in range(7)]
    assert fewest == [0, 1, 1, 2, 3, 3, 4]


def test_v2_choosing_by_gpus_preempts_two_jobs_where_one_is_enough():
    places = layout(figure(2))
    picks = greedy_picks(
        places, gpu_fraction(places), places.candidate, np.zeros(0, dtype=np.int64), 2, count_last=True
    )
    assert (picks.server + 1).tolist() == [5, 4]


def test_v2_tie_returns_the_server_that_frees_another_one_too():
    reclaim = choose_servers(figure(2), ReclaimMethod.LYRA)
    assert reclaim.cost.tolist() == [0.5, 0.0]
    assert reclaim.excess_gpus.tolist() == [0, 0]
    assert reclaim.credited_servers.tolist() == [1, 0]
    assert reclaim.newly_preempted.tolist() == [1, 0]


def v11(count):
    """Return two jobs with 2 GPUs a worker: E with 2 base and 3 flexible workers, F with 1 and 1. Base
    workers are on I1, flexible workers on I2, and I3 is idle."""
    return question_of(
        [{0: (2, 0), 1: (0, 3)}, {0: (1, 0), 1: (0, 1)}],
        count,
        servers=3,
        gpus_per_worker=[2, 2],
        remaining_iterations=np.array([600.0, 100.0]),
    )


@pytest.mark.parametrize("method", INFORMED)
def test_v11_idle_then_flexible_then_preemption(method):
    first = choose_servers(v11(1), method)
    assert first.returned.tolist() == [2]
    assert first.scale_in_workers.size == first.preempted.size == 0

    second = choose_servers(v11(2), method)
    assert second.returned.tolist() == [2, 1]
    assert second.preempted.size == 0
    assert list(zip(second.scale_in_job, second.scale_in_server, second.scale_in_workers, strict=True)) == [
        (0, 1, 3),
        (1, 1, 1),
    ]

    third = choose_servers(v11(3), method)
    assert third.returned.tolist() == [2, 1, 0]
    assert third.preempted.tolist() == [0, 1]
    assert third.scale_in_workers.size == 0, "a preempted job is not scaled in as well"
    assert third.group.tolist() == [ReclaimGroup.IDLE, ReclaimGroup.FLEXIBLE, ReclaimGroup.PREEMPTION]
    assert [third.returned_from(group) for group in ReclaimGroup] == [1, 1, 1]
    assert third.collateral_gpus == 0


def v12(count, **facts):
    """Return two jobs: E has 3 flexible workers on X and 2 base workers, F has 1 flexible worker on Y and 1
    base worker. All base workers are on a third server."""
    facts.setdefault("remaining_iterations", np.array([600.0, 100.0]))
    return question_of([{0: (0, 3), 2: (2, 0)}, {1: (0, 1), 2: (1, 0)}], count, servers=3, **facts)


def test_v12_the_flexible_server_that_saves_less_time_goes_first():
    reclaim = choose_servers(v12(2), ReclaimMethod.LYRA)
    assert reclaim.returned.tolist() == [1, 0]
    assert reclaim.cost.tolist() == pytest.approx([50.0, 180.0])
    assert choose_servers(v12(1), ReclaimMethod.LYRA).returned.tolist() == [1]


@pytest.mark.parametrize("method", INFORMED)
def test_flexible_servers_can_be_ordered_by_number_of_workers(method):
    """The server with one flexible worker saves 900 s, the server with three saves 30 s."""
    facts = {"remaining_iterations": np.array([100.0, 1800.0])}
    assert choose_servers(v12(1, **facts), method).returned.tolist() == [0]
    reclaim = choose_servers(v12(2, **facts, fewest_workers_first=True), method)
    assert reclaim.returned.tolist() == [1, 0]
    assert reclaim.cost.tolist() == [1.0, 3.0], "the number of workers that leave"
    assert reclaim.group.tolist() == [ReclaimGroup.FLEXIBLE] * 2
    assert reclaim.preempted.size == 0


def test_loss_is_recomputed_after_each_release():
    """One job's first flexible server saves 5 s and its next 25 s; the other job's server saves 12 s."""
    speeds = Speeds(
        np.array([0, 4, 6]), np.array([1, 2, 3, 4, 1, 2]), np.array([1.0, 2.0, 4.0, 5.0, 1.0, 1.25])
    )
    jobs = [{0: (0, 1), 1: (0, 1), 2: (0, 1), 4: (1, 0)}, {3: (0, 1), 4: (1, 0)}]
    question = question_of(
        jobs, 3, servers=5, remaining_iterations=np.array([100.0, 60.0]), lent=speeds, owned=[4]
    )
    reclaim = choose_servers(question, ReclaimMethod.LYRA)
    assert reclaim.returned.tolist() == [0, 3, 1]
    assert reclaim.cost.tolist() == pytest.approx([5.0, 12.0, 25.0])


def test_flexible_workers_that_a_job_cannot_lose_leave_last():
    speeds = Speeds(np.array([0, 1, 3]), np.array([5, 1, 2]), np.array([5.0, 1.0, 2.0]))
    reclaim = choose_servers(v12(2, lent=speeds), ReclaimMethod.LYRA)
    assert reclaim.returned.tolist() == [1, 0]
    assert reclaim.cost.tolist() == [50.0, inf]


@pytest.mark.parametrize("exact_last_pick", [True, False])
def test_v13_greedy_is_not_optimal(exact_last_pick):
    jobs = {"j0": {3: 2, 5: 2, 6: 2}, "j1": {2: 2, 4: 2}, "j2": {1: 2, 2: 2, 4: 2}, "j3": {3: 2, 5: 2}}
    question = inelastic(jobs, 3, servers=6, exact_last_pick=exact_last_pick)
    assert answer(question)[:2] == ([1, 6, 2], [0, 1, 2])
    assert len(answer(question, ReclaimMethod.OPTIMAL)[1]) == 2
    assert len(answer(question, ReclaimMethod.IMPROVED)[1]) == 2


def test_v13_the_last_pick_by_number_of_jobs_saves_one():
    jobs = {"j0": {2: 2, 3: 2}, "j1": {4: 2}, "j2": {2: 2, 3: 2, 5: 2}, "j3": {2: 2, 5: 2}}
    question = inelastic(jobs, 2, servers=5)
    assert answer(question)[:2] == ([1, 4], [1])
    servers, stopped, _ = answer(replace(question, exact_last_pick=False))
    assert (servers, len(stopped)) == ([1, 3], 2)
    assert answer(question, ReclaimMethod.OPTIMAL)[:2] == ([1, 4], [1])


@pytest.mark.parametrize("exact_last_pick", [True, False])
def test_v13_at_equal_excess_a_server_that_empties_another_wins(exact_last_pick):
    jobs = {"j0": {4: 2, 5: 2}, "j1": {4: 2, 5: 2}, "j2": {2: 2}}
    question = inelastic(jobs, 4, servers=5, exact_last_pick=exact_last_pick)
    assert answer(question)[:2] == ([1, 3, 4, 5], [0, 1])


@pytest.mark.parametrize("exact_last_pick", [True, False])
def test_v18_one_server_is_chosen_by_number_of_jobs(exact_last_pick):
    wide = {1: 2, 2: 2, 3: 2, 4: 2}
    question = inelastic({"p": wide, "q": wide, "r": {5: 2}}, 1, servers=5, exact_last_pick=exact_last_pick)
    assert answer(question)[:2] == ([5], [2])
    places = layout(question)
    assert costs(places, server_fraction(places)).tolist() == [0.5, 0.5, 0.5, 0.5, 1.0]


def test_v18_by_server_fraction_alone_two_jobs_would_be_stopped():
    wide = {1: 2, 2: 2, 3: 2, 4: 2}
    places = layout(inelastic({"p": wide, "q": wide, "r": {5: 2}}, 1, servers=5))
    picks = greedy_picks(places, server_fraction(places), places.candidate, np.zeros(0, dtype=np.int64), 1)
    assert picks.server.tolist() == [0]


@pytest.mark.parametrize("method", list(ReclaimMethod))
@pytest.mark.parametrize("count", [0, -3])
def test_nothing_is_returned_when_nothing_is_requested(method, count):
    reclaim = choose_servers(asking_for(v11(1), count), method)
    assert reclaim.returned.size == reclaim.preempted.size == reclaim.scale_in_job.size == 0


@pytest.mark.parametrize("method", list(ReclaimMethod))
def test_owned_and_unusable_servers_are_never_returned(method):
    question = question_of([{0: (1, 0)}, {1: (1, 0)}, {2: (1, 0)}, {3: (1, 0)}], 4, servers=4, owned=[1])
    gpus = question.fleet.gpus.copy()
    gpus[2] = 0
    reclaim = choose_servers(replace(question, fleet=question.fleet._replace(gpus=gpus)), method)
    assert sorted(reclaim.returned.tolist()) == [0, 3]


def test_base_workers_on_owned_servers_do_not_make_a_job_look_cheap():
    """The wide job has one base worker on loan and three on owned servers: its server costs 1, like the
    other."""
    jobs = [{0: (1, 0), 2: (1, 0), 3: (1, 0), 4: (1, 0)}, {1: (1, 0)}]
    places = layout(question_of(jobs, 1, servers=5, owned=[2, 3, 4]))
    assert costs(places, server_fraction(places)).tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_wide_job_looks_cheap_where_owned_servers_are_counted():
    """Two servers go back: first the wide job's, which carries a quarter of that job's cost, then either of
    the other two, which preempt one job each."""
    jobs = [{1: (1, 0), 3: (1, 0), 4: (1, 0), 5: (1, 0)}, {0: (1, 0)}, {2: (1, 0)}]
    question = question_of(jobs, 2, servers=6, owned=[3, 4, 5])
    places = layout(question)
    assert costs(places, server_fraction(places, count_owned=True)).tolist() == [
        1.0,
        0.25,
        1.0,
        0.0,
        0.0,
        0.0,
    ]
    assert choose_servers(question, ReclaimMethod.LYRA).returned.tolist() == [0, 2], (
        "the wide job's GPUs would be freed elsewhere"
    )
    counted = choose_servers(replace(question, count_owned_servers=True), ReclaimMethod.LYRA)
    assert counted.returned.tolist() == [1, 0]
    assert counted.cost.tolist() == [0.25, 1.0]


def test_server_fraction_on_loan_is_the_same_if_owned_ones_count():
    places = layout(figure(2))
    assert server_fraction(places, count_owned=True).tolist() == server_fraction(places).tolist()


def test_a_preempted_job_leaves_owned_servers_too():
    jobs = [{0: (1, 0), 1: (2, 1)}]
    reclaim = choose_servers(question_of(jobs, 1, servers=2, owned=[1]), ReclaimMethod.LYRA)
    assert reclaim.preempted.tolist() == [0]
    assert reclaim.collateral_gpus == 3
    assert reclaim.scale_in_workers.size == 0


@pytest.mark.parametrize("method", list(ReclaimMethod))
def test_a_job_with_only_flexible_workers_on_loan_is_never_preempted(method):
    """Its base is on an owned server; on loan it shares servers with jobs that are preempted."""
    jobs = [{0: (0, 2), 1: (0, 1), 2: (4, 0)}, {0: (3, 0)}, {1: (3, 0)}]
    reclaim = choose_servers(question_of(jobs, 2, servers=3, owned=[2]), method)
    assert reclaim.preempted.tolist() == [1, 2]
    assert reclaim.scale_in_job.tolist() == [0, 0]
    assert reclaim.scale_in_workers.tolist() == [2, 1]


def test_flexible_workers_on_a_base_server_cost_nothing():
    """Server 0 hosts one job's base and much flexible work, server 1 two bases: 0 goes back, its flexible
    workers are scaled in."""
    jobs = [{0: (1, 0)}, {0: (0, 6), 1: (1, 0)}, {1: (1, 0)}]
    reclaim = choose_servers(question_of(jobs, 1, servers=2), ReclaimMethod.LYRA)
    assert reclaim.returned.tolist() == [0]
    assert (reclaim.preempted.tolist(), reclaim.scale_in_job.tolist()) == ([0], [1])


def test_a_question_that_contradicts_itself_is_refused():
    sound = v11(1)
    broken = {
        "fleet differ": replace(
            sound, fleet=Fleet(sound.fleet.gpus[:2], sound.fleet.on_loan, sound.fleet.role)
        ),
        "negative number of GPUs": replace(sound, fleet=sound.fleet._replace(gpus=np.array([8, 8, -1]))),
        "worker map differ": replace(sound, workers=sound.workers._replace(base=np.array([1]))),
        "do not cover": replace(sound, workers=sound.workers._replace(offsets=np.array([0, 2, 3]))),
        "outside the fleet": replace(sound, workers=sound.workers._replace(server=np.array([0, 3, 0, 1]))),
        "workers is negative": replace(sound, workers=sound.workers._replace(base=np.array([2, -1, 1, 0]))),
        "listed twice": replace(sound, workers=sound.workers._replace(server=np.array([0, 0, 0, 1]))),
        "no GPU": replace(sound, gpus_per_worker=np.array([2, 0])),
        "one of each": replace(sound, gpus_per_worker=np.array([2])),
        "remaining": replace(sound, remaining_iterations=np.array([1.0, np.nan])),
        "speeds": replace(sound, lent=Speeds(np.array([0]), np.zeros(0, dtype=np.int64), np.zeros(0))),
    }
    for message, question in broken.items():
        with pytest.raises(ValueError, match=message):
            choose_servers(question, ReclaimMethod.LYRA)


@pytest.mark.parametrize("method", list(ReclaimMethod))
def test_without_running_jobs_any_server_is_returned(method):
    question = question_of([], 2, servers=3)
    assert isinstance(question.workers, WorkerMap)
    reclaim = choose_servers(question, method)
    assert reclaim.returned.size == 2
    assert reclaim.returned_from(ReclaimGroup.IDLE) == 2
