"""Zen's plan of a model: predictions, digests, curves over workers, and when a plan is given up."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from communication.plan import content_digest
from communication.profiles.link import LinkProfile, LinkRate
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape
from communication.zen.choosing import OperationTimes
from communication.zen.densification import Densification
from communication.zen.drift import MOST_IMBALANCE, WindowReport, has_drifted, reason_to_fall_back
from communication.zen.iteration import BUCKET_BYTES, FIRST_BUCKET_BYTES, dense_traffic
from communication.zen.plan import plan_sparse
from communication.zen.profile import SparsityProfile
from communication.zen.schemes import Scheme
from communication.zen.throughput import predicted_curve

LINKS = LinkProfile(between=LinkRate(1e-4, 3.125e9), within=LinkRate(1e-5, 1e11))
EMBEDDING = 512 * 200_000
MODEL = ModelProfile(
    "recommender",
    ("mlp.1", "mlp.0", "embedding"),
    np.array([4_000_000, 4_000_000, EMBEDDING]),
    np.array([0.01, 0.02, 0.03]),
    other_seconds=0.05,
)
SPARSE = SparsityProfile("embedding", EMBEDDING, 512, Densification(0.01, 0.7))
SPREAD = PlacementShape(8, 1)


def plan(model: ModelProfile = MODEL, placement: PlacementShape = SPREAD, **more):
    return plan_sparse("job 1", model, [SPARSE], placement, LINKS, **more)


def test_a_plan_has_a_message_with_its_digest():
    sparse_plan = plan()
    assert sparse_plan.planner == "zen"
    assert sparse_plan.lossless
    message = sparse_plan.to_message()
    assert message["digest"] == sparse_plan.digest == content_digest(message)
    assert json.loads(json.dumps(message)) == message
    assert message["tensors"][0]["scheme"] == "zen"
    assert len(message["seeds"]) == 4


def test_only_equal_questions_share_a_digest():
    digests = {plan().digest}
    assert digests == {plan().digest}
    assert plan(times=OperationTimes(seconds_per_unit=1e-12)).digest in digests, (
        "the digest excludes predictions"
    )
    assert plan(placement=PlacementShape(4, 1)).digest not in digests
    assert plan_sparse("job 2", MODEL, [SPARSE], SPREAD, LINKS).digest not in digests


def test_a_prediction_adds_up():
    sparse_plan = plan()
    dense = dense_traffic(MODEL, SPREAD, LINKS, {"embedding"})
    exchange = sparse_plan.tensors[0].cost
    expected = 0.05 + max(0.06, dense.end_seconds) + exchange.seconds
    assert sparse_plan.predicted.iteration_seconds == pytest.approx(expected)
    assert sparse_plan.predicted.bytes_between == pytest.approx(dense.bytes_between + exchange.received_bytes)
    assert sparse_plan.predicted.bytes_within == 0.0
    assert sparse_plan.predicted_dense.bytes_between == pytest.approx(2 * 7 / 8 * 4 * MODEL.parameters)
    assert sparse_plan.predicted.iteration_seconds < sparse_plan.predicted_dense.iteration_seconds / 2
    assert sparse_plan.buffer_bytes > 8 * SPARSE.units


def test_sparse_tensors_are_sent_after_the_backward_pass():
    alone = ModelProfile("m", ("embedding",), np.array([EMBEDDING]), np.array([2.0]), other_seconds=0.5)
    sparse_plan = plan_sparse("job", alone, [SPARSE], SPREAD, LINKS)
    assert sparse_plan.predicted.iteration_seconds == pytest.approx(2.5 + sparse_plan.tensors[0].cost.seconds)


def test_buckets_leave_as_soon_as_they_are_full():
    elements = np.array([FIRST_BUCKET_BYTES // 4, BUCKET_BYTES // 4, 10])
    model = ModelProfile("m", ("a", "b", "c"), elements, np.array([1.0, 2.0, 3.0]))
    links = LinkProfile(between=LinkRate(0.5, 1e6), within=LinkRate(0.0, 1e9))
    traffic = dense_traffic(model, PlacementShape(2, 1), links)
    first, second, last = ((size / 1e6 + 0.5) for size in (FIRST_BUCKET_BYTES, BUCKET_BYTES, 40))
    assert traffic.end_seconds == pytest.approx(max(1.0 + first, 3.0) + second + last)
    assert traffic.bytes_between == pytest.approx(FIRST_BUCKET_BYTES + BUCKET_BYTES + 40)
    assert dense_traffic(model, PlacementShape(1, 1), links).bytes_between == 0.0


@pytest.mark.parametrize("place", range(3))
def test_the_last_bucket_waits_for_no_separately_sent_gradient(place: int):
    """The gradient that is sent separately may be ready first, in the middle or last."""
    elements, gaps = np.array([10, 10, 10]), np.array([1.0, 2.0, 4.0])
    names = ("a", "b", "c")
    links = LinkProfile(between=LinkRate(0.5, 1e6), within=LinkRate(0.0, 1e9))
    model = ModelProfile("m", names, elements, gaps)
    traffic = dense_traffic(model, PlacementShape(2, 1), links, {names[place]})
    ready = 3.0 if place == 2 else 7.0
    assert traffic.end_seconds == pytest.approx(ready + 0.5 + 80 / 1e6)
    assert traffic.bytes_between == pytest.approx(80)


def test_several_gpus_on_a_server_add_up_first():
    sparse_plan = plan(placement=PlacementShape(4, 2))
    assert sparse_plan.tensors[0].participants == 4
    # A GPU receives within its server only its share of each all-reduce.
    assert sparse_plan.predicted.bytes_within == pytest.approx(2 * 1 / 2 * 4 * MODEL.parameters)


def test_a_tensor_sent_during_the_backward_pass_stays_dense():
    """The tensor's gradient is ready first, while the link is idle."""
    early = ModelProfile(
        "m", ("embedding", "rest"), np.array([EMBEDDING, 1000]), np.array([0.01, 5.0]), other_seconds=0.1
    )
    sparse_plan = plan_sparse("job", early, [SPARSE], SPREAD, LINKS)
    assert sparse_plan.tensors[0].scheme is Scheme.DENSE
    assert sparse_plan.predicted == sparse_plan.predicted_dense
    assert sparse_plan.sparse_tensors == ()
    assert sparse_plan.buffer_bytes == 0


