"""Promises use the age of points in memory that was measured while all copies existed."""

from __future__ import annotations

import pytest

from cluster.models import Cluster, Server
from scheduling.models import CurveLevel, Generation, ScalingCurve
from scheduling.services.generations.failure_charges import FailureCharges
from scheduling.services.snapshots.jobs_of_pool import core_curve
from tests.control_plane.agent_api import event, send
from tests.control_plane.generations.test_memory_points import hold, holding, pair, servers

__all__ = ["pair", "servers"]

pytestmark = [pytest.mark.django_db, pytest.mark.urls("config.urls_agents")]


def tell(servers: tuple[Server, Server], generation: Generation, **changes: object) -> float | None:
    """Report rank 0's plan; return the curve's facts about points afterwards."""
    send(servers[0], {"events": [event(generation, "copy_traffic", **changes)]})
    return ScalingCurve.objects.values_list("point_iterations", flat=True).get(generations=generation)


def with_curve(generation: Generation) -> ScalingCurve:
    curve = generation.job.curve
    assert curve is not None
    Generation.objects.filter(pk=generation.pk).update(curve=curve)
    return curve


def keep_all(servers: tuple[Server, Server], generation: Generation, copies: int) -> None:
    pks = [server.pk for server in servers]
    Generation.objects.filter(pk=generation.pk).update(protection={"holders": [pks, pks[::-1]]})
    ranks = [(rank, {"copies": copies, "wanted_copies": 2}) for rank in (0, 1)]
    for server in servers:
        assert not hold(server, *(holding(generation, rank, 41, **figures) for rank, figures in ranks))


def test_ages_are_kept_where_all_copies_were_there(servers: tuple[Server, Server], pair: Generation) -> None:
    with_curve(pair)
    keep_all(servers, pair, copies=1)
    assert tell(servers, pair) is None, "a copy is missing"
    keep_all(servers, pair, copies=2)
    assert tell(servers, pair, with_seconds=None) is None, "nothing but a plan"
    # Two iterations to the next point, two of copying, one until the vote.
    assert tell(servers, pair) == pytest.approx(5.0)
    assert tell(servers, pair, every=4) == pytest.approx(7.0), "more counts at once"
    assert tell(servers, pair) == pytest.approx(6.8), "less little by little"


def test_promises_count_on_measured_ages_instead_of_the_floor(
    servers: tuple[Server, Server], pair: Generation
) -> None:
    curve = with_curve(pair)
    Server.objects.update(memory_store_bytes=10**9)
    cluster = Cluster.objects.get(pk=pair.job.cluster_id)
    cluster.reserve_servers = 1
    CurveLevel.objects.filter(curve=curve).delete()
    CurveLevel.objects.create(curve=curve, gpus=1, iterations_per_second=2.0)
    levels = core_curve(list(curve.levels.all()), batch=64, total=4, margin=0.0)

    def safe_seconds(point_iterations: float | None) -> float:
        curve.copy_seconds, curve.storing_seconds, curve.state_bytes = 0.01, 0.2, 1000
        curve.point_iterations = point_iterations
        return FailureCharges(cluster).asked_for(levels, curve).chosen.safe_seconds

    assert safe_seconds(None) == 15.0
    assert safe_seconds(5.0) == 2.5
    assert safe_seconds(1.0) == 0.7, "no younger than storing allows"
    assert safe_seconds(500.0) == 15.0, "durable states keep it as young as before"
