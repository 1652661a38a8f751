"""Links: what a server's emulated ones carry at most and carry now (docs/protocols.md 3.2), and what was
measured of the network between two servers (2.9)."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from punctual.protocol.fields import BytesPerSecond, Count, Number, ShortText

#: Of a network that was measured: beyond these a figure is none.
LONGEST_LATENCY_SECONDS = 10.0
FASTEST_BYTES = 1e13

LinkName = Literal["within_server", "network", "network_in", "spine", "host_to_device", "disk"]
TrafficName = Literal["gradients", "experts", "state"]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
LinkLoad = dict[LinkName, dict[TrafficName, BytesPerSecond]]


class LinkRate(BaseModel):
    """What one link carries."""

    model_config = ConfigDict(extra="ignore")

    bytes_per_second: BytesPerSecond
    latency_seconds: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] = 0.0


class ServerLinks(BaseModel):
    """The emulated links of a server, and how classes of traffic share them."""

    model_config = ConfigDict(extra="ignore")

    within_server: LinkRate
    network: LinkRate
    spine: LinkRate
    host_to_device: LinkRate
    disk: LinkRate
    shares: dict[TrafficName, Share] = {}


class LinkProbeResult(BaseModel):
    """What the agent that called has found of the link to another server (docs/protocols.md 2.9).

    `link`, `number`: of the measurement. `latency_seconds`: one way of a message without content.
    `bytes_per_second`: of the slower direction. `problem`: why these say nothing; empty where they do.
    """

    model_config = ConfigDict(extra="ignore", strict=True)

    link: Count
    number: Number
    latency_seconds: Annotated[float, Field(ge=0, le=LONGEST_LATENCY_SECONDS, allow_inf_nan=False)] | None = (
        None
    )
    bytes_per_second: Annotated[float, Field(ge=1, le=FASTEST_BYTES, allow_inf_nan=False)] | None = None
    problem: ShortText = ""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.problem and (self.latency_seconds is None or self.bytes_per_second is None):
            raise ValueError("neither figures nor a problem")
        return self


class LoadOfLinks(BaseModel):
    """Bytes per second by link and class of traffic."""

    link_load: LinkLoad
