"""What an operator may choose about the two phases, in values that a recorded snapshot can hold."""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.core.question.options import option


@dataclass(frozen=True, slots=True)
class TwoPhaseOptions:
    """Choices that stand above a policy's own rules (spec 1.8 and 2.13); a line is all that a new one takes
    before a rule looks at it.

    ``efficiency``: of a job on both kinds of GPUs. ``expansion``: GPUs on loan that stand for an owned one.
    These two follow from the jobs, not from a choice.
    """

    #: A7.
    shortest_at_most: bool = option(
        False, "running time that orders jobs", offered_as="shortest_by", words=("base", "most")
    )
    #: A8.
    single_knapsack: bool = option(
        False, "one for each kind of servers, or one for all", offered_as="knapsack",
        words=("per_kind", "single"),
    )  # fmt: skip
    #: A10.
    value_total_work: bool = option(
        False, "work on which the time saved by more workers is counted", offered_as="knapsack_value",
        words=("remaining", "total"),
    )  # fmt: skip
    #: A17.
    emptied_as_idle: bool = option(
        False, "when base workers take servers on loan that flexible ones would have to leave",
        offered_as="emptied_servers", words=("last", "as_idle"),
    )  # fmt: skip
    #: A18; policy ``lyra``. Those that were preempted once stay.
    elastic_moves: bool = option(False, "running elastic jobs move to servers on loan")
    #: A19; policy ``lyra``.
    retry_when_freed: bool = option(
        False, "under lyra, jobs that found only scattered GPUs are tried at every tick, or after something "
        "ended or came", offered_as="retry_scattered", words=("tick", "freed"),
    )  # fmt: skip
    #: Where flexible workers find no server of their own they take what base workers leave free.
    flexible_in_holes: bool = option(True, "flexible workers beside base ones on loan")
    #: Naive: elastic jobs are placed like others, on owned servers first and beside anybody.
    naive: bool = option(False, "of elastic jobs", offered_as="placement", words=("grouped", "naive"))
    ageing_weight: float = option(
        0.0, "seconds of running time for a second of waiting; 0.5 under punctual unless told"
    )
    #: Weighed against the seconds that a change saves, so that jobs are not resized for less.
    change_seconds: float = option(0.0, "what a change of workers is taken to cost")
    efficiency: float = 0.7
    expansion: int = 3
