"""The platform records the time during which it was stopped, for any kind of stop."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from django.utils import timezone

from cluster.models import Cluster, Outage, UtilisationSample
from cluster.selectors.outages import Stopped, outages_between, stopped_seconds
from cluster.selectors.utilisation import utilisation_series
from scheduling.selectors.jobs.job_page import gpus_over_time
from scheduling.services.agents import lease_clock
from scheduling.services.agents.leases import expire_leases
from scheduling.services.long_work.housekeeping import keep_house
from tests.control_plane.simulated_time import let_pass
from tests.factories import GenerationFactory, JobFactory

AWAY_SECONDS = 900.0


def stop_for(seconds: float) -> Stopped:
    """Check leases, stop for a while, and check again."""
    expire_leases()
    stopped_at = timezone.now()
    let_pass(seconds)
    expire_leases()
    return Stopped(stopped_at, timezone.now())


def noted() -> list[Stopped]:
    return [Stopped(*row) for row in Outage.objects.values_list("stopped_at", "started_at")]


def test_gap_between_lease_checks_is_an_outage(cluster: Cluster) -> None:
    stop_for(cluster.suspect_seconds - 1)
    assert noted() == []
    outage = stop_for(AWAY_SECONDS)
    assert noted() == [outage]


def test_an_outage_counts_before_it_is_noted(cluster: Cluster) -> None:
    begin = timezone.now()
    expire_leases()
    let_pass(AWAY_SECONDS)
    now = timezone.now()
    before = outages_between(cluster.pk, begin, now)
    expire_leases()
    assert before == outages_between(cluster.pk, begin, now) == [Stopped(begin, now)]


def test_outages_are_cut_off_at_both_ends(cluster: Cluster) -> None:
    first = stop_for(AWAY_SECONDS)
    let_pass(5)
    second = stop_for(AWAY_SECONDS)
    minute = timedelta(minutes=1)
    begin, end = first.stopped_at + minute, second.started_at - minute
    outages = outages_between(cluster.pk, begin, end)
    assert outages == [Stopped(begin, first.started_at), Stopped(second.stopped_at, end)]
    assert outages_between(cluster.pk, first.started_at, second.stopped_at) == []
    assert stopped_seconds(outages, begin, end) == 2 * (AWAY_SECONDS - 60)
    assert stopped_seconds(outages, begin + minute, second.stopped_at) == AWAY_SECONDS - 120


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_outage_duration_ignores_clock_jumps(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    reading = lease_clock.Reading(timezone.now(), "boot", 100.0)
    monkeypatch.setattr(lease_clock, "read", lambda: reading)
    expire_leases()
    reading = replace(reading, now=reading.now + timedelta(seconds=jump))
    expire_leases()
    assert noted() == [], "a clock that is set is no outage"
    passed = timedelta(seconds=AWAY_SECONDS)
    reading = replace(reading, now=reading.now + passed + timedelta(seconds=jump), boot_seconds=1000.0)
    expire_leases()
    assert noted() == [Stopped(reading.now - passed, reading.now)]


def test_outages_are_kept_for_as_long_as_samples(cluster: Cluster) -> None:
    stop_for(AWAY_SECONDS)
    let_pass(89 * 86_400)
    keep_house()
    assert len(noted()) == 1
    let_pass(2 * 86_400)
    keep_house()
    assert noted() == []


def test_pages_show_no_gpus_at_work_while_the_platform_was_stopped(cluster: Cluster) -> None:
    begin = timezone.now()
    UtilisationSample.objects.create(cluster=cluster, total=8, promised=6, idle=2, running_jobs=2)
    job = JobFactory.create(cluster=cluster, state="running")
    GenerationFactory.create(job=job, number=1, live_at=begin, held_at=begin, world_size=6, gpus=[])
    let_pass(5)
    outage = stop_for(AWAY_SECONDS)
    let_pass(5)
    UtilisationSample.objects.create(cluster=cluster, total=8, promised=6, idle=2, running_jobs=2)
    now = timezone.now()

    series = utilisation_series(begin, now)
    assert series.gpus_by_use["promised"] == [6.0, 0.0, 6.0]
    assert series.gpus_by_use["unavailable"] == [0.0, 8.0, 0.0]
    assert series.running_jobs == [2.0, 0.0, 2.0]
    assert series.times[1] == outage.stopped_at

    had = gpus_over_time(job.owner, job, now).actual
    assert [(phase.since, phase.until) for phase in had] == [
        (begin, outage.stopped_at),
        (outage.started_at, None),
    ]
