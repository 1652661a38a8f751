"""The operator's choices about Lyra's two phases, as values that a recorded snapshot can hold."""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.core.question.options import option


@dataclass(frozen=True, slots=True)
class TwoPhaseOptions:
    """Choices that override a policy's own rules."""

    #: Spec A7.
    shortest_at_most: bool = option(
        False, "running time that orders jobs", offered_as="shortest_by", words=("base", "most")
    )
    #: Spec A8.
    single_knapsack: bool = option(
        False, "one for each kind of servers, or one for all", offered_as="knapsack",
        words=("per_kind", "single"),
    )  # fmt: skip
    #: Spec A10.
    value_total_work: bool = option(
        False, "work on which the time saved by more workers is counted", offered_as="knapsack_value",
        words=("remaining", "total"),
    )  # fmt: skip
    #: Spec A17.
    emptied_as_idle: bool = option(
        False, "when base workers take servers on loan that flexible ones would have to leave",
        offered_as="emptied_servers", words=("last", "as_idle"),
    )  # fmt: skip
    #: Spec A18; policy ``lyra``. Jobs that were preempted once do not move.
    elastic_moves: bool = option(False, "running elastic jobs move to servers on loan")
    #: Spec A19; policy ``lyra``.
    retry_when_freed: bool = option(
        False, "under lyra, jobs that found only scattered GPUs are tried at every tick, or after something "
        "ended or came", offered_as="retry_scattered", words=("tick", "freed"),
    )  # fmt: skip
    #: Flexible workers that find no on-loan server of their own use GPUs beside base workers.
    flexible_in_holes: bool = option(True, "flexible workers beside base ones on loan")
    #: Naive: elastic jobs are placed like others, on owned servers first and beside any job.
    naive: bool = option(False, "of elastic jobs", offered_as="placement", words=("grouped", "naive"))
    #: Seconds of running time that one second of waiting makes up for.
    ageing_weight: float = option(
        0.0, "seconds of running time for a second of waiting; 0.5 under punctual unless told"
    )
    #: Compared with the seconds that a change of workers saves, so that jobs do not change for less.
    change_seconds: float = option(0.0, "what a change of workers is taken to cost")
    #: Rate of a job on both kinds of GPUs, as a part of the sum of its rates. It follows from the jobs.
    efficiency: float = 0.7
    #: Number of on-loan GPUs that count as one owned GPU. It follows from the jobs.
    expansion: int = 3
