"""The contents of a server's in-memory store, as its agent reports them (docs/protocols.md 2.7)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from punctual.protocol.fields import Age, Count, JobId, Message, Number, Text

MOST_HOLDINGS = 10_000


class Holding(Message):
    """The newest complete shard of one rank in a server's memory."""

    job: JobId
    generation: Number
    rank: Number
    iteration: Count
    bytes: Count
    reserved_bytes: Count
    age_seconds: Age
    #: For a rank on the server itself: number of copies, and of wanted ones, including its own.
    copies: Number = 0
    wanted_copies: Number = 0


class StoreReport(Message):
    """A store. Its holdings are checked one by one, so that an invalid one does not affect the others."""

    used_bytes: Count
    limit_bytes: Count
    #: How well the local workers' state is protected against the loss of the server.
    protection: Literal["full", "degraded", "none"] = "none"
    #: How long it has not answered its agent; the other fields are from its last answer.
    silent_seconds: Age = 0.0
    #: What prevents more protection, in words.
    problem: Text = ""
    holdings: Annotated[list[Any], Field(max_length=MOST_HOLDINGS)]
