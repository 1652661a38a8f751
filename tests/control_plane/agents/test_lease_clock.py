"""Leases use the database's clock; a clock jump neither silences an agent nor keeps a dead one alive."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from django.db.models import Value
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from cluster.choices import ServerState
from cluster.models import Cluster, Server
from scheduling.services.agents import lease_clock
from scheduling.services.agents.lease_clock import Reading, Watch, look
from scheduling.services.agents.leases import expire_leases
from scheduling.services.agents.reports import renew_lease
from tests.control_plane.conftest import SPEED
from tests.control_plane.simulated_agent import SimulatedAgent
from tests.factories import ServerFactory

SUSPECT, FENCE = 10.0, 60.0
START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = 3600.0


class DatabaseClock:
    """A database clock that can jump, and a machine's seconds since boot, which cannot."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reading = Reading(timezone.now(), "boot", 5000.0)
        monkeypatch.setattr(lease_clock, "now", lambda: self.reading.now)
        monkeypatch.setattr(lease_clock, "clock", lambda: Value(self.reading.now))
        monkeypatch.setattr(lease_clock, "read", lambda: self.reading)

    def jump(self, seconds: float) -> None:
        self.reading = replace(self.reading, now=self.reading.now + timedelta(seconds=seconds))

    def look_for(self, seconds: float, *reporting: SimulatedAgent) -> None:
        """Let time pass and check leases each second, after reports of these agents."""
        for _ in range(round(seconds)):
            self.jump(1.0)
            self.reading = replace(self.reading, boot_seconds=self.reading.boot_seconds + 1.0)
            for agent in reporting:
                agent.report()
            expire_leases()


@pytest.fixture
def database_clock(monkeypatch: pytest.MonkeyPatch) -> DatabaseClock:
    return DatabaseClock(monkeypatch)


@pytest.fixture
def nodes(cluster: Cluster, database_clock: DatabaseClock) -> tuple[SimulatedAgent, SimulatedAgent]:
    """Return two servers that stayed up through the hold after the first lease check."""
    cluster.suspect_seconds, cluster.fence_seconds, cluster.fence_margin_seconds = 5.0, 12.0, 1.0
    cluster.save()
    expire_leases()
    Cluster.objects.update(leases_hold_until=None)
    return SimulatedAgent.enrol("node-1", 1, SPEED), SimulatedAgent.enrol("node-2", 1, SPEED)


def states() -> list[str]:
    return list(Server.objects.order_by("name").values_list("state", flat=True))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "seconds",
    [HOUR, -HOUR, pytest.param(8.0, marks=pytest.mark.slow), pytest.param(-8.0, marks=pytest.mark.slow)],
)
def test_clock_jump_neither_hides_nor_fakes_a_silent_server(
    cluster: Cluster,
    database_clock: DatabaseClock,
    nodes: tuple[SimulatedAgent, SimulatedAgent],
    seconds: float,
) -> None:
    reporting, silent = nodes
    database_clock.look_for(2, reporting, silent)
    database_clock.look_for(cluster.suspect_seconds - 3, reporting)
    database_clock.jump(seconds)
    expire_leases()
    assert states() == [ServerState.UP, ServerState.UP]
    database_clock.look_for(cluster.suspect_seconds + 2, reporting)
    assert states() == [ServerState.UP, ServerState.SUSPECT]
    database_clock.look_for(cluster.fence_seconds - 2 * cluster.suspect_seconds + 1, reporting)
    assert states() == [ServerState.UP, ServerState.SUSPECT], "its workers may still train"
    database_clock.look_for(cluster.suspect_seconds + 2, reporting)
    assert states() == [ServerState.UP, ServerState.DOWN]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
def test_a_process_whose_own_clock_is_wrong_changes_no_lease(
    nodes: tuple[SimulatedAgent, SimulatedAgent],
    database_clock: DatabaseClock,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
) -> None:
    right = timezone.now
    database_clock.look_for(2, *nodes)
    monkeypatch.setattr(timezone, "now", lambda: right() + timedelta(seconds=seconds))
    database_clock.look_for(3, *nodes)
    assert states() == [ServerState.UP, ServerState.UP]


