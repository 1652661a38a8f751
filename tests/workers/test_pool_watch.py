"""When a Celery worker's pool counts as wedged, and when it is only busy."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.tasks import pool_watch
from workers.tasks.pool_watch import PoolHealth, PoolWatch


class Pool:
    """A pool that is checked repeatedly, as its worker does."""

    def __init__(self, wanted: int = 2) -> None:
        self.now = 1000.0
        self.health = PoolHealth(self.now)
        self.wanted = self.children = wanted
        self.tasks: dict[str, float] = {}
        self.answers = True
        self.looks = True
        self.probes = 0

    def run(self, seconds: float) -> str | None:
        end = self.now + seconds
        while self.now < end:
            self.now += pool_watch.LOOK_SECONDS
            if self.looks:
                self.health.look(self.now, children=self.children, wanted=self.wanted, tasks=self.tasks)
                if self.health.probe_due(self.now):
                    self.health.probe_sent(self.now)
                    self.probes += 1
                if self.answers:
                    self.health.probe_answered()
            problem = self.health.problem(self.now)
            if problem is not None:
                return problem
        return None


def test_a_pool_that_answers_is_never_ended() -> None:
    pool = Pool()
    assert pool.run(1000) is None
    pool.children = 1
    assert pool.run(pool_watch.WEDGED_SECONDS - 4) is None, "a child that ended is being replaced"
    pool.children = 2
    assert pool.run(1000) is None


def test_a_child_that_is_not_replaced_ends_the_worker() -> None:
    pool = Pool()
    pool.children = 1
    assert "no work" in str(pool.run(60))


def test_a_pool_that_answers_nothing_ends_the_worker_within_a_minute() -> None:
    pool = Pool()
    pool.run(100)
    pool.answers = False
    assert "no work" in str(pool.run(60))


def test_a_pool_whose_children_are_all_busy_need_not_answer() -> None:
    pool = Pool()
    pool.answers = False
    pool.tasks = {"a": 3600.0, "b": 3600.0}
    assert pool.run(3600) is None


def test_probes_do_not_queue_up_behind_a_busy_child() -> None:
    pool = Pool(wanted=1)
    pool.answers = False
    pool.tasks = {"a": 3600.0}
    assert pool.run(3000) is None
    assert pool.probes == 1
    pool.tasks, pool.answers = {}, True
    pool.run(60)
    assert pool.probes > 1, "once it is free it is asked again"


def test_a_pool_replaces_a_child_whose_end_it_did_not_see() -> None:
    """Its sentinel may close before its exit code is known; the pool alone checks again after five
    seconds."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    looked = []
    pool = SimpleNamespace(
        active=True,
        num_processes=1,
        info={"processes": [ended.pid]},
        maintain_pool=lambda: looked.append(True),
    )
    worker = SimpleNamespace(pool=pool)
    watch = PoolWatch(worker)
    watch._look(worker)
    assert looked
    looked.clear()
    pool.info = {"processes": [os.getpid()]}
    watch._look(worker)
    assert not looked


def test_a_free_child_must_answer_while_the_other_works() -> None:
    pool = Pool()
    pool.answers = False
    pool.tasks = {"a": 3600.0}
    assert pool.run(90) is not None


def test_a_task_beyond_its_time_limit_does_not_excuse_silence() -> None:
    pool = Pool(wanted=1)
    pool.answers = False
    pool.tasks = {"a": 60.0}
    assert pool.run(60) is None
    assert pool.run(60 + pool_watch.LIMIT_MARGIN_SECONDS) is not None


def test_a_probe_lost_with_its_child_is_no_fault() -> None:
    pool = Pool()
    pool.answers = False
    assert pool.run(pool_watch.PROBE_SECONDS + pool_watch.ANSWER_SECONDS) is None
    pool.answers = True
    assert pool.run(1000) is None


def test_a_loop_blocked_on_the_broker_is_tolerated_for_minutes() -> None:
    pool = Pool()
    pool.looks = False
    assert pool.run(pool_watch.BLOCKED_SECONDS - 4) is None
    assert "stood still" in str(pool.run(10))


def test_a_child_killed_during_a_broker_outage_may_be_replaced_first() -> None:
    """The loop was blocked meanwhile, so the child could not be replaced."""
    pool = Pool(wanted=1)
    pool.run(100)
    pool.looks, pool.answers, pool.children = False, False, 0
    assert pool.run(2 * pool_watch.WEDGED_SECONDS) is None
    pool.looks = True
    assert pool.run(pool_watch.WEDGED_SECONDS - 4) is None
    assert "no work" in str(pool.run(10))


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=200))
def test_a_worker_with_a_recently_complete_pool_never_ends(looks: list[tuple[int, bool]]) -> None:
    pool = Pool(wanted=2)
    whole_at = pool.now
    for children, answers in looks:
        pool.children, pool.answers = children, answers
        problem = pool.run(pool_watch.LOOK_SECONDS)
        if children >= 2 and answers:
            whole_at = pool.now
        if pool.now - whole_at <= pool_watch.WEDGED_SECONDS:
            assert problem is None
        if problem is not None:
            return


@pytest.mark.parametrize(("age", "code"), [(0.0, 0), (30.0, 0), (90.0, 1)])
def test_the_health_check_reads_the_heartbeat(tmp_path: Path, age: float, code: int) -> None:
    file = tmp_path / "heartbeat"
    file.write_text(repr(time.monotonic() - age))
    assert pool_watch.main(str(file)) == code


def test_the_health_check_fails_without_a_heartbeat(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pool_watch.main(str(tmp_path / "none")) == 1
    assert "no sign of life" in capsys.readouterr().err
