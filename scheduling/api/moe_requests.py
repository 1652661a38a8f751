"""Questions to the planners of mixtures of experts, in JSON. Every number has bounds."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from moe.moesys.all_to_all import LinkRates
from moe.moesys.choices import MAX_GPUS, Mode, Pinning, Tier
from projects.api import fields
from projects.api.base import StrictSerializer

_RATES = LinkRates()
MAX_PARAMETERS = 1e15
MAX_BYTES = 1e18
MAX_SECONDS = 1e9
MAX_TASKS = 64
MAX_SERVERS = 128
MAX_LAYERS = 256
#: The mode that chooses the smallest gang in time, beside the planner's own modes.
DEADLINE_MODE = "deadline"
_NEEDED_FIELDS = {
    Mode.BUDGET: ("gpus",),
    DEADLINE_MODE: ("gpus", "step_cost", "steps", "deadline_seconds"),
}


class _Bytes(fields.Number):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{"min_value": 0, "max_value": MAX_BYTES, **options})


class _Seconds(fields.Number):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{"min_value": 0, "max_value": MAX_SECONDS, **options})


class _Rate(fields.Number):
    """Bytes per second."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"min_value": 1, "max_value": 1e15, **options})


class _Count(fields.Integer):
    def __init__(self, most: int, **options: Any) -> None:
        super().__init__(**{"min_value": 1, "max_value": most, **options})


class LinkRatesSerializer(StrictSerializer):
    """Rates in bytes per second, and latencies of one message in seconds."""

    within = _Rate(default=_RATES.within, help_text="From one GPU to the others of its server.")
    leaf = _Rate(default=_RATES.leaf, help_text="One network interface through its leaf switch.")
    spine = _Rate(default=_RATES.spine, help_text="One network interface through a spine switch.")
    within_latency = _Seconds(default=_RATES.within_latency)
    between_latency = _Seconds(default=_RATES.between_latency)


class DeviceSerializer(StrictSerializer):
    """A server with its GPUs."""

    gpu_bytes = _Bytes(min_value=1, help_text="Device memory of all its GPUs together.")
    cpu_bytes = _Bytes(help_text="Host memory.")
    ssd_bytes = _Bytes(help_text="Disk.")
    gpus = _Count(64, default=8)


class FitRequestSerializer(StrictSerializer):
    """A model, by its parameters or by its shape, and a kind of server."""

    dense = fields.Number(min_value=0, max_value=MAX_PARAMETERS, required=False, help_text="Parameters.")
    sparse = fields.Number(
        min_value=0, max_value=MAX_PARAMETERS, required=False, help_text="Parameters of all experts."
    )
    vocabulary = _Count(10**9, required=False)
    hidden = _Count(10**6, required=False)
    expansion = _Count(64, default=4)
    layers = _Count(MAX_LAYERS, help_text="Layers with experts.")
    experts = _Count(10**5, help_text="Experts of each layer.")
    alpha = fields.Number(
        min_value=0, max_value=1, default=1.0, help_text="Share of the sparse parameters that a step uses."
    )
    lookahead = fields.Integer(min_value=0, max_value=16, default=1, help_text="Layers fetched ahead.")
    activation_bytes = _Bytes(default=0.0, help_text="On each GPU.")
    strict_paper = fields.Truth(
        default=False, help_text="Whether to use the published inequalities without corrections."
    )
    tiers = serializers.ListField(
        child=serializers.ChoiceField([tier.value for tier in Tier]),
        default=[tier.value for tier in Tier],
        max_length=3,
        help_text="Tiers that may hold states.",
    )
    device = DeviceSerializer()

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        given = {name for name in ("dense", "sparse", "vocabulary", "hidden") if name in attrs}
        if given not in ({"dense", "sparse"}, {"vocabulary", "hidden"}):
            message = "Give either dense and sparse, or vocabulary and hidden."
            raise ValidationError({"dense": [message]})
        return attrs


class TaskSerializer(StrictSerializer):
    """One task."""

    batch = fields.Integer(min_value=0, max_value=10**9, help_text="Samples of a step.")
    cost = fields.Number(min_value=1e-9, max_value=1e9, default=1.0, help_text="Relative cost of a sample.")


class RankMemorySerializer(StrictSerializer):
    """Device memory of a rank."""

    capacity_bytes = _Bytes(min_value=1)
    shared_bytes = _Bytes(default=0.0, help_text="States that every rank has.")
    expert_bytes = _Bytes(default=0.0, help_text="One task's expert with all its states.")
    sample_bytes = _Bytes(default=0.0, help_text="Activations of one sample.")