def test_each_tensor_is_sent_during_or_after_the_backward_pass():
    """The first table's gradient is ready long before the second's, which comes last."""
    names = ("early", "rest", "late")
    model = ModelProfile("m", names, np.array([EMBEDDING, 1000, EMBEDDING]), np.array([0.01, 5.0, 0.1]))
    profiles = [replace(SPARSE, tensor=name) for name in ("early", "late")]
    sparse_plan = plan_sparse("job", model, profiles, SPREAD, LINKS)
    assert [tensor.scheme for tensor in sparse_plan.tensors] == [Scheme.DENSE, Scheme.ZEN]
    both = sum(tensor_plan.cost_of(Scheme.ZEN).seconds for tensor_plan in sparse_plan.tensors)
    assert sparse_plan.predicted.iteration_seconds < min(
        5.11 + both, sparse_plan.predicted_dense.iteration_seconds
    )


@given(
    st.lists(
        st.tuples(st.integers(1, 200), st.floats(0.0, 1.0), st.floats(0.0, 1.0)), min_size=1, max_size=5
    ),
    st.lists(st.floats(0.0, 0.2), min_size=5, max_size=5),
    st.builds(PlacementShape, st.integers(1, 32), st.integers(1, 8)),
    st.floats(1e6, 1e10),
)
def test_a_plan_is_never_slower_than_dense_or_one_scheme_for_all(tables, gaps, placement, rate):
    profiles = [
        SparsityProfile(f"t{place}", 1000 * rows, 10, Densification(density, beta))
        for place, (rows, density, beta) in enumerate(tables)
    ]
    model = ModelProfile(
        "m",
        tuple(profile.tensor for profile in profiles),
        np.array([item.elements for item in profiles]),
        np.array(gaps[: len(profiles)]),
    )
    links = LinkProfile(between=LinkRate(1e-4, rate), within=LinkRate(1e-5, 20 * rate))
    sparse_plan = plan_sparse("job", model, profiles, placement, links)
    assert sparse_plan.predicted.iteration_seconds <= sparse_plan.predicted_dense.iteration_seconds
    compute_and_dense = model.compute_seconds
    for scheme in (Scheme.ZEN, Scheme.AGSPARSE, Scheme.SPARCML, Scheme.SPARSE_PS):
        if all(scheme in {cost.scheme for cost in tensor.costs} for tensor in sparse_plan.tensors):
            uniform = compute_and_dense + sum(item.cost_of(scheme).seconds for item in sparse_plan.tensors)
            assert sparse_plan.predicted.iteration_seconds <= uniform + 1e-9


