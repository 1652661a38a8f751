"""A demo's closing report about lent, used and returned servers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from launch.showing.demo_lending import added_up
from punctual.client.models import JobEvent

BEGAN = datetime(2030, 1, 1, 12, tzinfo=UTC)
GPUS = {"serving-1": 4, "serving-2": 4}


def at(minutes: float) -> datetime:
    return BEGAN + timedelta(minutes=minutes)


def loan(minutes: float, *servers: str, state: str = "done") -> dict[str, Any]:
    return {"state": state, "servers": list(servers), "finished_at": at(minutes).isoformat()}


def reclaim(minutes: float, seconds: float | None, *servers: str, **jobs: int) -> dict[str, Any]:
    back = None if seconds is None else (at(minutes) + timedelta(seconds=seconds)).isoformat()
    return {
        "created_at": at(minutes).isoformat(),
        "seconds_to_return": seconds,
        "servers": [{"server": server, "returned_at": back} for server in servers],
        "preempted_jobs": jobs.get("preempted"),
        "rescaled_jobs": jobs.get("rescaled"),
        "held_back_jobs": jobs.get("held_back"),
    }


def event(minutes: float, kind: str, generation: int | None = None, *gpus: str) -> JobEvent:
    detail: dict[str, Any] = {} if generation is None else {"generation": generation}
    return JobEvent(
        happened_at=at(minutes), kind=kind, detail=detail | ({"gpus": list(gpus)} if gpus else {})
    )


def test_time_on_loan_is_clipped_to_the_demo_and_ends_at_return() -> None:
    report = added_up(
        "serving", GPUS,
        [loan(-5, "serving-1"), loan(1, "serving-2"), loan(2, "serving-3", state="refused")],
        [reclaim(4, 6.0, "serving-1", preempted=1, rescaled=2, held_back=1), reclaim(9, None, "serving-2")],
        [{"period_ends_at": at(3).isoformat(), "shortfall_servers": 1, "source": "emulated: a wave"}],
        [], BEGAN, at(10),
    )  # fmt: skip
    assert report.lent_gpu_seconds == 4 * (4.1 * 60) + 4 * (9 * 60)
    assert (report.loans, report.lent_servers, report.reclaims) == (1, 2, 2)
    assert (report.returned_servers, report.servers_on_their_way) == (1, 1)
    lines = report.lines()
    assert lines[0] == "Lending from serving, whose usage is emulated: a wave:"
    assert lines[3] == "  returned  1 server for 2 reclaims, 6 s on average, 6 s at worst, 1 on their way"
    assert lines[4] == "  cost      1 job preempted, 2 rescaled, 1 held back; 1 missing at worst"


def test_used_loan_time_is_training_time_on_borrowed_gpus() -> None:
    grown = [
        JobEvent(happened_at=at(-1), kind="profiled", detail={"gpus": 4, "generation": 1}),
        event(0, "start", 1, "node-1:0", "node-1:1"),
        event(1, "running", 1),
        event(2, "grow", 2, "node-1:0", "serving-1:0", "serving-1:1"),
        event(4, "rescaled", 2),
        event(7, "shrink", 3, "node-1:0"),
        event(8, "rescaled", 3),
        event(9, "completed"),
    ]
    never_got_there = [event(2, "start", 1, "serving-1:3"), event(3, "broken_off", 1)]
    still_there = [event(5, "start", 4, "serving-1:2"), event(6, "running", 4)]
    report = added_up(
        "serving",
        GPUS,
        [loan(0, "serving-1")],
        [],
        [],
        [grown, never_got_there, still_there],
        BEGAN,
        at(10),
    )
    assert report.used_gpu_seconds == 2 * (4 * 60) + 1 * (4 * 60)
    assert report.jobs_that_borrowed == 2
    assert report.lines()[2] == "  used      30% of that time, by 2 jobs of this demo"


def test_a_demo_without_loans_says_so_in_one_line() -> None:
    report = added_up("serving", GPUS, [], [], [], [], BEGAN, at(10))
    assert report.lines() == [
        "Lending from serving, whose usage is of a source not stated:",
        "  lent      nothing while the demo ran",
    ]
