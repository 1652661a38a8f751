"""The panels of each page. A new panel needs one file here and one line below."""

from __future__ import annotations

from typing import Any

from dashboard.figures.cluster import (
    cluster_recovery,
    combined_usage,
    deadlines,
    gpus_by_server,
    inference_usage,
    lending_servers,
    link_matrix,
    recovery_phases,
    slack,
    utilisation,
    waiting_jobs,
)
from dashboard.figures.deployments import (
    deployment_batches,
    deployment_experts,
    deployment_latencies,
    deployment_placement,
    deployment_requests,
    deployment_servers,
)
from dashboard.figures.jobs import (
    expert_homes,
    expert_load,
    expert_rows,
    job_communication,
    job_gpus,
    job_iteration,
    job_metrics,
    job_progress,
    job_recovery_points,
    job_throughput,
    job_tiers,
    scaling_curve,
)
from dashboard.figures.panel import Panel, PanelRequest

OVERVIEW_PANELS: dict[str, Panel[Any]] = {
    "gpus-by-server": gpus_by_server.PANEL,
    "utilisation": utilisation.PANEL,
    "waiting-jobs": waiting_jobs.PANEL,
    "deadlines": deadlines.PANEL,
    "slack": slack.PANEL,
    "recovery": cluster_recovery.PANEL,
}

SERVERS_PANELS: dict[str, Panel[Any]] = {"links": link_matrix.PANEL}

JOB_PANELS: dict[str, Panel[Any]] = {
    "progress": job_progress.PANEL,
    "gpus": job_gpus.PANEL,
    "metrics": job_metrics.PANEL,
}

#: Panels of a job's page that are folded away until its reader opens them.
JOB_DETAIL_PANELS: dict[str, Panel[Any]] = {
    "scaling-curve": scaling_curve.PANEL,
    "throughput": job_throughput.PANEL,
    "recovery-points": job_recovery_points.PANEL,
    "communication": job_communication.PANEL,
    "iteration": job_iteration.PANEL,
    "expert-rows": expert_rows.PANEL,
    "expert-load": expert_load.PANEL,
    "expert-homes": expert_homes.PANEL,
    "tiers": job_tiers.PANEL,
}

LENDING_PANELS: dict[str, Panel[Any]] = {
    "inference-usage": inference_usage.PANEL,
    "servers": lending_servers.PANEL,
    "combined-usage": combined_usage.PANEL,
}

DEPLOYMENT_PANELS: dict[str, Panel[Any]] = {
    "requests": deployment_requests.PANEL,
    "latency": deployment_latencies.PANEL,
    "batches": deployment_batches.PANEL,
    "servers": deployment_servers.PANEL,
    "experts": deployment_experts.PANEL,
    "places": deployment_placement.PANEL,
}

RECOVERY_PANELS: dict[str, Panel[Any]] = {"phases": recovery_phases.PANEL}

__all__ = [
    "DEPLOYMENT_PANELS",
    "JOB_DETAIL_PANELS",
    "JOB_PANELS",
    "LENDING_PANELS",
    "OVERVIEW_PANELS",
    "RECOVERY_PANELS",
    "SERVERS_PANELS",
    "Panel",
    "PanelRequest",
]
