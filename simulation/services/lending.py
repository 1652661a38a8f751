"""Servers on loan in studies: checks and defaults of the request, and the lending settings of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np

from lending.core.lending_rule import HEADROOM_FRACTION
from scheduling.core.lyra.reclaiming.methods import ReclaimMethod
from simulation.choices import MEASURED_USAGE, StudySource
from simulation.engine.asked.lending import USUAL_GPU_TYPE, Lending
from simulation.engine.asked.sharing import SharingSettings
from simulation.inference.catalogue import read_usage
from simulation.inference.usage import UsageSeries
from simulation.live.lent import LiveServing, kinds_measured
from simulation.live.state import LiveInference, LiveState, unpack
from simulation.models import SimulationRun, SimulationStudy
from simulation.selectors.choices import (
    TOO_SLOW_FORECASTERS,
    borrowing_policies,
    borrows,
    forecasters_offered,
    reclaims_offered,
    usages_offered,
)
from simulation.services.asking import StudyRequest, invalid
from simulation.workloads.errors import listed

USUAL_USAGE = "daily"
#: The default of inference clusters of the live platform.
USUAL_RECLAIM = ReclaimMethod.IMPROVED
USUAL_FORECASTER = "persistence"

#: Fields about servers on loan.
_OF_LOANS = ("inference_usage", "inference_gpu_type", "reclaim", "headroom", "forecaster")


@dataclass(frozen=True)
class UsualLoans:
    """Defaults of a study's fields about loans."""

    usage: str = USUAL_USAGE
    reclaim: str = USUAL_RECLAIM.value
    headroom: float = HEADROOM_FRACTION


def check_loans(request: StudyRequest) -> None:
    """Check the request's fields about loans before anything is read.

    Raises:
        InvalidRequest: fields about loans without inference servers; unknown usage, or usage that is not on
            this machine; no policy uses borrowed servers.
    """
    if not request.lends:
        given = next((name for name in _OF_LOANS if getattr(request, name) not in (None, "")), None)
        if given is not None:
            raise invalid(given, "It is about servers on loan: ask for inference_servers above 0.")
        return
    if not any(borrows(policy) for policy in request.policies):
        raise invalid(
            "inference_servers",
            f"None of these policies uses borrowed servers. Those that do: {listed(borrowing_policies())}.",
        )
    if request.inference_usage is not None:
        _check_usage(request.source, request.inference_usage)
    if request.reclaim is not None and request.reclaim not in reclaims_offered():
        raise invalid("reclaim", f"There is no {request.reclaim!r}. Known: {listed(reclaims_offered())}.")
    if request.forecaster in TOO_SLOW_FORECASTERS:
        raise invalid(
            "forecaster",
            f"{request.forecaster} is trained anew for each simulated day, which takes minutes: simulate it "
            f"on the command line.",
        )
    if request.forecaster is not None and request.forecaster not in forecasters_offered():
        known = listed(forecasters_offered())
        raise invalid("forecaster", f"There is no {request.forecaster!r}. Known: {known}.")


def _check_usage(source: str, name: str) -> None:
    if name == MEASURED_USAGE:
        if source != StudySource.LIVE:
            raise invalid("inference_usage", "Measured usage is that of the live cluster: take source live.")
        return
    offered = usages_offered()
    known = next((usage for usage in offered if usage.name == name), None)
    if known is None:
        names = [usage.name for usage in offered if usage.available]
        raise invalid("inference_usage", f"There is no usage {name!r} here. Known: {listed(names)}.")
    if not known.available:
        raise invalid(
            "inference_usage", f"Usage {name} is not on this machine; it is public: {known.original}."
        )


def loan_columns(request: StudyRequest, gpu_type: str, usual: UsualLoans) -> dict[str, Any]:
    """Return the study's columns about loans by name; empty if nothing is lent."""
    if not request.lends:
        return {}
    return {
        "inference_usage": request.inference_usage or usual.usage,
        "inference_gpu_type": gpu_type,
        "reclaim": request.reclaim or usual.reclaim,
        "headroom": usual.headroom if request.headroom is None else request.headroom,
        "forecaster": request.forecaster or USUAL_FORECASTER,
    }


def lent_gpu_type(asked: str, own: str, known: tuple[str, ...]) -> str:
    """Return the kind of the inference cluster's GPUs in a study of a trace, as its throughputs spell it.

    ``known``: kinds with measurements. The default is T4, or the trace's own kind if nothing was measured on
    T4. Raises InvalidRequest for a kind without measurements.
    """
    for wanted in (asked,) if asked else (USUAL_GPU_TYPE, own):
        found = next((kind for kind in known if kind.lower() == wanted.lower()), None)
        if found is not None:
            return found
    raise invalid(
        "inference_gpu_type", f"Nothing was measured on {asked or own!r}, only on {listed(list(known))}."
    )