class StepCostSerializer(StrictSerializer):
    """Time of a step: `fixed_seconds` + `seconds_per_load` · (largest load)."""

    fixed_seconds = _Seconds()
    seconds_per_load = _Seconds()

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if not attrs["fixed_seconds"] + attrs["seconds_per_load"] > 0.0:
            raise ValidationError({"fixed_seconds": ["One of the two must be above 0."]})
        return attrs


class ElasticRequestSerializer(StrictSerializer):
    """Tasks of unequal load."""

    tasks = TaskSerializer(many=True, min_length=1, max_length=MAX_TASKS)  # type: ignore[call-arg]
    mode = serializers.ChoiceField(
        [*(mode.value for mode in Mode), DEADLINE_MODE],
        default=Mode.BUDGET.value,
        help_text="`up`: split every task down to the lightest. `down`: pack tasks up to the heaviest. "
        "`budget`: the smallest largest load on `gpus`. `deadline`: the fewest of `gpus` that meet it.",
    )
    gpus = _Count(MAX_GPUS, required=False)
    quota = fields.Number(
        min_value=1e-9, max_value=1e18, required=False, help_text="Largest load of a GPU, for `up`."
    )
    memory = RankMemorySerializer(required=False)
    step_cost = StepCostSerializer(required=False)
    steps = _Count(10**12, required=False)
    deadline_seconds = _Seconds(required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        for name in _NEEDED_FIELDS.get(attrs["mode"], ()):
            if name not in attrs:
                raise ValidationError({name: [f"Mode {attrs['mode']} needs it."]})
        return attrs


class FreeServerSerializer(StrictSerializer):
    """A server with free GPUs."""

    id = fields.Text(max_length=100)
    free_gpus = fields.Integer(min_value=0, max_value=64)
    cluster = fields.Text(
        max_length=100, default="", allow_blank=True, help_text="Servers of one share leaf switches."
    )


class PlacementRequestSerializer(StrictSerializer):
    """A gang, and the traffic of its steps."""

    gpus = _Count(MAX_GPUS)
    layers = _Count(10_000, help_text="Layers with experts.")
    tokens_per_rank = fields.Number(min_value=0, max_value=1e12)
    experts_per_token = _Count(1024, default=1)
    hidden = _Count(10**6)
    dense = fields.Number(
        min_value=0, max_value=MAX_PARAMETERS, default=0.0, help_text="Parameters that are all-reduced."
    )
    servers = FreeServerSerializer(  # type: ignore[call-arg]
        many=True,
        required=False,
        max_length=MAX_SERVERS,
        help_text="Default: the servers of this cluster with the GPUs that are free now.",
    )
    gpu_kind = fields.Text(max_length=100, required=False, help_text="Of this cluster's GPUs; default: any.")
    rates = LinkRatesSerializer(required=False)
    most = _Count(100, default=10, help_text="Limit of the answer.")

    def validate_servers(self, servers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if len({server["id"] for server in servers}) < len(servers):
            raise ValidationError("An id occurs twice; all ids must differ.")
        return servers


class RingRequestSerializer(StrictSerializer):
    """An inference job with experts in a ring of device memory."""

    layers = _Count(MAX_LAYERS)
    layer_bytes = _Bytes(min_value=1, help_text="Experts of one layer on each GPU.")
    gpu_bytes = _Bytes(min_value=1, help_text="Device memory of one GPU.")
    dense_bytes = _Bytes(default=0.0, help_text="All other parameters on each GPU.")
    activation_bytes = _Bytes(default=0.0, help_text="On each GPU.")
    compute_seconds = _Seconds(min_value=1e-12, help_text="One layer with the job's batch.")
    host_bytes_per_second = _Rate(default=25e9, help_text="From host memory to one GPU.")
    gpus = _Count(MAX_GPUS, default=1)
    rings = _Count(64, default=1, help_text="Ring jobs that share the path to host memory.")
    latency_seconds = _Seconds(min_value=1e-12, required=False, help_text="Limit of a token's time.")
    pinning = serializers.ChoiceField(
        [pinning.value for pinning in Pinning],
        default=Pinning.SPREAD.value,
        help_text="`spread`: all sections but two hold one layer each for good.",
    )
    sections = _Count(MAX_LAYERS, required=False, help_text="Default: the most that fit.")
