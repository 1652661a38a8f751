"""Samples of the requests that deployments answered, period by period, and the servers each needs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any

from django.db import transaction
from django.db.models import Count, Q
from django.utils import timezone

from cluster.choices import LendingState
from deployments.choices import ANSWERING_STATES, DeploymentState, ReplicaState
from deployments.core.scaling import CALM_PERIODS, Load, wanted_servers
from deployments.models import Deployment, DeploymentSample, Replica
from deployments.services.records import hint_pages, record
from punctual.protocol.latencies import LATENCY_BUCKETS, latency_percentile
from scheduling.services.rows.records import lock_cluster
from scheduling.services.rows.wakeups import wake

KEPT_FOR = timedelta(hours=24)
MEASURED_STATES = (DeploymentState.PREPARING, DeploymentState.READY, DeploymentState.DEGRADED)
_SUMMED = ("requests", "inputs", "failed", "refused", "rejected", "batches", "busy_seconds")


def measure_deployments() -> None:
    """Take a sample of each deployment, and decide how many servers it needs."""
    now = timezone.now()
    measured = Deployment.objects.filter(state__in=MEASURED_STATES).select_related("inference_cluster")
    for deployment in measured.order_by("pk"):
        with transaction.atomic():
            lock_cluster(deployment.inference_cluster.cluster_id)
            deployment.refresh_from_db()
            if deployment.state in MEASURED_STATES:
                _note_latency(deployment, _take_sample(deployment, now))
                _scale(deployment)


def forget_old_samples(now: datetime) -> None:
    """Delete samples, and replicas that are gone, after a day."""
    DeploymentSample.objects.filter(ended_at__lt=now - KEPT_FOR).delete()
    Replica.objects.filter(gone_at__lt=now - KEPT_FOR).delete()


def _take_sample(deployment: Deployment, now: datetime) -> DeploymentSample:
    """Store the sum of the replicas' counts since the previous sample."""
    total: dict[str, Any] = dict.fromkeys(_SUMMED, 0)
    latencies, busy = [0] * LATENCY_BUCKETS, 0.0
    for replica in deployment.replicas.exclude(counts={}).defer("log"):
        if replica.counts == replica.counted:
            continue
        fresh = _since_previous(replica)
        for name in _SUMMED:
            total[name] += fresh[name]
        for bucket, count in enumerate(fresh["latencies"]):
            latencies[bucket] += count
        if fresh["uptime_seconds"] > 0.0:
            # A batch that takes longer than a period counts in the period in which it ends.
            busy += min(1.0, fresh["busy_seconds"] / fresh["uptime_seconds"])
        replica.counted = replica.counts
        replica.save(update_fields=["counted"])
    _add_to_totals(deployment, total, latencies)
    previous = deployment.samples.order_by("-ended_at").first()
    servers = deployment.inference_cluster.servers.aggregate(
        home=Count("pk", filter=Q(lending_state=LendingState.INFERENCE)), known=Count("pk")
    )
    sample = DeploymentSample.objects.create(
        deployment=deployment,
        began_at=deployment.created_at if previous is None else previous.ended_at,
        ended_at=now,
        busy_servers=busy,
        latencies=latencies,
        p50_seconds=latency_percentile(latencies, 0.5),
        p95_seconds=latency_percentile(latencies, 0.95),
        p99_seconds=latency_percentile(latencies, 0.99),
        serving=deployment.replicas.filter(state__in=ANSWERING_STATES).count(),
        wanted=deployment.wanted_servers,
        servers_home=servers["home"],
        servers_lent=servers["known"] - servers["home"],
        **total,
    )
    hint_pages(deployment)
    return sample


def _add_to_totals(deployment: Deployment, fresh: dict[str, Any], latencies: Sequence[int]) -> None:
    if not any(fresh.values()):
        return
    before = deployment.totals
    known = before.get("latencies", [0] * LATENCY_BUCKETS)
    deployment.totals = {
        **{name: before.get(name, 0) + count for name, count in fresh.items()},
        "latencies": [sum(counts) for counts in zip(known, latencies, strict=True)],
    }
    deployment.save(update_fields=["totals"])


def _since_previous(replica: Replica) -> dict[str, Any]:
    before, now = replica.counted, replica.counts
    fresh: dict[str, Any] = {
        name: max(0, now[name] - before.get(name, 0)) for name in (*_SUMMED, "uptime_seconds")
    }
    pairs = zip_longest(now["latencies"], before.get("latencies", []), fillvalue=0)
    fresh["latencies"] = [max(0, count - counted) for count, counted in pairs]
    return fresh


def _note_latency(deployment: Deployment, sample: DeploymentSample) -> None:
    """Store the time since which every sample with requests is above the latency target."""
    target = deployment.latency_target_seconds
    is_slow = target is not None and sample.p95_seconds is not None and sample.p95_seconds > target
    since = (deployment.slow_since or sample.began_at) if is_slow else None
    if since != deployment.slow_since:
        deployment.slow_since = since
        deployment.save(update_fields=["slow_since"])


def _scale(deployment: Deployment) -> None:
    """Store how many servers the deployment needs by its newest samples."""
    newest = list(deployment.samples.order_by("-ended_at")[:CALM_PERIODS])
    before = deployment.wanted_servers
    wanted = wanted_servers(
        deployment.scaling_rule(), before, [load_of(sample) for sample in reversed(newest)]
    )
    serving = deployment.replicas.filter(state=ReplicaState.SERVING).count()
    # The samples do not yet include servers that are still starting.
    is_settled = serving >= before
    if wanted.servers == before or (wanted.servers > before and not is_settled):
        return
    deployment.wanted_servers, deployment.wanted_reason = wanted.servers, wanted.reason[:300]
    deployment.save(update_fields=["wanted_servers", "wanted_reason"])
    record(deployment, "scaled", f"From {before} to {wanted.servers} servers: {wanted.reason}.")
    wake("steer_deployments")


def load_of(sample: DeploymentSample) -> Load:
    """Return the scaling rule's input for a sample."""
    return Load(
        busy_servers=sample.busy_servers,
        service_seconds=sample.busy_seconds / sample.batches if sample.batches else 0.0,
        latency_seconds=sample.p95_seconds,
        refused=sample.refused,
    )
