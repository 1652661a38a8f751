"""Codecs with their wire formats and published times (Espresso, Cupcake)."""

from __future__ import annotations

import numpy as np

from communication.library.codec_names import LOSSY
from communication.profiles.codec import CodecProfile, Device, WireFormat

#: Up to this number of elements (4 MiB of FP32) a GPU's time is constant; beyond, proportional to the size.
THRESHOLD_ELEMENTS = 1 << 20
SPARSE = WireFormat(kept_share=0.01, value_bits=32, index_bits=32)

#: Wire format of each codec for FP32 gradients.
WIRE_FORMATS: dict[str, WireFormat] = {
    "none": WireFormat(),
    "fp16": WireFormat(value_bits=16),
    "random-k": SPARSE,
    "dgc": SPARSE,
    # A sign for each element and the mean of absolute values; the means of negatives and of the rest.
    "ef-signsgd": WireFormat(value_bits=1, fixed_bytes=4),
    "onebit": WireFormat(value_bits=1, fixed_bytes=8),
}
#: On a V100, in microseconds: encoding plus decoding, and decoding alone.
_ONE_LEVEL = {
    "random-k": (88.0, 34.0),
    "dgc": (390.0, 34.0),
    "ef-signsgd": (270.0, 140.0),
    "onebit": (620.0, 170.0),
    "fp16": (26.0, 22.0),
}
#: The same, summed over both levels of a hierarchical exchange that compresses twice.
_TWO_LEVELS = {
    "random-k": (1000.0, 100.0),
    "dgc": (1400.0, 100.0),
    "ef-signsgd": (810.0, 420.0),
    "onebit": (2000.0, 520.0),
}
#: FP32 input that a server's processors encode per second; 8 to 40 Gbps by model.
CPU_BITS_PER_SECOND = 20e9


def gpu_codec(name: str, *, two_levels: bool = False) -> CodecProfile:
    """Return a codec's profile on a GPU. ``two_levels``: sum over both levels of a hierarchical exchange.

    Raises ValueError for a codec without such a measurement.
    """
    table = _TWO_LEVELS if two_levels else _ONE_LEVEL
    if name == "none":
        nothing = np.zeros(1)
        return CodecProfile(
            name, Device.GPU, WIRE_FORMATS[name], np.ones(1, np.int64), nothing, nothing, exact=True
        )
    if name not in table:
        raise ValueError(f"there are no published times of {name!r} on a GPU; there are {', '.join(table)}")
    both, decode = (microseconds * 1e-6 for microseconds in table[name])
    return CodecProfile.with_threshold(
        name, Device.GPU, WIRE_FORMATS[name], both - decode, decode, THRESHOLD_ELEMENTS
    )


def cpu_codec(name: str, bits_per_second: float = CPU_BITS_PER_SECOND) -> CodecProfile:
    """Return a codec's profile on a server's processors, with one rate of FP32 for encoding and decoding.

    Raises ValueError for a codec that is unknown or compresses nothing, or a rate that is not positive.
    """
    if name not in LOSSY:
        raise ValueError(f"there is no codec {name!r}; there are {', '.join(LOSSY)}")
    rate = bits_per_second / 32
    return CodecProfile.with_rate(name, Device.CPU, WIRE_FORMATS[name], rate, rate)
