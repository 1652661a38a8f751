"""Invariants under random actions of users and agents; `random_days.py` describes a run and its checks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType

import pytest
from django.utils import timezone

from cluster.models import Cluster, Server
from scheduling.choices import CurveState
from scheduling.models import Assignment, CurveLevel, Generation, Job, ScalingCurve
from tests.control_plane.conftest import SPEED
from tests.control_plane.planning.random_days import RandomDay
from tests.control_plane.simulated_time import SimulatedTime

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.timeout(600)]

Submit = Callable[..., Job]
#: What a change costs at most in these runs: a second for each of its steps, and each may be put off now and
#: then.
PAUSE_SECONDS = 12.0
GIB = 1024**3


@pytest.fixture
def curves_known() -> bool:
    return False


@pytest.fixture
def hasty(cluster: Cluster) -> Cluster:
    """Return a cluster with slots and time-outs short enough for many in a run."""
    cluster.slot_seconds = 5.0
    cluster.suspect_seconds, cluster.fence_seconds = 6.0, 20.0
    cluster.prepare_timeout_seconds = cluster.handover_timeout_seconds = cluster.suspend_timeout_seconds = (
        12.0
    )
    cluster.profile_maximum_seconds = 10.0
    cluster.promise_margin = 0.1
    cluster.save()
    return cluster


def store_curve(curve: ScalingCurve, memory: Mapping[int, int] = MappingProxyType({})) -> None:
    """Store the curve as if measured: every level with the cost of a change to it."""
    ScalingCurve.objects.filter(pk=curve.pk).update(
        state=CurveState.READY, complete=True, finishing_seconds=4.0
    )
    for gpus, speed in SPEED.items():
        CurveLevel.objects.create(
            curve=curve,
            gpus=gpus,
            iterations_per_second=speed,
            profiled_iterations_per_second=speed,
            pause_seconds=PAUSE_SECONDS,
            host_memory_bytes=memory.get(gpus, 0),
            reserved_memory_bytes=memory.get(gpus, 0),
            measured_at=timezone.now(),
        )


@pytest.fixture(autouse=True)
def _counted_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Number ids: some decisions depend on them, and random ones would make runs irreproducible."""
    numbers = itertools.count()
    identifier = Job._meta.get_field("id")
    monkeypatch.setitem(identifier.__dict__, "_get_default", lambda: f"{next(numbers):012d}")


@pytest.mark.parametrize(
    ("seed", "failures"),
    [(2, False), (4, True), (5, True)],
)
def test_random_days(hasty: Cluster, submit: Submit, clock: SimulatedTime, seed: int, failures: bool) -> None:
    day = RandomDay(seed, hasty, submit, clock, SPEED, failures=failures)
    first = submit("best_effort", iterations=400)
    assert first.curve is not None
    store_curve(first.curve)
    day.run(50)
    assert day.paused_for_good, "nobody was paused in the middle of a hand-over: choose another seed"


#: Seconds for which one more server is there, and bytes of memory of each server.
ENDING, UNLIKE = 75.0, (64 * GIB, 16 * GIB, 64 * GIB)


@pytest.mark.parametrize(
    ("stays_seconds", "memory", "second"),
    [
        (ENDING, UNLIKE, 4.57),
        (ENDING, (), 4.57),
        (None, UNLIKE[:2], 0.0),
    ],
    ids=["both", "a server that leaves", "unlike memory"],
)
def test_random_days_on_servers_of_unlike_memory_of_which_one_leaves(
    hasty: Cluster,
    submit: Submit,
    clock: SimulatedTime,
    stays_seconds: float | None,
    memory: tuple[int, ...],
    second: float,
) -> None:
    """A worker on one GPU needs more memory than the smaller server has per GPU."""
    clock.turn(second)
    day = RandomDay(7, hasty, submit, clock, SPEED, stays_seconds=stays_seconds, memory=memory)
    first = submit("best_effort", iterations=3000)
    assert first.curve is not None
    store_curve(first.curve, {1: 6 * GIB, 2: 4 * GIB, 4: 3 * GIB, 8: 2 * GIB} if memory else {})
    day.run(60)
    if stays_seconds is not None:
        leaving = day.agents[2].agent.server_id
        used = Assignment.objects.filter(gpu__server=leaving, held_at__isnull=False)
        assert used.exists(), "nobody was on it before it left: choose another seed"
        assert Server.objects.filter(pk=leaving, available_until__lte=timezone.now()).exists()
    if memory:
        sizes = set(Generation.objects.values_list("world_size", flat=True))
        assert sizes & {2, 4, 8}
        assert 1 not in sizes
