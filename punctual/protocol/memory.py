"""What a server's in-memory store holds, as its agent reports it (docs/protocols.md 2.7)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from punctual.protocol.fields import Age, Count, JobId, Message, Number, Text

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
    #: Of a rank on the server itself: copies that there are, and that there are to be, its own among them.
    copies: Number = 0
    wanted_copies: Number = 0


class StoreReport(Message):
    """A store. Its holdings are looked at one by one, so that a bad one spoils none of the others."""

    used_bytes: Count
    limit_bytes: Count
    #: How well what is kept of the workers there is protected against the loss of the server.
    protection: Literal["full", "degraded", "none"] = "none"
    #: How long it has not answered its agent; the rest is what it had said before.
    silent_seconds: Age = 0.0
    #: What is in the way of more, in words.
    problem: Text = ""
    holdings: Annotated[list[Any], Field(max_length=MOST_HOLDINGS)]
