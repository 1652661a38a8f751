"""The state of a deployment that follows from its replicas and samples. Callers hold the cluster's row."""

from __future__ import annotations

from datetime import datetime, timedelta

from deployments.choices import DeploymentState, ReplicaState, RolloutState
from deployments.models import Deployment, Rollout
from deployments.services.records import move, set_reason

#: Time for which latency may be above its target before the deployment is `degraded`.
SLOW_FOR = timedelta(seconds=60)


def update_state(deployment: Deployment, rollout: Rollout | None, blocked: str, now: datetime) -> None:
    """Store the state and its reason.

    Args:
        rollout: the wanted generation.
        blocked: why it does not reach its number of servers; empty: it does.
    """
    deployment.refresh_from_db(fields=["state", "reason"])
    if rollout is None or deployment.state == DeploymentState.FAILED:
        return
    states = list(deployment.replicas.exclude(state=ReplicaState.GONE).values_list("state", flat=True))
    serving = states.count(ReplicaState.SERVING)
    is_starting = ReplicaState.STARTING in states and not blocked
    if deployment.state == DeploymentState.PREPARING and (
        serving == 0 or (serving < deployment.minimum_servers and is_starting)
    ):
        set_reason(deployment, blocked)
        return
    degraded = _why_degraded(deployment, serving, blocked, now)
    if degraded:
        move(deployment, DeploymentState.DEGRADED, degraded)
        _store_reason(deployment, degraded)
        return
    move(
        deployment,
        DeploymentState.READY,
        f"{serving} {'server answers' if serving == 1 else 'servers answer'}.",
    )
    set_reason(deployment, blocked or _given_up(deployment, rollout))


def _why_degraded(deployment: Deployment, serving: int, blocked: str, now: datetime) -> str:
    if serving < deployment.minimum_servers:
        count = (
            "No server answers"
            if serving == 0
            else f"{serving} of {deployment.minimum_servers} servers answer"
        )
        return f"{count}. {blocked}".strip() if blocked else f"{count}."
    target = deployment.latency_target_seconds
    if target is not None and deployment.slow_since is not None and now - deployment.slow_since >= SLOW_FOR:
        return f"The 95th percentile has been above {1000 * target:g} ms for a minute."
    return ""


def _given_up(deployment: Deployment, rollout: Rollout) -> str:
    newest = deployment.rollouts.filter(number=deployment.generation, state=RolloutState.FAILED)
    if not newest.exists():
        return ""
    return f"Generation {deployment.generation} was given up; generation {rollout.number} serves on."


def _store_reason(deployment: Deployment, reason: str) -> None:
    """Store a reason without recording it: `move` has recorded it, or only its numbers changed."""
    if deployment.reason != reason:
        deployment.reason = reason
        deployment.save(update_fields=["reason"])
