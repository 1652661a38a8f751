"""The parts of a job's request, each with limits and words that say what would be right."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from projects.api import fields
from projects.api.base import StrictSerializer
from punctual.names import name_problem, normalised
from punctual.protocol.hyperparameters import MAXIMUM_DATA_WORKERS, NO_GPU_COUNT, find_problems
from punctual.protocol.storage import missing_library
from recovery.probability.replicas import MOST_REPLICAS
from scheduling.data_schemes import DATA_SCHEMES, readable_schemes

MAXIMUM_HYPERPARAMETER_BYTES = 16 * 1024
MAXIMUM_NESTING = 4
MAXIMUM_LABELS = 32
MAXIMUM_DATA_SOURCES = 32
LARGEST_INTEGER = 2**31 - 1
#: On a function that does a thousand a second, four months of work.
LARGEST_ITERATIONS = 10**10

_LABEL_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")
_DATA_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

#: Spellings of "so many GPUs" as a field of a job, without case, hyphens and underscores.
GPU_COUNTS = frozenset(
    [
        "accelerators",
        "devices",
        "gpu",
        "gpucount",
        "gpus",
        "gpuspernode",
        "localworldsize",
        "maxgpus",
        "mingpus",
        "ngpu",
        "ngpus",
        "nnodes",
        "nodes",
        "nproc",
        "nprocpernode",
        "numaccelerators",
        "numdevices",
        "numgpu",
        "numgpus",
        "numnodes",
        "numreplicas",
        "numservers",
        "numworkers",
        "nworkers",
        "parallelism",
        "replicas",
        "servers",
        "workercount",
        "workers",
        "worldsize",
    ]
)


def gpu_counts_in(body: Any) -> Iterator[tuple[str, str]]:
    """Fields of a job that name a number of GPUs or workers: (name, the message). No field of a job is called
    so; hyperparameters have a rule of their own (`punctual.protocol.hyperparameters`)."""
    for name in body if isinstance(body, Mapping) else ():
        if re.sub(r"[-_ ]", "", str(name)).lower() in GPU_COUNTS:
            yield str(name), NO_GPU_COUNT.format(name=name)


@extend_schema_field(
    {
        "oneOf": [
            {"type": "string", "minLength": 1, "maxLength": 200},
            {"type": "integer", "minimum": 1, "maximum": 10**18 - 1},
        ],
        "description": "`name`, `name@3`, `sha256:<digest>` or a function's id.",
    }
)
class FunctionReference(serializers.Field):
    """Names a stored function."""

    def to_internal_value(self, data: Any) -> str | int:
        whole = isinstance(data, int) and not isinstance(data, bool) and 1 <= data < 10**18
        if whole:
            return int(data)
        if isinstance(data, str) and 0 < len(data) <= 200:
            return normalised(data)
        raise ValidationError("Write name, name@3, sha256:<digest> or a function's id.")


@extend_schema_field(
    {
        "type": "object",
        "required": ["global_batch_size"],
        "properties": {
            "global_batch_size": {"type": "integer", "minimum": 1, "maximum": LARGEST_INTEGER},
            "gradient_clip_norm": {"type": ["number", "null"], "minimum": 0},
            "evaluate_every": {"type": ["integer", "null"], "minimum": 0},
            "data_workers": {"type": ["integer", "null"], "minimum": 0, "maximum": MAXIMUM_DATA_WORKERS},
            "num_workers": {"type": ["integer", "null"], "minimum": 0, "maximum": MAXIMUM_DATA_WORKERS},
            "nonfinite": {"enum": ["continue", "stop", None]},
        },
        "additionalProperties": True,
        "description": "Passed to the function; at most 16 KiB of JSON, nested at most 4 deep. The platform "
        "reads those named here.",
    }
)
class Hyperparameters(serializers.Field):
    """A JSON object with ``global_batch_size``."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise ValidationError("Must be an object.")
        problems = find_problems(data)
        if problems:
            raise ValidationError({name: [problem] for name, problem in problems.items()})
        if _depth(data) > MAXIMUM_NESTING:
            raise ValidationError(f"Nested more than {MAXIMUM_NESTING} deep.")
        if len(json.dumps(data)) > MAXIMUM_HYPERPARAMETER_BYTES:
            raise ValidationError(
                f"Larger than {MAXIMUM_HYPERPARAMETER_BYTES} bytes; large settings belong in data."
            )
        for name in _names_in(data):
            if (problem := name_problem(name)) is not None:
                seen = f"letters, digits and symbols that can be seen only: {problem}."
                raise ValidationError(f"The name {ascii(name)[:80]}: {seen}")
        return data


