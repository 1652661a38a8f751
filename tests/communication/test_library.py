"""The library's profiles have the published counts, parameters and sums."""

from __future__ import annotations

import pytest

from communication.library.codec_names import LOSSY
from communication.library.codecs import WIRE_FORMATS, cpu_codec, gpu_codec
from communication.library.models import MODELS, measured_model
from communication.profiles.codec import Device

#: Tensors, parameters, sum of gaps in microseconds.
PUBLISHED = {
    "VGG16": (32, 138_357_544, 85_310),
    "LSTM": (10, 85_974_278, 71_450),
    "GPT2": (148, 124_439_808, 211_329),
    "BERT-base": (199, 108_897_794, 66_335),
    "ResNet50": (161, 25_557_032, 63_533),
    "ResNet101": (314, 44_549_160, 120_391),
    "UGATIT": (148, 670_761_088, 434_241),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_measured_model_is_the_published_one(name: str) -> None:
    model = measured_model(name, 0.25)
    figures = len(model), model.parameters, round(model.backward_seconds * 1e6)
    assert figures == PUBLISHED[name]
    assert model.gap_seconds[0] == 0.0
    assert model.elements.min() > 0
    assert model.other_seconds == 0.25


def test_published_models_exist_and_an_unknown_one_is_refused() -> None:
    assert set(MODELS) == set(PUBLISHED)
    with pytest.raises(ValueError, match="VGG16, LSTM"):
        measured_model("AlexNet")


#: Microseconds for encoding and decoding one tensor, and the compressed share of a large one.
CODECS = {
    "random-k": (88, 0.02),
    "dgc": (390, 0.02),
    "ef-signsgd": (270, 1 / 32),
    "onebit": (620, 1 / 32),
    "fp16": (26, 0.5),
}


def test_every_codec_but_none_loses_something() -> None:
    assert ("none", *LOSSY) == tuple(WIRE_FORMATS)


@pytest.mark.parametrize("name", CODECS)
def test_codecs_take_the_measured_times(name: str) -> None:
    both, ratio = CODECS[name]
    codec = gpu_codec(name)
    sizes = [1, 1 << 20, 3 << 20]
    seconds = codec.seconds_to_encode(sizes) + codec.seconds_to_decode(sizes)
    assert seconds * 1e6 == pytest.approx([both, both, 3 * both])
    assert codec.wire.ratio() == pytest.approx(ratio)
    assert codec.wire.bytes(1 << 20) == pytest.approx(ratio * 4 * (1 << 20), rel=1e-4)
    assert not codec.exact


def test_compressing_twice_takes_longer() -> None:
    codec = gpu_codec("dgc", two_levels=True)
    assert (codec.seconds_to_encode([1]) + codec.seconds_to_decode([1]))[0] == pytest.approx(1400e-6)
    with pytest.raises(ValueError, match="no published times of 'fp16'"):
        gpu_codec("fp16", two_levels=True)


def test_the_codec_none_is_free_and_exact() -> None:
    codec = gpu_codec("none")
    assert codec.exact
    assert codec.seconds_to_encode([1 << 30])[0] == 0.0
    assert codec.wire.bytes(1000) == 4000


def test_processors_take_time_in_proportion() -> None:
    codec = cpu_codec("dgc", 8e9)
    assert codec.device is Device.CPU
    assert codec.seconds_to_encode([250_000_000])[0] == pytest.approx(1.0)
    assert set(LOSSY) == set(WIRE_FORMATS) - {"none"}
    for wrong in ("none", "gzip"):
        with pytest.raises(ValueError, match="there is no codec"):
            cpu_codec(wrong)
    with pytest.raises(ValueError, match="finite and positive"):
        cpu_codec("dgc", 0.0)