@pytest.mark.django_db(transaction=True)
def test_fifty_dead_servers_are_detected_within_the_settings_bounds(
    cluster: Cluster, database_clock: DatabaseClock
) -> None:
    """A dead server is detected by the first lease check at least `suspect_seconds` after its last report,
    which is up to a period old at its death. `benchmarks/long/detection.py` measures it on real agents."""
    period, chance = 1.0, random.Random(1)
    servers = [ServerFactory.create(cluster=cluster, gpus=1, state=ServerState.UP) for _ in range(50)]
    agents = {server.name: server.agent for server in servers}
    expire_leases()
    dies_at = {name: chance.uniform(0.0, 5.0) for name in agents}
    reported_at = {name: at - chance.uniform(0.0, min(at, period)) for name, at in dies_at.items()}
    missed_at: dict[str, float] = {}
    checks = [0.5 + second for second in range(20)]
    moments = sorted([(at, name) for name, at in reported_at.items()] + [(at, "") for at in checks])
    began, boot = database_clock.reading.now, database_clock.reading.boot_seconds
    for at, name in moments:
        database_clock.reading = replace(
            database_clock.reading, now=began + timedelta(seconds=at), boot_seconds=boot + at
        )
        if name:
            renew_lease(agents[name])
            continue
        expire_leases()
        for name_found in Server.objects.filter(state=ServerState.SUSPECT).values_list("name", flat=True):
            missed_at.setdefault(name_found, at)
    delays = [missed_at[name] - dies_at[name] for name in agents]
    assert min(delays) >= cluster.suspect_seconds - period
    assert max(delays) <= cluster.suspect_seconds + 1.0
    assert max(delays) - min(delays) > period, "the moments are spread over the band"


seconds_passed = st.floats(min_value=0.0, max_value=9.0)
jumps = st.one_of(st.just(0.0), st.floats(min_value=-9000.0, max_value=9000.0))


@given(st.lists(st.tuples(seconds_passed, jumps), max_size=12))
def test_every_jump_is_measured_and_none_counts_as_a_gap(steps: list[tuple[float, float]]) -> None:
    now, boot = START, 100.0
    watch, _ = look(Watch(None, None, {}), Reading(now, "boot", boot), SUSPECT, FENCE)
    watch = replace(watch, hold_until=None)
    unmeasured = 0.0
    for passed, jump in steps:
        boot += passed
        now += timedelta(seconds=passed + jump)
        watch, measured = look(watch, Reading(now, "boot", boot), SUSPECT, FENCE)
        unmeasured += jump - measured
        assert abs(unmeasured) < lease_clock.JUMP_SECONDS + 1e-3, "undetected jumps do not add up"
        assert watch.hold_until is None


def test_gap_holds_leases_for_a_fence_period_at_any_clock_reading() -> None:
    first, _ = look(Watch(None, None, {}), Reading(START, "boot", 100.0), SUSPECT, FENCE)
    later = Reading(START - timedelta(hours=1), "boot", 100.0 + SUSPECT + 1)
    watch, jump = look(replace(first, hold_until=None), later, SUSPECT, FENCE)
    assert watch.hold_until == later.now + timedelta(seconds=FENCE)
    assert jump == pytest.approx(-HOUR - SUSPECT - 1)


def test_first_reading_from_another_machine_holds_leases_once() -> None:
    """A new machine cannot detect whether the clock jumped since the last check."""
    watch = Watch(START, None, {"boot": 0.0})
    other = Reading(START + timedelta(seconds=1), "other", 7.0)
    watch, jump = look(watch, other, SUSPECT, FENCE)
    assert (watch.hold_until is not None, jump) == (True, 0.0)
    both = replace(watch, hold_until=None)
    for reading in (other, Reading(START + timedelta(seconds=1), "boot", START.timestamp() + 1.0)):
        assert look(both, reading, SUSPECT, FENCE)[0].hold_until is None


def test_backward_clock_jump_never_extends_a_hold_past_its_fence() -> None:
    first, _ = look(Watch(None, None, {}), Reading(START, "boot", 100.0), SUSPECT, FENCE)
    back = Reading(START - timedelta(hours=1), "boot", 101.0)
    watch, _ = look(first, back, SUSPECT, FENCE)
    assert watch.hold_until is not None
    assert watch.hold_until <= back.now + timedelta(seconds=FENCE)
