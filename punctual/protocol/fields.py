"""Message fields with their bounds."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from punctual.names import name_problem
from punctual.protocol import limits


def _cut(limit: int) -> BeforeValidator:
    return BeforeValidator(lambda text: limits.clean_text(text, limit) if isinstance(text, str) else text)


def _without_problem(find: Any) -> AfterValidator:
    def check(name: str) -> str:
        problem = find(name)
        if problem is not None:
            raise ValueError(problem)
        return name

    return AfterValidator(check)


def _printable(text: str) -> str:
    if (problem := name_problem(text)) is not None:
        raise ValueError(f"printable characters only: {problem}")
    return text


Count = Annotated[int, Field(ge=0, le=limits.LARGEST_COUNT)]
Number = Annotated[int, Field(ge=0, le=limits.LARGEST_NUMBER)]
GpuIndex = Annotated[int, Field(ge=0, le=limits.LARGEST_GPU_INDEX)]
GpuCount = Annotated[int, Field(ge=1, le=limits.LARGEST_GPU_COUNT)]
Age = Annotated[float, Field(ge=0, le=limits.LONGEST_AGE_SECONDS, allow_inf_nan=False)]
Pause = Annotated[float, Field(ge=0, le=limits.LONGEST_PAUSE_SECONDS, allow_inf_nan=False)]
TrainSeconds = Annotated[float, Field(ge=0, le=limits.LONGEST_TRAIN_SECONDS, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=limits.SLOWEST_RATE, le=limits.FASTEST_RATE, allow_inf_nan=False)]
BytesPerSecond = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]

JobId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,16}$")]
EventId = Annotated[
    str, Field(pattern=r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$")
]
#: Text for people: truncated and cleaned rather than refused.
Text = Annotated[str, _cut(limits.TEXT_CHARACTERS)]
ShortText = Annotated[str, _cut(100)]
#: Names of the platform's objects: refused if invalid.
Label = Annotated[str, Field(max_length=100), AfterValidator(_printable)]
#: A parameter's name from `named_parameters()`.
TensorName = Annotated[
    str, Field(min_length=1, max_length=limits.TENSOR_NAME_CHARACTERS), AfterValidator(_printable)
]
MetricName = Annotated[str, _without_problem(limits.metric_name_problem)]
ArtifactName = Annotated[str, _without_problem(limits.artifact_name_problem)]
Metrics = Annotated[dict[MetricName, Finite | None], Field(max_length=limits.METRICS_OF_AN_ITERATION)]


class Message(BaseModel):
    """Base of messages: extra fields of newer senders are ignored, and types are strict."""

    model_config = ConfigDict(extra="ignore", strict=True)