def loan_notes(request: StudyRequest, columns: dict[str, Any]) -> list[str]:
    """Return the study's notes on loans."""
    if not request.lends:
        return []
    notes = [f"The inference cluster's GPUs are {columns['inference_gpu_type']}."]
    left = [policy for policy in dict.fromkeys(request.policies) if not borrows(policy)]
    if left:
        uses, it, has = ("uses", "It has", "it") if len(left) == 1 else ("use", "They have", "them")
        notes.append(
            f"{listed(left)} {uses} no borrowed servers. {it} one run for each number of servers, without "
            f"loans: more would change nothing for {has}."
        )
    return notes


def loans_of_live(request: StudyRequest, state: LiveState, serving: LiveServing) -> dict[str, Any]:
    """Return the study's columns about loans on the live cluster, by default those of its inference cluster,
    and ``live_notes``.

    Raises:
        InvalidRequest: no job was measured on the requested kind of GPU.
    """
    inference = state.inference
    assert inference is not None
    able = sum(bool(job.lent_levels) for job in state.jobs)
    if request.inference_gpu_type and not able:
        raise invalid(
            "inference_gpu_type",
            f"None of these jobs was measured on {inference.gpu_kind!r}. Something was on "
            f"{listed(kinds_measured())}.",
        )
    row = serving.row
    usual = UsualLoans(
        usage=MEASURED_USAGE if inference.usage else USUAL_USAGE,
        reclaim=USUAL_RECLAIM.value if row is None else row.reclaim_method,
        headroom=HEADROOM_FRACTION if row is None else row.headroom_fraction,
    )
    columns = loan_columns(request, inference.gpu_kind, usual)
    jobs = len(state.jobs)
    measured = f"{able} {'was' if able == 1 else 'were'} measured on {inference.gpu_kind}"
    notes = [f"Of {jobs} job{'' if jobs == 1 else 's'} {measured} and can use borrowed servers."]
    if state.servers_on_loan:
        count = state.servers_on_loan
        notes.append(
            f"{count} server{' is' if count == 1 else 's are'} on loan now, and so from the beginning of "
            "each run that has as many inference servers."
        )
    if columns["inference_usage"] == MEASURED_USAGE and not inference.usage:
        columns["inference_usage"] = USUAL_USAGE
    return {**columns, "live_notes": [*notes, *_usage_notes(request, columns, serving)]}


def _usage_notes(request: StudyRequest, columns: dict[str, Any], serving: LiveServing) -> list[str]:
    taken = columns["inference_usage"]
    if taken == MEASURED_USAGE:
        return list(serving.notes)
    if request.inference_usage in (None, MEASURED_USAGE):
        return [*serving.notes, f"Its usage is the synthetic curve {taken}, whose hours of the day are UTC."]
    return [f"Its usage is {taken}, whose hours of the day are UTC."]


def sharing_of(study: SimulationStudy, run: SimulationRun) -> SharingSettings | None:
    """Return what a run lends; None if nothing. Jobs follow their measured curves, as on the live platform.

    Raises TraceError or ValueError if its usage cannot be read.
    """
    if not run.inference_servers:
        return None
    live = unpack(bytes(study.live_state)) if study.live_state is not None else None
    usage = read_usage(study.inference_usage, seed=study.seed) if live is None else _live_usage(study, live)
    serving = LiveInference("") if live is None or live.inference is None else live.inference
    lending = Lending(
        run.inference_servers,
        usage,
        reclaim=ReclaimMethod(study.reclaim),
        headroom=HEADROOM_FRACTION if study.headroom is None else study.headroom,
        forecast_margin=serving.forecast_margin,
        hysteresis=serving.hysteresis,
        hold_seconds=serving.hold_seconds,
        forecaster=study.forecaster,
        period_seconds=usage.period_seconds,
        inference_gpu_type=study.inference_gpu_type,
    )
    return SharingSettings(rules=None, lending=lending)


def _live_usage(study: SimulationStudy, state: LiveState) -> UsageSeries:
    """Return usage from the study's moment on: as measured, or a curve from that time of the day (UTC) on."""
    inference = state.inference
    if study.inference_usage == MEASURED_USAGE and inference is not None:
        return UsageSeries(
            name=MEASURED_USAGE,
            source=f"the live inference cluster {inference.name} until {state.taken_at}",
            usage=np.array(inference.usage),
            period_seconds=inference.period_seconds,
        )
    curve = read_usage(study.inference_usage, seed=study.seed)
    taken = datetime.fromisoformat(state.taken_at)
    into_the_day = (taken - taken.replace(hour=0, minute=0, second=0, microsecond=0)).total_seconds()
    skipped = round((into_the_day - curve.start_seconds) / curve.period_seconds)
    return replace(curve, usage=np.roll(curve.usage, -skipped), start_seconds=0.0, expected=None)
