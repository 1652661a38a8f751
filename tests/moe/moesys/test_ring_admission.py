"""Admission of ring jobs: vector V8, the stand-in of MoESys, latencies and remedies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moe.moesys.choices import Pinning, Remedy
from moe.moesys.ring_admission import RingRequest, admit_ring, predict_ring

GB = 1e9
#: Two experts for each layer and GPU with h = 3072. Other jobs have the rest of the GPU.
STAND_IN = RingRequest(
    layers=24, layer_bytes=302e6, gpu_bytes=8 * GB, compute_seconds=0.013, dense_bytes=2.12 * GB,
    activation_bytes=2 * GB, gpus=16,
)  # fmt: skip


def test_v8_six_layers_in_three_sections():
    request = RingRequest(6, 3.0, 100.0, 2.0, host_bytes_per_second=1.0, pinning=Pinning.NONE)
    assert request.load_seconds == 3.0
    firsts = [predict_ring(request, sections)[0] for sections in (1, 2, 3, 4, 5, 6)]
    assert firsts == [27, 16, 13, 12, 12, 12]
    assert [predict_ring(request, sections)[1] for sections in (2, 3, 5)] == [18, 18, 18]
    assert admit_ring(request).fewest_sections == 4
    assert predict_ring(replace(request, pinning=Pinning.SPREAD), 4)[1] == 12


def test_the_largest_ring_that_fits_is_chosen():
    admission = admit_ring(STAND_IN)
    assert admission.sections == 12
    assert admission.bytes == pytest.approx(2.12 * GB + 12 * 302e6 + 2 * GB)
    assert admission.steady_seconds == pytest.approx(24 * 0.013)
    assert (admission.is_admitted, admission.is_resident, admission.is_load_bound) == (True, False, False)
    resident = admit_ring(replace(STAND_IN, gpu_bytes=40 * GB))
    assert (resident.sections, resident.is_resident, resident.pinned) == (24, True, ())


def test_spread_layers_meet_a_latency_that_a_plain_ring_misses():
    """24 layers, 12 sections, c = 4 and l = 12: 288 for the plain ring, 168 with spread layers."""
    slow = RingRequest(24, 12.0, 12 * 12.0, 4.0, host_bytes_per_second=1.0, latency_seconds=200.0)
    spread, plain = admit_ring(slow), admit_ring(replace(slow, pinning=Pinning.NONE))
    assert (spread.sections, spread.steady_seconds, len(spread.pinned)) == (12, 168.0, 10)
    assert (plain.steady_seconds, plain.is_admitted, spread.is_admitted) == (288.0, False, True)
    assert (plain.binding, spread.is_load_bound) == ("deadline", True)


def test_a_slow_job_gets_a_remedy():
    slow = RingRequest(
        24, 12.0, 4 * 12.0, 4.0, host_bytes_per_second=1.0, latency_seconds=150.0, gpus=2
    )  # fmt: skip
    admission = admit_ring(slow)
    assert (admission.is_admitted, admission.remedy) == (False, Remedy.MORE_GPUS)
    assert admission.remedy_gpus is not None
    times = admission.remedy_gpus // 2
    more = replace(slow, gpus=admission.remedy_gpus, layer_bytes=12.0 / times)
    assert admit_ring(more).is_admitted
    assert not admit_ring(
        replace(slow, gpus=admission.remedy_gpus // 2, layer_bytes=24.0 / times)
    ).is_admitted
    assert admit_ring(replace(slow, latency_seconds=90.0)).remedy is Remedy.FASTER_COMPUTATION


def test_a_job_that_fits_nowhere_names_device_memory():
    admission = admit_ring(replace(STAND_IN, gpu_bytes=4 * GB))
    assert (admission.sections, admission.is_admitted, admission.binding) == (None, False, "gpu")
    assert (admission.steady_seconds, admission.remedy) == (None, Remedy.REJECT)


@settings(max_examples=20)
@given(st.integers(1, 20), st.integers(1, 20), st.floats(0.1, 5), st.floats(0.1, 5), st.integers(1, 3))
def test_rings_that_share_a_path_are_never_faster(layers, room, compute, load, rings):
    request = RingRequest(layers, load, room * load * 1.001, compute, host_bytes_per_second=1.0)
    shared = admit_ring(replace(request, rings=rings)).steady_seconds
    alone = admit_ring(request).steady_seconds
    assert (shared is None) == (alone is None)
    if alone is not None and shared is not None:
        assert shared >= alone * (1 - 1e-9)
        assert alone >= layers * compute * (1 - 1e-9)
        plain = admit_ring(replace(request, pinning=Pinning.NONE)).steady_seconds
        assert plain is not None
        assert alone <= plain * (1 + 1e-9)


@pytest.mark.parametrize(
    ("field", "value"),
    [("layers", 0), ("layers", 5000), ("layer_bytes", 0), ("host_bytes_per_second", 0), ("rings", 0),
     ("gpus", 0), ("compute_seconds", -1), ("latency_seconds", 0), ("dense_bytes", -1)],
)  # fmt: skip
def test_an_error_names_the_argument(field, value):
    with pytest.raises(ValueError, match=field):
        replace(STAND_IN, **{field: value})
    with pytest.raises(ValueError, match="sections"):
        predict_ring(STAND_IN, 0)
