"""What an operator may choose about the two phases, in values that a recorded snapshot can hold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TwoPhaseOptions:
    """Choices that stand above a policy's own rules; None leaves it the rule it has (spec 1.8 and 2.13).

    ``shortest_at_most``: shortest jobs are those that would be with as many workers as they can use, not with
    their base (A7). ``single_knapsack``: one knapsack over both kinds of servers (A8). ``flexible_in_holes``:
    flexible workers may use what base workers leave free on servers on loan. ``naive``: elastic jobs are
    placed like all others. ``ageing_weight``: seconds of running time that a second of waiting makes up for.
    ``change_seconds``: what a change of a running job's workers costs, weighed against what it saves.
    ``efficiency``: of a job on both kinds of GPUs. ``expansion``: GPUs on loan that stand for an owned one.
    ``value_total_work``: what flexible workers save is counted over a job's whole work, not over what is left
    of it (A10). ``emptied_as_idle``: base workers take servers on loan that flexible workers would have to
    leave as readily as idle ones (A17). ``elastic_moves``: running elastic jobs that were never preempted
    move to servers on loan (A18; policy ``lyra``). ``retry_when_freed``: a job for which only scattered GPUs
    were left is tried again only after a job ended or a server came (A19; policy ``lyra``).
    """

    shortest_at_most: bool | None = None
    single_knapsack: bool | None = None
    flexible_in_holes: bool | None = None
    naive: bool | None = None
    ageing_weight: float | None = None
    change_seconds: float | None = None
    efficiency: float | None = None
    expansion: int | None = None
    value_total_work: bool | None = None
    emptied_as_idle: bool | None = None
    elastic_moves: bool | None = None
    retry_when_freed: bool | None = None
