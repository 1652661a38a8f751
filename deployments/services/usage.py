"""The usage of an inference cluster that its deployments schedule: the measured share of its servers that
their load takes, in place of an external scheduler's reports (Lyra section 3.6)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.db.models import Count

from cluster.models import Gpu
from deployments.core.places import servers_used
from deployments.core.scaling import servers_demanded
from deployments.models import DeploymentSample
from deployments.services.sampling import load_of
from lending.models import InferenceCluster, UsageSample
from lending.services.usage import usage_report


def report_usage(inference_cluster: InferenceCluster, now: datetime) -> None:
    """Store the usage of the newest completed period, unless it is already stored."""
    period = inference_cluster.period_seconds
    ends_at = datetime.fromtimestamp(now.timestamp() // period * period, tz=UTC)
    servers = inference_cluster.servers.count()
    if not servers or inference_cluster.usage_samples.filter(period_ends_at__gte=ends_at).exists():
        return
    usage = _servers_used(inference_cluster, ends_at - timedelta(seconds=period), ends_at) / servers
    sample = {"period_ends_at": ends_at, "usage": min(1.0, usage), "source": UsageSample.MEASURED}
    usage_report(inference_cluster=inference_cluster, samples=[sample])


def gpus_per_server(inference_cluster: InferenceCluster) -> int:
    """Return the fewest GPUs that a server of the inference cluster has, at least 1."""
    counts = (
        Gpu.objects.filter(server__inference_cluster=inference_cluster, healthy=True)
        .order_by()
        .values("server_id")
        .annotate(count=Count("pk"))
        .values_list("count", flat=True)
    )
    return min(counts, default=1)


def _servers_used(inference_cluster: InferenceCluster, since: datetime, until: datetime) -> float:
    """Return the mean number of servers that the load took in this time. Samples are weighted by their
    overlap with it."""
    demands: dict[str, float] = {}
    samples = DeploymentSample.objects.filter(
        deployment__inference_cluster=inference_cluster, ended_at__gt=since, began_at__lt=until
    )
    for sample in samples.defer("latencies").select_related("deployment"):
        shared = min(until, sample.ended_at) - max(since, sample.began_at)
        demand = servers_demanded(sample.deployment.scaling_rule(), sample.serving, load_of(sample))
        demands[sample.deployment_id] = demands.get(sample.deployment_id, 0.0) + demand * (
            shared / (until - since)
        )
    return servers_used(demands.values(), gpus_per_server(inference_cluster))
