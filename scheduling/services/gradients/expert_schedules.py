"""Lina's schedule as one of the plans that compete for a job's gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from communication.combined.choosing import without_plan
from communication.combined.plan import NO_CODEC, CandidatePlan
from communication.combined.question import PlanQuestion
from communication.zen.iteration import BUCKET_BYTES, all_reduces
from moe.lina.planning import MeasuredStep, choose_schedule
from moe.lina.shared_link import Rates

PLANNER = "lina"


def schedule_of(
    question: PlanQuestion,
    experts: Mapping[str, Any] | None,
    rates: Rates,
    expert_bytes: int | None = None,
) -> CandidatePlan | None:
    """Return the best schedule, or None if there is nothing to schedule.

    Planners predict with engines of their own. The schedule's iteration time is therefore the one predicted
    without a plan, times the simulator's ratio.

    Args:
        experts: of the gradients' record; None for a model without spread experts.
        rates: shares of a link for rows and gradients that overlap.
        expert_bytes: the most that a worker's experts may take; None if they have to stay.
    """
    # Rows of sparse embeddings are not all-reduced.
    if experts is None or question.rows or question.placement.workers == 1:
        return None
    model = question.dense_model
    reduced = all_reduces(model, question.placement, question.links)
    choice = choose_schedule(
        MeasuredStep(
            **experts,
            backward_seconds=model.backward_seconds,
            other_seconds=model.other_seconds,
            gradient_bytes=tuple(float(size) for size in model.sizes_bytes.tolist()),
            all_reduce_seconds=sum(traffic.end_seconds for _, traffic in reduced),
            bucket_bytes=BUCKET_BYTES,
            latency_seconds=question.links.rate(spread=question.placement.spread).latency_seconds,
            rates=rates,
        )
    )
    if choice is None:
        return None
    dense = without_plan(question).predicted
    seconds = dense.iteration_seconds * choice.time_ratio
    exposed = max(0.0, dense.exposed_seconds + seconds - dense.iteration_seconds)
    return CandidatePlan(
        PLANNER,
        NO_CODEC,
        lossless=True,
        predicted=replace(dense, iteration_seconds=seconds, exposed_seconds=exposed),
        experts={
            "mode": choice.mode.value,
            "partition_bytes": choice.partition_bytes,
            **({} if expert_bytes is None else {"expert_bytes": expert_bytes}),
        },
    )
