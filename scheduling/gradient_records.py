"""Conversion of workers' gradient records for planners, and the drift between two records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from communication.library.codec_names import LOSSY
from communication.library.codecs import WIRE_FORMATS, gpu_codec
from communication.profiles.codec import CodecProfile, Device
from communication.profiles.link import LinkProfile, LinkRate
from communication.profiles.model import ModelProfile
from communication.zen.densification import Densification, Skew
from communication.zen.profile import SparsityProfile
from scheduling.link_drift import NEGLIGIBLE_SECONDS


def model_of(content: Mapping[str, Any], name: str = "job") -> ModelProfile:
    """Return the record's tensors in order of readiness. Raise ValueError for an invalid model."""
    tensors = content["tensors"]
    return ModelProfile(
        name,
        tuple(each["name"] for each in tensors),
        np.array([each["elements"] for each in tensors], dtype=np.int64),
        np.array([each["gap_seconds"] for each in tensors], dtype=np.float64),
        float(content["other_seconds"]),
        int(content["bytes_per_element"]),
    )


def sparse_of(content: Mapping[str, Any]) -> tuple[SparsityProfile, ...]:
    """Return the record's tensors that are mostly zeros. Raise ValueError for impossible densities."""
    elements = {each["name"]: each["elements"] for each in content["tensors"]}
    return tuple(
        SparsityProfile(
            each["name"],
            elements[each["name"]],
            each["width"],
            Densification(
                each["density"],
                each["beta"],
                tuple((one["workers"], one["density"]) for one in each["sums"]),
            ),
            Skew(each["skew"]),
            # Old workers do not report this field; ranks could not follow a plan that does not treat these as
            # rows.
            rows=each.get("rows", True),
        )
        for each in content["sparse"]
    )


def codecs_of(content: Mapping[str, Any]) -> tuple[CodecProfile, ...]:
    """Return the codecs measured with the record, without those unknown to the library. Raise ValueError
    for an invalid table."""
    return tuple(
        CodecProfile(
            each["codec"],
            Device(each["device"]),
            WIRE_FORMATS[each["codec"]],
            np.array(each["elements"], dtype=np.int64),
            np.array(each["encode_seconds"]),
            np.array(each["decode_seconds"]),
            exact=each["codec"] == "none",
        )
        for each in content["codecs"]
        if each["codec"] in WIRE_FORMATS
    )


def known_codecs(measured: Sequence[CodecProfile]) -> tuple[CodecProfile, ...]:
    """Return the codecs measured on a worker's device, and the library's profiles for the others."""
    names = {codec.name for codec in measured}
    return (*measured, *(gpu_codec(name) for name in LOSSY if name not in names))


def links_of(content: Mapping[str, Any], otherwise: LinkProfile) -> LinkProfile:
    """Return the links measured with the record; ``otherwise``: used for those that were not."""
    told = content.get("links") or {}
    rates = {
        name: LinkRate(float(rate["latency_seconds"]), float(rate["bytes_per_second"]))
        for name, rate in told.items()
        if rate is not None
    }
    return LinkProfile(
        rates.get("between", otherwise.between), rates.get("within", otherwise.within), otherwise.share
    )


def drift(known: Mapping[str, Any], newer: Mapping[str, Any]) -> float:
    """Return the largest relative change of any figure; infinity if the tensors differ.

    Compares the times of the backward pass and of the rest, densities, and codecs' times, each in sum: gaps
    of single tensors vary between iterations.
    """
    one, other = model_of(known), model_of(newer)
    if one.layout != other.layout:
        return float("inf")
    moved = [
        _moved(one.backward_seconds, other.backward_seconds, NEGLIGIBLE_SECONDS),
        _moved(one.other_seconds, other.other_seconds, max(NEGLIGIBLE_SECONDS, 0.1 * one.compute_seconds)),
    ]
    before, after = ({each["name"]: each for each in content["sparse"]} for content in (known, newer))
    if {name: each.get("rows") for name, each in before.items()} != {
        name: each.get("rows") for name, each in after.items()
    }:
        return float("inf")
    moved.append(_drift_of_experts(known.get("experts"), newer.get("experts")))
    moved += [_moved(before[name]["density"], after[name]["density"], 1e-4) for name in before]
    coded, coding = ({(c.name, c.device): c for c in codecs_of(content)} for content in (known, newer))
    if set(coding) - set(coded):
        return float("inf")
    for place in coding:
        for table in ("encode_seconds", "decode_seconds"):
            before_sum, after_sum = (float(getattr(codecs[place], table).sum()) for codecs in (coded, coding))
            moved.append(_moved(before_sum, after_sum, NEGLIGIBLE_SECONDS))
    return max(moved)


def _drift_of_experts(known: Mapping[str, Any] | None, newer: Mapping[str, Any] | None) -> float:
    if known is None or newer is None:
        return 0.0 if known is newer else float("inf")
    if known["layers"] != newer["layers"]:
        return float("inf")
    negligible = {"row_bytes": 1.0}
    return max(
        _moved(known[name], newer[name], negligible.get(name, NEGLIGIBLE_SECONDS))
        for name in known.keys() - {"layers"}
    )


def _moved(before: float, after: float, negligible: float) -> float:
    return abs(after - before) / max(abs(before), negligible)
