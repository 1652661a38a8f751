"""Links: rates and current load of a server's emulated links (docs/protocols.md 3.2), and measurements of the
network between two servers (2.9)."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from punctual.protocol.fields import BytesPerSecond, Count, Number, ShortText

#: Limits of a network's measurements; figures beyond them are invalid.
LONGEST_LATENCY_SECONDS = 10.0
FASTEST_BYTES = 1e13

LinkName = Literal["within_server", "network", "network_in", "spine", "host_to_device", "disk"]
TrafficName = Literal["gradients", "experts", "state"]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
LinkLoad = dict[LinkName, dict[TrafficName, BytesPerSecond]]


class LinkRate(BaseModel):
    """The capacity of one link."""

    model_config = ConfigDict(extra="ignore")

    bytes_per_second: BytesPerSecond
    latency_seconds: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] = 0.0


class ServerLinks(BaseModel):
    """The emulated links of a server, and how traffic classes share them."""

    model_config = ConfigDict(extra="ignore")

    #: Between GPUs of one server.
    within_server: LinkRate
    #: Between servers of one rack.
    network: LinkRate
    #: Between racks.
    spine: LinkRate
    #: Between host and device memory.
    host_to_device: LinkRate
    #: Between the local disk and host memory.
    disk: LinkRate
    #: Shares of a link by traffic class.
    shares: dict[TrafficName, Share] = {}


class LinkProbeResult(BaseModel):
    """The calling agent's measurement of the link to another server (docs/protocols.md 2.9).

    `link`, `number`: identify the measurement. `latency_seconds`: one way, of an empty message.
    `bytes_per_second`: of the slower direction. `problem`: why there are no figures; empty if there are.
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
    """Bytes per second by link and traffic class."""

    link_load: LinkLoad
