"""Two servers, and a clock that tests advance."""

from __future__ import annotations

import pytest

from cluster.models import Cluster
from tests.control_plane.conftest import SPEED
from tests.control_plane.recoveries.scenes import Nodes
from tests.control_plane.simulated_agent import SimulatedAgent
from tests.control_plane.simulated_time import SimulatedTime


@pytest.fixture
def cluster(cluster: Cluster) -> Cluster:
    """Return a cluster that declares silent servers lost early, after few lease checks."""
    cluster.fence_seconds = 24.0
    cluster.save()
    return cluster


@pytest.fixture
def time(clock: SimulatedTime) -> SimulatedTime:
    return clock


@pytest.fixture
def nodes(time: SimulatedTime, cluster: Cluster) -> Nodes:
    return SimulatedAgent.enrol("node-1", 4, SPEED), SimulatedAgent.enrol("node-2", 4, SPEED)
