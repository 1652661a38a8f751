"""What a server's in-memory store holds, as its agent reports it (docs/protocols.md 2.7)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from punctual.protocol.fields import Age, Count, JobId, Message, Number

MOST_HOLDINGS = 10_000


class Holding(Message):
    """The newest shard of one rank that is whole in a server's memory."""

    job: JobId
    generation: Number
    rank: Number
    iteration: Count
    bytes: Count
    reserved_bytes: Count
    age_seconds: Age


class StoreReport(Message):
    """A store. Its holdings are looked at one by one, so that a bad one spoils none of the others."""

    used_bytes: Count
    limit_bytes: Count
    holdings: Annotated[list[Any], Field(max_length=MOST_HOLDINGS)]
