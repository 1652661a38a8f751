"""The emulated links of a server: what they carry at most, and what they carry now (docs/protocols.md
3.2)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from punctual.protocol.fields import BytesPerSecond

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


class LoadOfLinks(BaseModel):
    """Bytes per second by link and class of traffic."""

    link_load: LinkLoad