def test_profiles_of_other_models_are_refused():
    with pytest.raises(ValueError, match="does not have"):
        plan_sparse("job", MODEL, [replace(SPARSE, tensor="other")], SPREAD, LINKS)
    with pytest.raises(ValueError, match="51200 in its sparsity profile"):
        plan_sparse("job", MODEL, [replace(SPARSE, elements=51_200)], SPREAD, LINKS)
    with pytest.raises(ValueError, match="two sparsity profiles"):
        plan_sparse("job", MODEL, [SPARSE, SPARSE], SPREAD, LINKS)


def test_the_curve_over_workers():
    placements = [PlacementShape(servers, 1) for servers in (8, 1, 2, 4, 16)]
    points = predicted_curve("job", MODEL, [SPARSE], placements, LINKS, measured_workers=1)
    assert [point.workers for point in points] == [1, 2, 4, 8, 16]
    assert points[0].plan.predicted.iteration_seconds == pytest.approx(MODEL.compute_seconds)
    assert all(point.speedup >= 1.0 for point in points)
    assert points[-1].speedup > 3.0
    # The same global batch touches the same rows for any number of workers.
    totals = [p.plan.tensors[0].profile.densification.after(p.workers) for p in points]
    assert totals == pytest.approx([0.01] * 5)
    grown = predicted_curve("job", MODEL, [SPARSE], placements, LINKS, measured_workers=None)
    assert grown[-1].iterations_per_second < points[-1].iterations_per_second
    measured = predicted_curve(
        "job", MODEL, [SPARSE], placements, LINKS, compute_seconds={16: 2 * MODEL.compute_seconds}
    )
    assert measured[-1].iterations_per_second < points[-1].iterations_per_second
    assert measured[0].iterations_per_second == points[0].iterations_per_second


def test_less_overlap_bends_the_curve_earlier():
    apart = replace(SPARSE, densification=Densification(0.01, 1.0))
    placements = [PlacementShape(servers, 1) for servers in (2, 16)]
    shared, unshared = (
        predicted_curve("job", MODEL, [profile], placements, LINKS, measured_workers=None)
        for profile in (SPARSE, apart)
    )
    assert shared[1].iterations_per_second / shared[0].iterations_per_second > (
        unshared[1].iterations_per_second / unshared[0].iterations_per_second
    )


def test_a_plan_is_given_up_for_imbalance_or_lasting_slowness():
    assert reason_to_fall_back(WindowReport([1.0] * 100), 1.0) is None
    assert reason_to_fall_back(WindowReport([1.2] * 49 + [1.0] + [1.2] * 49), 1.0) is None
    slow = reason_to_fall_back(WindowReport([1.0] + [1.2] * 50), 1.0)
    assert slow is not None
    assert "50 iterations" in slow
    uneven = reason_to_fall_back(WindowReport([1.0], push_imbalance=1.0, pull_imbalance=1.3), 1.0)
    assert uneven is not None
    assert "1.30 times" in uneven
    assert reason_to_fall_back(WindowReport([1.0], push_imbalance=MOST_IMBALANCE), 1.0) is None


def test_a_density_drifts_by_a_fifth():
    assert not has_drifted(0.05, 0.0599)
    assert has_drifted(0.05, 0.0601)
    assert has_drifted(0.05, 0.03)
    assert not has_drifted(0.0, 0.0)
