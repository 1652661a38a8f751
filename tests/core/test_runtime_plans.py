"""The runtime plan of a generation is a pure function, identified by its digest."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from communication.profiles.link import LinkRate
from scheduling.core.runtime_plans.choosing import choose_plan_family, choose_runtime_plan
from scheduling.core.runtime_plans.plan import RuntimePlan, Shape, Synchroniser
from workers.runtime.runtime_plan import RuntimePlan as PlanOfAWorker
from workers.runtime.synchronisation.kinds import KINDS

NAMES = st.text(min_size=1, max_size=8)
SYNCHRONISERS = st.builds(
    Synchroniser,
    NAMES,
    st.dictionaries(NAMES, st.integers() | st.booleans(), max_size=3).map(lambda one: tuple(one.items())),
)
PLANS = st.builds(
    RuntimePlan,
    st.just(choose_plan_family()),
    st.sampled_from(Shape),
    st.lists(SYNCHRONISERS, max_size=3).map(tuple),
    link=st.none() | st.builds(LinkRate, st.floats(0.0, 1.0), st.floats(1.0, 1e12)),
)


@given(st.lists(st.integers(0, 3), min_size=1))
def test_same_placement_gets_the_same_plan_with_its_shape(servers: list[int]) -> None:
    plan = choose_runtime_plan(servers)
    assert plan == choose_runtime_plan(servers)
    assert plan.shape == ("packed" if len(set(servers)) == 1 else "spread")


def test_the_shape_changes_the_digest_and_not_the_family() -> None:
    packed, spread = choose_runtime_plan([1, 1]), choose_runtime_plan([1, 2])
    assert packed.digest != spread.digest
    assert packed.family == spread.family == choose_plan_family()


def test_a_plan_cannot_be_changed_once_it_is_made() -> None:
    with pytest.raises(FrozenInstanceError):
        choose_runtime_plan([1]).shape = Shape.SPREAD  # type: ignore[misc]


def test_workers_support_every_planned_synchroniser() -> None:
    planned = choose_runtime_plan([1, 2]).synchronisers
    assert planned
    for synchroniser in planned:
        KINDS[synchroniser.kind](dict(synchroniser.choices))


@given(PLANS)
def test_worker_reads_the_sent_plan_with_the_same_digest(plan: RuntimePlan) -> None:
    """The database may have reordered the message's fields."""
    message = json.loads(json.dumps(plan.to_message(), sort_keys=True))
    read = PlanOfAWorker.from_message(message)
    assert (read.digest, read.link) == (plan.digest, plan.link)
    assert [(synchroniser.kind, synchroniser.choices) for synchroniser in read.synchronisers] == [
        (synchroniser.kind, dict(synchroniser.choices)) for synchroniser in plan.synchronisers
    ]


@given(PLANS, PLANS)
def test_plans_have_equal_digests_only_with_equal_contents(first: RuntimePlan, second: RuntimePlan) -> None:
    contents = [{**plan.to_message(), "digest": None} for plan in (first, second)]
    # Compared as JSON, since 1 == True in Python.
    same = json.dumps(contents[0], sort_keys=True) == json.dumps(contents[1], sort_keys=True)
    assert (first.digest == second.digest) == same


@given(PLANS)
def test_a_plan_that_was_altered_on_its_way_is_refused(plan: RuntimePlan) -> None:
    altered = replace(plan, synchronisers=(*plan.synchronisers, Synchroniser("another")))
    with pytest.raises(ValueError, match="has the digest"):
        PlanOfAWorker.from_message({**altered.to_message(), "digest": plan.digest})