def _names_in(value: Any) -> Iterator[str]:
    """The names of hyperparameters and of what is inside of them. Its depth is known to be bounded."""
    if isinstance(value, dict):
        yield from value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _names_in(inner)


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


@extend_schema_field(
    {
        "type": "object",
        "maxProperties": MAXIMUM_LABELS,
        "propertyNames": {"pattern": f"^{_LABEL_KEY.pattern}$"},
        "additionalProperties": {"type": "string", "maxLength": 200},
    }
)
class Labels(serializers.Field):
    """Names and values for finding jobs again."""

    def to_internal_value(self, data: Any) -> dict[str, str]:
        if not isinstance(data, dict) or len(data) > MAXIMUM_LABELS:
            raise ValidationError(f"Must be an object of at most {MAXIMUM_LABELS} labels.")
        for key, value in data.items():
            if not _LABEL_KEY.fullmatch(key):
                raise ValidationError(
                    f"'{key[:80]}': a label is 1 to 63 letters, digits, dots, slashes or hyphens."
                )
            if not isinstance(value, str) or len(value) > 200:
                raise ValidationError({key: ["A label's value is a string of at most 200 characters."]})
            if (problem := name_problem(value)) is not None:
                raise ValidationError(
                    {key: [f"Letters, digits and symbols that can be seen only: {problem}."]}
                )
        return {key: normalised(value) for key, value in data.items()}


class TargetSerializer(StrictSerializer):
    """Stop once a metric is good enough: one of `at_least` and `at_most`."""

    metric = fields.Name(max_length=100)
    at_least = fields.Number(required=False)
    at_most = fields.Number(required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("at_least" in attrs) == ("at_most" in attrs):
            raise ValidationError("Give at_least or at_most, and not both.")
        return attrs


class TerminationSerializer(StrictSerializer):
    """When the job is done: after so many iterations, or earlier once the target is met."""

    max_iterations = fields.Integer(min_value=1, max_value=LARGEST_ITERATIONS)
    target = TargetSerializer(required=False, allow_null=True, default=None)


class ProtectionSerializer(StrictSerializer):
    """How the job's state is protected in the servers' memory. Omitted members take their defaults."""

    replicas = fields.Integer(
        min_value=1,
        max_value=MOST_REPLICAS,
        required=False,
        help_text="Copies of the state in memory, the local one included; 1: promises count on durable "
        "states alone.",
    )
    frequency = fields.Integer(
        min_value=1,
        max_value=LARGEST_ITERATIONS,
        required=False,
        help_text="Iterations between two points in memory, at most.",
    )


class DataSourceSerializer(StrictSerializer):
    """Data that the function reads as `data_path(name)`: a `url`, or a `path` that every server mounts
    read-only."""

    name = fields.Text(max_length=100)
    url = fields.Locator(
        max_length=2000,
        required=False,
        help_text=f"One of {', '.join(DATA_SCHEMES)}; those whose library is installed.",
    )
    path = fields.Locator(max_length=1000, required=False)

    def validate_name(self, name: str) -> str:
        if not _DATA_NAME.fullmatch(name):
            raise ValidationError(
                "Letters, digits, dots, hyphens and underscores only, as it becomes a file's name."
            )
        return name

    def validate_url(self, url: str) -> str:
        scheme, separator, _ = url.partition("://")
        known = f"Must begin with one of {', '.join(f'{name}://' for name in readable_schemes())}."
        if not separator or scheme.lower() not in DATA_SCHEMES or "::" in url:
            raise ValidationError(known)
        if missing := missing_library(scheme.lower()):
            raise ValidationError(
                f"{scheme}:// cannot be read on this platform: {missing.rstrip('.')}. {known}"
            )
        return url

    def validate_path(self, path: str) -> str:
        if not path.startswith("/") or ".." in path.split("/"):
            raise ValidationError("Must be an absolute path on the servers, without ..")
        return path

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("url" in attrs) == ("path" in attrs):
            raise ValidationError("Give url or path, and not both.")
        return attrs
