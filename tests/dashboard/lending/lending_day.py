"""A day of an inference cluster as rows: usage with forecasts, loans and reclaims by the published rule, and
their costs."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.utils import timezone

from cluster.choices import WHITELIST_OF, LendingState
from cluster.models import Server, UtilisationSample
from lending.choices import LoanState, OrderSource, ReclaimState
from lending.models import (
    InferenceCluster,
    LendingEvent,
    LoanOrder,
    ReclaimedServer,
    ReclaimOrder,
    UsageForecast,
    UsageSample,
)
from scheduling.choices import AssignmentState, GenerationState, Goal, JobState, PromiseOutcome, ServiceClass
from scheduling.models import Assignment, Job
from tests import factories

PERIOD = timedelta(minutes=5)
PERIODS = 288
SERVERS = 16
OWNED = 8
GPUS = 4
METHODS = ("improved", "lyra", "scf", "random")


@dataclass
class Day:
    """The created rows, and the state of the walk through the day."""

    inference_cluster: InferenceCluster
    servers: list[Server]
    preempted: Job
    promised: Job
    loans: list[LoanOrder] = field(default_factory=list)
    reclaims: list[ReclaimOrder] = field(default_factory=list)
    away: list[Server] = field(default_factory=list)
    lent_at: dict[int, datetime] = field(default_factory=dict)
    source: random.Random = field(default_factory=lambda: random.Random(3))

    def home(self) -> list[Server]:
        return [server for server in self.servers if server not in self.away]

    def next_id(self) -> UUID:
        return UUID(int=self.source.getrandbits(128), version=4)


def build_day(now: datetime | None = None, *, name: str = "serving", periods: int = PERIODS) -> Day:
    """Create all rows; the last reclaim is still in progress."""
    now = (now or timezone.now()).replace(microsecond=0)
    cluster = factories.ClusterFactory.create()
    inference_cluster = factories.InferenceClusterFactory.create(name=name, cluster=cluster)
    joined = {"created_at": now - timedelta(days=3)}
    servers = [
        factories.InferenceServerFactory.create(
            cluster=cluster, inference_cluster=inference_cluster, name=f"{name}-{number:02d}", gpus=GPUS,
            **joined
        )
        for number in range(1, SERVERS + 1)
    ]  # fmt: skip
    for number in range(OWNED):
        factories.ServerFactory.create(cluster=cluster, name=f"{name}-owned-{number}", gpus=GPUS, **joined)
    day = Day(inference_cluster, servers, *_jobs())
    usages = [_usage(day, step) for step in range(periods + 1)]
    samples: list[UtilisationSample] = []
    for step in range(periods):
        ends_at = now - PERIOD * (periods - 1 - step)
        _report(day, ends_at, usages[step], usages[step + 1])
        samples.append(_training(day, cluster, ends_at, step))
        _follow_rule(day, ends_at, usages[step], usages[step + 1])
    UtilisationSample.objects.bulk_create(samples)
    _leave_last_open(day)
    return day


def _jobs() -> tuple[Job, Job]:
    preempted = factories.JobFactory.create(
        name="language model, long run", state=JobState.RUNNING, service_class=ServiceClass.BEST_EFFORT
    )
    promised = factories.JobFactory.create(
        name="ranking, by tonight",
        state=JobState.COMPLETED,
        service_class=ServiceClass.SLO,
        promise_outcome=PromiseOutcome.MET,
        promised=True,
        finished_at=timezone.now(),
        deadline_at=timezone.now() + timedelta(hours=2),
    )
    return preempted, promised


def _usage(day: Day, step: int) -> float:
    wave = 0.62 + 0.24 * math.sin(2 * math.pi * (step - 110) / PERIODS)
    burst = 0.2 if step % 61 < 3 else 0.0
    return min(0.97, max(0.05, wave + burst + day.source.uniform(-0.012, 0.012)))


def _report(day: Day, ends_at: datetime, usage: float, following: float) -> None:
    rule = day.inference_cluster.rule()
    UsageSample.objects.create(
        inference_cluster=day.inference_cluster,
        period_ends_at=ends_at,
        usage=usage,
        reported_at=ends_at,
        on_loan_servers=len(day.away),
        shortfall_servers=rule.shortfall(usage, len(day.away)),
        source="emulated: a wave with bursts, drawn for a test",
    )
    UsageForecast.objects.create(
        inference_cluster=day.inference_cluster,
        period_ends_at=ends_at + PERIOD,
        usage=min(1.0, 0.6 * usage + 0.4 * following + day.source.uniform(-0.015, 0.015)),
        forecaster="lstm",
        made_at=ends_at,
    )


def _training(day: Day, cluster: Any, taken_at: datetime, step: int) -> UtilisationSample:
    total = (OWNED + len(day.away)) * GPUS
    idle = 1 + step % 3
    return UtilisationSample(
        cluster=cluster, taken_at=taken_at - timedelta(seconds=1), total=total, promised=12,
        best_effort=total - 12 - idle, idle=idle, running_jobs=9, waiting_jobs=2,
    )  # fmt: skip


def _follow_rule(day: Day, at: datetime, usage: float, following: float) -> None:
    expected = min(1.0, 0.6 * usage + 0.4 * following)
    decision = day.inference_cluster.rule().decide(usage, expected, on_loan=len(day.away))
    if decision.lend > 1:
        _lend(day, at, day.home()[: decision.lend])
    elif decision.reclaim:
        _reclaim(day, at, decision.reclaim)


def _event(day: Day, at: datetime, kind: str, servers: list[Server], reclaiming: int) -> None:
    names = [server.name for server in servers]
    LendingEvent.objects.create(
        inference_cluster=day.inference_cluster, happened_at=at, kind=kind,
        message=f"{kind}: {', '.join(names)}.",
        detail={"servers": names}, at_home=SERVERS - len(day.away), on_loan=len(day.away) - reclaiming,
        reclaiming=reclaiming,
    )  # fmt: skip


def _lend(day: Day, at: datetime, servers: list[Server]) -> None:
    done_at = at + timedelta(seconds=1)
    order = LoanOrder.objects.create(
        id=day.next_id(), inference_cluster=day.inference_cluster, source=OrderSource.SCHEDULER,
        created_at=at,
        server_names=[server.name for server in servers], not_before=at, state=LoanState.DONE,
        finished_at=done_at,
    )  # fmt: skip
    order.servers.set(servers)
    day.away += servers
    day.lent_at |= {server.pk: done_at for server in servers}
    day.loans.append(order)
    _event(day, done_at, "lent", servers, 0)
    _set_state(servers, LendingState.ON_LOAN, done_at)


def _reclaim(day: Day, at: datetime, count: int) -> None:
    begun_at = at + timedelta(seconds=1)
    returned_at = begun_at + timedelta(seconds=4 + 3 * count + day.source.randrange(6))
    chosen = day.away[:count]
    choice = _choice(day, chosen)
    stops = bool(choice["preempted"])
    order = ReclaimOrder.objects.create(
        id=day.next_id(), inference_cluster=day.inference_cluster, created_at=at, count=count,
        wanted_by=at + PERIOD,
        source=OrderSource.FORECAST if day.source.random() < 0.3 else OrderSource.SCHEDULER,
        ahead_of_usage=True,
        state=ReclaimState.CONFIRMED, choice=choice, begun_at=begun_at, returned_at=returned_at,
        confirmed_at=returned_at + timedelta(seconds=2),
        outcome={
            "preempted_jobs": int(stops), "rescaled_jobs": 1, "held_back_jobs": 0, "undisturbed_jobs": 0,
            "collateral_gpus": choice["collateral_gpus"],
            "jobs": {day.promised.pk: "rescaled", **({day.preempted.pk: "preempted"} if stops else {})},
        },
    )  # fmt: skip
    ReclaimedServer.objects.bulk_create(
        ReclaimedServer(
            reclaim_order=order, server=server, position=place, group=entry["group"], cost=entry["cost"],
            begun_at=begun_at, returned_at=returned_at, confirmed_at=order.confirmed_at,
        )
        for place, (server, entry) in enumerate(zip(chosen, choice["servers"], strict=True))
    )  # fmt: skip
    _worked(day, chosen, begun_at)
    _event(day, begun_at, "asked_back", chosen, len(chosen))
    day.away = day.away[count:]
    _event(day, returned_at, "returned", chosen, 0)
    _set_state(chosen, LendingState.RECLAIMING, begun_at)
    _set_state(chosen, LendingState.INFERENCE, returned_at)
    day.reclaims.append(order)


def _worked(day: Day, servers: list[Server], until: datetime) -> None:
    """Record training work on most GPUs of the servers from a while after they were lent."""
    generation = factories.GenerationFactory.create(
        job=day.preempted, number=len(day.reclaims) + 1, master_server=servers[0],
        state=GenerationState.RETIRED, goal=Goal.STOP,
        live_at=until, retired_at=until,
    )  # fmt: skip
    gpus = [
        (gpu, day.lent_at[server.pk]) for server in servers for gpu in list(server.gpus.all())[: GPUS - 1]
    ]
    Assignment.objects.bulk_create(
        Assignment(
            generation=generation, job=day.preempted, gpu=gpu, rank=rank, state=AssignmentState.RELEASED,
            held_at=min(until, lent_at + PERIOD / 5), released_at=until,
        )
        for rank, (gpu, lent_at) in enumerate(gpus)
    )  # fmt: skip


def _choice(day: Day, chosen: list[Server]) -> dict[str, Any]:
    """Return a document as `reclaiming_choice.py` writes it: one flexible server, or an idle one and then
    preemptions."""
    groups = ["flexible"] if len(chosen) == 1 else ["idle", *["preemption"] * (len(chosen) - 1)]
    costs = {"idle": 0.0, "flexible": 12.5, "preemption": 0.25}
    stopped = groups.count("preemption")
    names = [server.name for server in chosen]
    others = [server.name for server in day.away[len(chosen) : 2 * len(chosen)]]
    worse = (names[: len(chosen) - len(others)] + others)[: len(chosen)]
    return {
        "method": "improved",
        "candidates": [server.name for server in day.away],
        "servers": [
            {"server": name, "group": group, "cost": costs[group], "excess_gpus": 2 * (group == "preemption"),
             "credited_servers": 0, "newly_preempted": int(group == "preemption" and place == 1)}
            for place, (name, group) in enumerate(zip(names, groups, strict=True))
        ],
        "preempted": [day.preempted.pk] if stopped else [],
        "scale_ins": [],
        "collateral_gpus": 2 * int(stopped > 0),
        "alternatives": [
            {"method": method, "servers": names if method in ("improved", "lyra") else worse,
             "preempted_jobs": int(stopped > 0) + METHODS.index(method) // 2,
             "collateral_gpus": 2 * int(stopped > 0) + 3 * (METHODS.index(method) // 2)}
            for method in METHODS
        ],
        "jobs": [day.promised.pk, *([day.preempted.pk] if stopped else [])],
    }  # fmt: skip


def _set_state(servers: list[Server], state: LendingState, at: datetime) -> None:
    Server.objects.filter(pk__in=[server.pk for server in servers]).update(
        lending_state=state, whitelist=WHITELIST_OF[state], lending_changed_at=at
    )


def _leave_last_open(day: Day) -> None:
    """One more server is reclaimed now, and has not left yet."""
    if not day.away:
        return
    now = timezone.now()
    chosen = day.away[:1]
    order = ReclaimOrder.objects.create(
        id=day.next_id(), inference_cluster=day.inference_cluster, source=OrderSource.OPERATOR,
        created_by="olga",
        created_at=now, count=1, wanted_by=now + PERIOD, state=ReclaimState.RECLAIMING,
        choice=_choice(day, chosen),
        begun_at=now, ahead_of_usage=True,
    )  # fmt: skip
    ReclaimedServer.objects.create(
        reclaim_order=order, server=chosen[0], position=0, group="idle", cost=0.0, begun_at=now
    )
    _event(day, now, "asked_back", chosen, 1)
    _set_state(chosen, LendingState.RECLAIMING, now)
    day.reclaims.append(order)
