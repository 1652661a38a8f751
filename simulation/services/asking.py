"""An operator's request for a study, and the runs that answer it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from django.conf import settings

from projects.errors import InvalidRequest
from scheduling.core.question.snapshot import Newcomers
from simulation.policies import UnknownPolicy, policies_named
from simulation.selectors.choices import borrows, prices_newcomers, pricing_policies
from simulation.workloads.errors import listed


@dataclass(frozen=True)
class StudyRequest:
    """A request for a study. None means the value of the trace's authors, or of the live cluster."""

    source: str
    policies: tuple[str, ...]
    trace: str = ""
    name: str = ""
    servers: tuple[int, ...] = ()
    gpus_per_server: int | None = None
    gpu_type: str = ""
    slot_seconds: float | None = None
    pauses: str = "measured"
    fill: str | None = None
    reserve_servers: int | None = None
    promise_margin: float | None = None
    failures_per_server_day: float = 0.0
    seed: int = 0
    limit_jobs: int | None = None
    best_effort_share: float = 0.0
    with_declined: bool = False
    newcomers: tuple[str, ...] = ()
    bound: bool = True
    inference_servers: tuple[int, ...] = ()
    inference_usage: str | None = None
    inference_gpu_type: str = ""
    reclaim: str | None = None
    headroom: float | None = None
    forecaster: str | None = None

    @property
    def lends(self) -> bool:
        """Whether servers are lent in some of its runs."""
        return any(self.inference_servers)


class AskedRun(NamedTuple):
    """One policy on a number of servers beside a number of inference servers."""

    policy: str
    servers: int
    inference_servers: int
    newcomers: str


def invalid(field: str, message: str) -> InvalidRequest:
    """Return the refusal of one field of a request."""
    return InvalidRequest(f"{field}: {message}", errors={field: [message]})


def check_policies(policies: Iterable[str]) -> None:
    """Raise InvalidRequest for an unknown policy."""
    try:
        policies_named(policies)
    except UnknownPolicy as error:
        raise invalid("policies", f"{error}.") from None


def runs_asked(
    request: StudyRequest, servers: Sequence[int], newcomers: str = Newcomers.OPEN
) -> list[AskedRun]:
    """Return a run for each combination of policy, numbers of servers, and rule for newcomers.

    A policy that uses no borrowed servers has one run, without loans, for each number of servers, since more
    would be equal. Likewise a policy that cannot keep room for newcomers has runs with open ones only.
    ``newcomers``: the rule if the request gives none.
    """
    asked = product(
        servers, request.inference_servers or (0,), request.policies, request.newcomers or (newcomers,)
    )
    runs = (
        AskedRun(
            policy, own, lent if borrows(policy) else 0, rule if prices_newcomers(policy) else Newcomers.OPEN
        )
        for own, lent, policy, rule in asked
    )
    return list(dict.fromkeys(runs))


def check_newcomers(request: StudyRequest) -> None:
    """Raise InvalidRequest for an unknown rule, or if no policy can keep room for newcomers."""
    known = [rule.value for rule in Newcomers]
    unknown = [rule for rule in request.newcomers if rule not in known]
    if unknown:
        raise invalid("newcomers", f"Unknown: {listed(unknown)}. Known: {listed(known)}.")
    if Newcomers.PRUDENT in request.newcomers and not any(map(prices_newcomers, request.policies)):
        raise invalid(
            "newcomers", f"None of the policies keeps room for newcomers; {listed(pricing_policies())} do."
        )


def newcomers_notes(request: StudyRequest) -> list[str]:
    """Return notes on policies that run with open newcomers alone."""
    plain = [policy for policy in dict.fromkeys(request.policies) if not prices_newcomers(policy)]
    if Newcomers.PRUDENT not in request.newcomers or not plain:
        return []
    return [f"Run with open newcomers alone, because they keep no room for newcomers: {listed(plain)}."]


def check_size(runs: Sequence[AskedRun], columns: dict[str, Any]) -> None:
    """Raise InvalidRequest for more runs, or GPUs of a run, than allowed, or no server beyond the reserve."""
    most_runs = int(settings.SIMULATION_LIMITS["runs"])
    if len(runs) > most_runs:
        raise invalid("policies", f"That makes {len(runs)} runs; a study may have {most_runs}.")
    _check_gpus(runs, int(columns["gpus_per_server"]))
    fewest = min(run.servers for run in runs)
    if int(columns["reserve_servers"]) >= fewest:
        raise invalid(
            "reserve_servers",
            f"A reserve of {columns['reserve_servers']} leaves nothing of {fewest} servers.",
        )


def _check_gpus(runs: Sequence[AskedRun], gpus_per_server: int) -> None:
    most = int(settings.SIMULATION_LIMITS["gpus"])
    alone = max(run.servers for run in runs) * gpus_per_server
    if alone > most:
        raise invalid("servers", f"That makes {alone} GPUs; a simulated cluster may have {most}.")
    together = max(run.servers + run.inference_servers for run in runs) * gpus_per_server
    if together > most:
        raise invalid(
            "inference_servers",
            f"That makes {together} GPUs with those of the training servers; a simulation may have {most}.",
        )
