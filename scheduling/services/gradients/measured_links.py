"""The measured link of a placement, sent to workers with their plan."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from cluster.models import Server
from scheduling.core.runtime_plans.expert_families import has_experts
from scheduling.core.runtime_plans.plan import RuntimePlan
from scheduling.selectors.network.network import MEASURED, network_of


def with_measured_link(plan: RuntimePlan, servers: Collection[int]) -> RuntimePlan:
    """Return the plan with the slowest link between the servers, if it was measured.

    Only rows of experts choose their way by it: plans of other functions stay as they are.
    """
    if len(set(servers)) < 2 or not has_experts(plan.family):
        return plan
    slowest = network_of(Server.objects.filter(pk__in=set(servers))).slowest(servers)
    return replace(plan, link=slowest.rate) if slowest.source == MEASURED else plan
