"""The communication plans that new generations follow.

Jobs without gradient plans, which include all jobs of unmeasured gradients, cost no query.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from scheduling.core.runtime_plans.choosing import (
    CARRIED_OUT,
    GradientOrders,
    choose_runtime_plan,
    uniform_shape,
)
from scheduling.core.runtime_plans.expert_families import (
    gradients_of,
    with_gradients,
    without_gradient_plan,
)
from scheduling.core.runtime_plans.plan import PlanFamily, RuntimePlan
from scheduling.curve_keys import function_key_on
from scheduling.models import GradientPlan, Job


class FollowedPlans:
    """Communication plans of jobs on given kinds of GPU, by number of GPUs and placement shape."""

    def __init__(self, jobs: Iterable[tuple[Job, str]], measured: Mapping[str, str] | None = None) -> None:
        """`measured`: the measured plan family by job id, where it differs from that of the job's curve."""
        keys = {}
        families = set()
        self._unplanned: dict[str, str] = {}
        for job, kind in jobs:
            of_curve = PlanFamily.DENSE.value if job.curve is None else job.curve.plan_family
            family = (measured or {}).get(job.pk, of_curve)
            gradients = gradients_of(family)
            self._unplanned[job.pk] = without_gradient_plan(family)
            if gradients != PlanFamily.DENSE:
                keys[job.pk] = (function_key_on(job, kind), gradients)
                families.add(gradients)
        self._keys = keys
        self._plans: dict[tuple[str, str], list[GradientPlan]] = defaultdict(list)
        if keys:
            found = GradientPlan.objects.filter(
                profile__key__in={key for key, _ in keys.values()}, family__in=families
            ).select_related("profile")
            for plan in found.defer("profile__content", "spans"):
                self._plans[plan.profile.key, plan.family].append(plan)

    def family(self, job: Job) -> str:
        """Return the job's family if its function has plans of it; else that of no gradient plan."""
        place = self._keys.get(job.pk)
        unplanned = self._unplanned.get(job.pk, PlanFamily.DENSE.value)
        return with_gradients(unplanned, place[1]) if place in self._plans and place else unplanned

    def plan(self, job: Job, servers: Sequence[Hashable]) -> GradientPlan | None:
        """Return the plan that a generation on these servers follows, or None."""
        shape = uniform_shape(servers)
        for plan in self._of(job):
            if shape == (plan.servers, plan.gpus_per_server) and plan.profile.gpus == len(servers):
                return plan if plan.carried_out and plan.planner in CARRIED_OUT else None
        return None

    def runtime_plan(self, job: Job, servers: Sequence[Hashable], levels: Sequence[int] = ()) -> RuntimePlan:
        """Return the runtime plan of a generation with ranks on ``servers``, or of a measurement of
        ``levels``.
        """
        return choose_runtime_plan(
            servers,
            self.family(job),
            _orders(self.plan(job, servers)),
            {level: _orders(self.plan(job, servers[:level])) for level in levels if level <= len(servers)}
            if self._of(job)
            else None,
        )

    def _of(self, job: Job) -> list[GradientPlan]:
        place = self._keys.get(job.pk)
        return [] if place is None else self._plans.get(place, [])


def _orders(plan: GradientPlan | None) -> GradientOrders | None:
    if plan is None:
        return None
    messages = plan.messages
    return GradientOrders(
        messages.get("sparse"), messages.get("rest"), tuple(messages["gradients"]), messages.get("experts")
    )


def told_plan(plan: GradientPlan | None) -> Mapping[str, Any]:
    """Return what a generation's row stores of the plan that it follows; empty without a plan."""
    if plan is None:
        return {}
    return {
        "plan": plan.pk,
        "family": plan.family,
        "made_at": plan.made_at.isoformat(),
        "speedup": plan.speedup,
        "chosen": plan.chosen,
        "beaten": plan.beaten,
    }
