"""Sizes and fewest devices: published tables, worked examples, properties."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moe.moesys.capacity import (
    ONLY_GPUS,
    DeviceCapacity,
    TrainingDemands,
    fewest_gpus_without_tiers,
    fit,
)
from moe.moesys.choices import Tier
from moe.moesys.sizes import ModelShape, ModelSizes

GB = 1e9
SERVER = DeviceCapacity(640 * GB, 1000 * GB, 8000 * GB)
EXPERTS_128 = ModelShape(50304, 4096, 12, 128).sizes


def strict(alpha):
    return TrainingDemands(alpha=alpha, strict_paper=True)


@pytest.mark.parametrize(
    ("experts", "sparse", "billions", "published"),
    [
        (8, 12_884_901_888, 13.896, 13.9),
        (16, 25_769_803_776, 26.781, 26.8),
        (32, 51_539_607_552, 52.551, 52.6),
        (64, 103_079_215_104, 104.091, 104.1),
        (128, 206_158_430_208, 207.170, 207.2),
    ],
)
def test_t1_sizes_are_those_of_table_2(experts, sparse, billions, published):
    sizes = ModelShape(50304, 4096, 12, experts).sizes
    assert (sizes.dense, sizes.sparse) == (1_011_351_552, sparse)
    assert sizes.parameters / 1e9 == pytest.approx(billions, abs=5e-4)
    assert round(sizes.parameters / 1e9, 1) == published
    assert sizes.expert_parameters == 2 * 4 * 4096**2


@pytest.mark.parametrize(
    ("alpha", "gpu", "cpu", "devices", "by_tier", "binding"),
    [
        (0.25, 33.361, 824.634, 1, (1, 1, 1), Tier.GPU),
        (0.5, 50.541, 1649.267, 2, (1, 2, 1), Tier.CPU),
        (1.0, 84.901, 3298.535, 4, (1, 4, 1), Tier.CPU),
    ],
)
def test_v1_fewest_devices_of_the_207_billion_model(alpha, gpu, cpu, devices, by_tier, binding):
    fitted = fit(EXPERTS_128, SERVER, strict(alpha))
    assert [fitted.needed_bytes[tier] / GB for tier in Tier] == pytest.approx([gpu, cpu, 2473.901], abs=5e-4)
    assert (fitted.devices, fitted.binding) == (devices, binding)
    assert tuple(fitted.by_tier.values()) == by_tier


def test_v1_a_small_disk_binds():
    fitted = fit(EXPERTS_128, replace(SERVER, ssd_bytes=2000 * GB), strict(0.25))
    assert (fitted.devices, fitted.binding) == (2, Tier.SSD)


def test_v1_on_gpus_alone_six_devices_are_needed():
    fitted = fit(EXPERTS_128, SERVER, strict(1.0), ONLY_GPUS)
    assert fitted.needed_bytes[Tier.GPU] / GB == pytest.approx(3314.717, abs=5e-4)
    assert (fitted.devices, fitted.binding) == (6, Tier.GPU)


@pytest.mark.parametrize(("alpha", "gpus"), [(0.25, 8), (1.0, 32)])
def test_tiers_lower_the_gpus_of_the_207_billion_model(alpha, gpus):
    fitted = fit(EXPERTS_128, SERVER, TrainingDemands(alpha=alpha, activation_bytes=12.4 * GB))
    assert fitted.devices is not None
    assert fitted.devices * SERVER.gpus == gpus


def test_activations_alone_can_exceed_any_number_of_devices():
    fitted = fit(EXPERTS_128, SERVER, TrainingDemands(activation_bytes=81 * GB))
    assert (fitted.devices, fitted.binding) == (None, Tier.GPU)


@pytest.mark.parametrize("experts", [8, 16, 32, 64, 128])
def test_without_tiers_table_2_needs_a_gpu_for_each_expert(experts):
    sizes = ModelShape(50304, 4096, 12, experts).sizes
    assert fewest_gpus_without_tiers(sizes, 80 * GB, 12.4 * GB, 4096) == experts
    assert fewest_gpus_without_tiers(sizes, 80 * GB, 12.4 * GB, experts - 1) is None


SIZES = st.builds(
    ModelSizes,
    dense=st.floats(0, 1e10),
    sparse=st.floats(0, 1e12),
    layers=st.integers(1, 64),
    experts=st.integers(1, 256),
)
DEVICES = st.builds(
    DeviceCapacity,
    gpu_bytes=st.floats(1e9, 1e12),
    cpu_bytes=st.floats(1e9, 1e13),
    ssd_bytes=st.floats(1e9, 1e14),
    gpus=st.integers(1, 16),
)
SHARES = st.floats(0.01, 1.0)


def fewest(sizes, device, demands):
    devices = fit(sizes, device, demands).devices
    return 1 << 30 if devices is None else devices


@settings(max_examples=30)
@given(SIZES, DEVICES, SHARES, st.floats(1.0, 4.0), st.sampled_from(Tier), st.booleans())
def test_more_capacity_never_needs_more_devices(sizes, device, alpha, more, tier, paper):
    demands = TrainingDemands(alpha=alpha, activation_bytes=1e8, strict_paper=paper)
    larger = replace(device, **{f"{tier.value}_bytes": device.of(tier) * more})
    assert fewest(sizes, larger, demands) <= fewest(sizes, device, demands)


@settings(max_examples=30)
@given(SIZES, DEVICES, SHARES, SHARES, st.booleans())
def test_more_active_experts_never_need_fewer_devices(sizes, device, one, other, paper):
    low, high = sorted((one, other))
    demands = TrainingDemands(alpha=low, strict_paper=paper)
    assert fewest(sizes, device, demands) <= fewest(sizes, device, replace(demands, alpha=high))


@settings(max_examples=30)
@given(SIZES, DEVICES, SHARES)
def test_the_corrected_form_never_needs_less_than_the_paper(sizes, device, alpha):
    corrected, paper = TrainingDemands(alpha=alpha), strict(alpha)
    assert fewest(sizes, device, corrected) >= fewest(sizes, device, paper)
    corrected_fit, paper_fit = (fit(sizes, device, demands) for demands in (corrected, paper))
    if corrected_fit.devices == paper_fit.devices:
        for tier in Tier:
            assert corrected_fit.fullest_bytes[tier] >= paper_fit.fullest_bytes[tier] * (1 - 1e-12)


@settings(max_examples=30)
@given(SIZES, DEVICES, SHARES)
def test_the_published_form_is_three_quotients(sizes, device, alpha):
    fitted = fit(sizes, device, strict(alpha))
    on_gpu = 16 * sizes.dense + 4 * alpha * sizes.sparse / sizes.layers
    needed = (on_gpu, 16 * alpha * sizes.sparse, 12 * sizes.sparse)
    for tier, bytes_ in zip(Tier, needed, strict=True):
        devices = fitted.by_tier[tier]
        assert devices is not None
        assert devices == pytest.approx(max(1, ceil(bytes_ / device.of(tier))), abs=1 if bytes_ else 0)
        assert bytes_ <= device.of(tier) * devices * (1 + 1e-12)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: TrainingDemands(alpha=1.1), "alpha"),
        (lambda: TrainingDemands(free_disk=1.0), "free_disk"),
        (lambda: ModelSizes(-1, 0, 1, 1), "dense"),
        (lambda: ModelSizes(1, 0, 1, 0), "experts"),
        (lambda: DeviceCapacity(0, 1, 1), "gpu_bytes"),
        (lambda: fit(EXPERTS_128, SERVER, TrainingDemands(), frozenset({Tier.GPU, Tier.SSD})), "tiers"),
    ],
)
def test_an_error_names_the_argument(make, field):
    with pytest.raises(ValueError, match=field):
        make()
