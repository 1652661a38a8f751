"""Espresso's plan: its message, and what ranks read from it and refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from communication.espresso.decision_tree import gpu_options
from communication.espresso.options import option_code
from communication.espresso.plan import EspressoPlan, parse_espresso_plan
from communication.espresso.planner import plan_compression
from communication.library.codecs import cpu_codec, gpu_codec
from communication.plan import content_digest
from communication.profiles.codec import Device
from communication.profiles.link import LinkProfile, LinkRate
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape

LINKS = LinkProfile(LinkRate(150e-6, 25e9 / 8), LinkRate(150e-6, 2.5e9))
SHAPE = PlacementShape(4, 2)
MODEL = ModelProfile(
    "small",
    ("head", "body", "stem"),
    np.array([1000, 8_000_000, 20_000_000]),
    np.array([1e-3, 5e-3, 4e-3]),
    other_seconds=0.02,
)
CODECS = {Device.GPU: gpu_codec("random-k"), Device.CPU: cpu_codec("random-k")}


def plan(**others: Any) -> EspressoPlan:
    asked: dict[str, Any] = {"model": MODEL, "placement": SHAPE, "links": LINKS, "codecs": CODECS}
    return plan_compression(**(asked | others))


TOLD = plan().to_message()


def test_a_plan_predicts_its_gain_over_dense() -> None:
    made = plan()
    assert not made.lossless
    assert made.codec == "random-k"
    assert made.predicted.iteration_seconds < made.predicted_dense.iteration_seconds
    assert made.predicted.bytes_between < made.predicted_dense.bytes_between
    assert made.predicted_dense.device_seconds == made.predicted_dense.host_seconds == 0.0
    assert made.predicted.device_seconds + made.predicted.host_seconds > 0.0
    for told in (made.predicted, made.predicted_dense):
        assert told.iteration_seconds - told.exposed_seconds >= MODEL.compute_seconds - 1e-9


def test_exposed_and_computed_time_add_up_to_the_iteration() -> None:
    predicted = plan(codecs={}).predicted
    assert predicted.iteration_seconds == pytest.approx(MODEL.compute_seconds + predicted.exposed_seconds)


def test_without_codecs_it_is_lossless_and_keeps_no_residuals() -> None:
    made = plan(codecs={})
    assert made.lossless
    assert made.codec == "none"
    assert (made.residual_bytes, made.payload_bytes) == (0, 0)
    assert made.buffer_bytes == 4 * MODEL.parameters
    assert made.predicted.iteration_seconds <= made.predicted_dense.iteration_seconds


def test_an_exact_codec_loses_nothing() -> None:
    exact = {Device.GPU: replace(gpu_codec("random-k"), exact=True)}
    made = plan(codecs=exact)
    assert made.compressed_tensors
    assert made.lossless
    assert made.buffer_bytes == 4 * MODEL.parameters + made.payload_bytes


def test_buffers_are_a_few_times_the_model() -> None:
    made = plan()
    assert made.residual_bytes > 0
    assert 4 * MODEL.parameters < made.buffer_bytes < 4 * 4 * MODEL.parameters


def test_ranks_read_the_plans_message() -> None:
    made = plan()
    orders = parse_espresso_plan(made.to_message())
    assert (orders.placement, orders.codec, orders.bytes_per_element) == (SHAPE, "random-k", 4)
    assert orders.tensors == made.tensors
    assert made.to_message()["digest"] == made.digest == plan().digest
    assert made.digest != plan(placement=PlacementShape(2, 4)).digest


OPTION = option_code(gpu_options()[5])


def message(**changes: Any) -> dict[str, Any]:
    """Return a message with a digest that fits its content, valid or not."""
    content = {**TOLD, **changes}
    return {**content, "digest": content_digest(content)}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"planner": "zen"}, "not a message of the planner espresso"),
        ({"options": "all"}, "options of the plan must be a list"),
        ({"options": [7]}, "code of an option must be a text"),
        ({"options": ["Comm1/reduce/intra"]}, "decision tree has no option"),
        ({"tensors": []}, "has 0 tensors; it must have 1 to 100000"),
        ({"tensors": [["a", 1]]}, "must have a name, a number of elements and the number of an option"),
        ({"tensors": [[1, 1, 0]], "options": [OPTION]}, "a tensor's name must have"),
        ({"tensors": [["a" * 501, 1, 0]], "options": [OPTION]}, "1 to 500 characters"),
        ({"tensors": [["a", 0, 0]], "options": [OPTION]}, "has 0 elements; it must have 1 to"),
        ({"tensors": [["a", True, 0]], "options": [OPTION]}, "has True elements; it must have 1 to"),
        ({"tensors": [["a", 1 << 41, 0]], "options": [OPTION]}, "elements; it must have 1 to"),
        ({"tensors": [["a", 1, 1]], "options": [OPTION]}, "has the option 1, which the plan does not have"),
        ({"tensors": [["a", 1, -1]], "options": [OPTION]}, "has the option -1, which the plan does not have"),
        ({"tensors": [["a", 1, 0], ["a", 2, 0]], "options": [OPTION]}, "two tensors of the plan"),
        ({"codec": ""}, "has no codec; it must name one"),
        ({"servers": 0}, "servers of the plan is 0; it must be a positive whole number"),
        ({"gpus_per_server": 2.0}, "gpus_per_server of the plan is 2.0; it must be a positive whole number"),
        ({"bytes_per_element": None}, "bytes_per_element of the plan"),
    ],
)
def test_malformed_plan_messages_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_espresso_plan(message(**changes))


def test_a_changed_message_is_refused() -> None:
    told = TOLD
    with pytest.raises(ValueError, match="digest of the plan does not match its content"):
        parse_espresso_plan({**told, "codec": "dgc"})
    with pytest.raises(ValueError, match="not made of plain values"):
        parse_espresso_plan({**told, "codec": object()})
    with pytest.raises(ValueError, match="not a message of the planner"):
        parse_espresso_plan([])  # type: ignore[arg-type]
