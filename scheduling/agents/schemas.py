"""What an agent sends to enrol. What it reports is in `punctual.protocol`, which agents use too."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from punctual.protocol.fields import Label
from punctual.protocol.reports import Inventory

#: Ten years; longer stays count as unlimited.
LONGEST_STAY_SECONDS = 10 * 365 * 86_400.0

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Address = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:%\[\]-]{1,255}$")]


class Enrolment(BaseModel):
    """The body of `POST enrol`. Fields that a newer agent adds are ignored."""

    model_config = ConfigDict(extra="ignore")

    #: The enrolment token, valid once.
    token: Annotated[str, Field(max_length=200)]
    name: Name
    #: Address at which other servers reach its workers.
    address: Address
    #: First and last port of its workers.
    port_range: tuple[int, int]
    inventory: Inventory
    agent_version: Annotated[Label, Field(max_length=40)] = ""
    #: Name of its rack; empty: a rack of its own.
    rack: Label = ""
    #: Name of its power domain; empty: one of its own.
    power_domain: Label = ""
    #: Seconds until the server leaves, if known. Agents send ages and durations, not times of their clocks.
    available_seconds: Annotated[float, Field(gt=0, le=LONGEST_STAY_SECONDS, allow_inf_nan=False)] | None = (
        None
    )
