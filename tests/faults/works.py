"""The jobs submitted under faults."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from punctual.client import Job
from punctual.errors import PunctualError
from tests.faults.scene import PROJECT_NAME, Scene

BATCH_SIZE = 16
CHECKPOINT_SECONDS = 5.0
#: Time that a deadline leaves beyond training: the reserve's slack and a start.
SPARE_SECONDS = (120.0, 180.0)
#: A deadline that no job meets, so that the offer is the earliest one that the platform can promise.
IMPOSSIBLE_SECONDS = 1.0
VERDICT_SECONDS = 120.0


@dataclass(frozen=True)
class Work:
    """One job of a schedule. ``at_seconds``: when it is submitted; None: before any fault, with the earliest
    possible deadline. ``spare_seconds``: time beyond twice its training on two GPUs; None: no deadline of its
    own."""

    at_seconds: float | None
    seconds: float
    spare_seconds: float | None
    seed: int

    def iterations(self, speed: float) -> int:
        """Return one of a few lengths, so that jobs with the same samples can be compared."""
        return max(20, round(self.seconds * speed / 20) * 20)


def works(seed: int, seconds: float) -> list[Work]:
    """Return the jobs: one whose promise has only the time that the platform must give it and which lives
    through most of the schedule, one without a deadline, and one submitted in the middle with time to
    spare."""
    chance = random.Random(f"jobs {seed}")
    tight = Work(None, chance.uniform(0.7, 1.0) * seconds, None, chance.randrange(4))
    free = Work(0.0, chance.uniform(0.4, 0.7) * seconds, None, chance.randrange(4))
    late = Work(
        chance.uniform(0.2, 0.6) * seconds,
        chance.uniform(0.2, 0.5) * seconds,
        chance.uniform(*SPARE_SECONDS),
        chance.randrange(4),
    )
    return [tight, free, late]


def submit_tight(scene: Scene, work: Work, speed: float, name: str) -> Job:
    """Submit the job with the earliest deadline that the platform offers.

    Raises NoOfferError if none is offered although no fault is active.
    """
    asked = submit(scene, name, work.iterations(speed), IMPOSSIBLE_SECONDS, work.seed)
    asked.wait_for_verdict(timeout_seconds=VERDICT_SECONDS)
    if asked.offer is None:
        raise NoOfferError(f"{name} ({asked.id}) is {asked.state} and is offered no deadline")
    return asked.accept_offer()


def submit(scene: Scene, name: str, iterations: int, deadline: float | None, seed: int) -> Job:
    return scene.client.submit(
        "steps@1", project=PROJECT_NAME, name=name, batch_size=BATCH_SIZE, max_iterations=iterations,
        deadline=deadline, checkpoint_seconds=CHECKPOINT_SECONDS, seed=seed, verdict_seconds=0,
    )  # fmt: skip


class NoOfferError(RuntimeError):
    """The platform offers no deadline although no fault is active."""


class Submitter(threading.Thread):
    """Submits the jobs of a schedule at their times, whatever the state of the web server."""

    def __init__(self, scene: Scene, planned: Sequence[Work], speed: float) -> None:
        """Submit those that precede the first fault."""
        super().__init__(name="submitter", daemon=True)
        self._scene, self._planned, self._speed = scene, planned, speed
        self.ids: list[str] = []
        self.errors: list[str] = []
        for number, work in enumerate(planned):
            if work.at_seconds is None:
                self._note(number, partial(submit_tight, scene, work, speed))

    def run(self) -> None:
        began = time.monotonic()
        for number, work in enumerate(self._planned):
            if work.at_seconds is not None:
                time.sleep(max(0.0, work.at_seconds - (time.monotonic() - began)))
                self._note(number, partial(self._submit, work))

    def decline_offers(self) -> None:
        """Decline what refused jobs were offered: a project with an open offer is offered no other."""
        for job in map(self._scene.client.job, self.ids):
            if job.state == "declined" and job.offer is not None:
                with suppress(PunctualError):  # the offer has expired
                    job.decline_offer()

    def _submit(self, work: Work, name: str) -> Job:
        deadline = None
        if work.spare_seconds is not None:
            deadline = 2 * work.seconds + work.spare_seconds * self._scene.reserve_servers
        return submit(self._scene, name, work.iterations(self._speed), deadline, work.seed)

    def _note(self, number: int, submitting: Callable[[str], Job]) -> None:
        name = f"work {number}"
        try:
            self.ids.append(submitting(name).id)
        except (PunctualError, NoOfferError) as error:
            self.errors.append(f"{name}: {error}")
