"""The users of the run: one whose promises count, one who is careless, one with hostile functions and one
with hostile requests.

Each acts in a thread with its own random numbers, so the seed alone fixes the actions and their order; their
times also depend on the platform.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from punctual.client import Client, Job
from punctual.errors import PunctualError
from tests.chaos.evidence import Deed
from tests.chaos.requests import REQUESTS, Attacker
from tests.chaos.scene import CARELESS, HONEST, HOSTILE, Person, Scene

Card = TypeVar("Card")
FUNCTIONS = Path(__file__).parent / "functions"
BATCH_SIZE = 32
#: The most that a start, a change and the last write take on a busy machine with two cores.
SPARE_SECONDS = 25.0
MISCHIEF = (
    "poisoned_metrics", "forged_messages", "claims_to_be_done", "huge_artifacts", "glutton",
    "fork_bomb", "descriptors", "log_flood", "hang",
    "sudden_death", "clean_exit", "deep_recursion", "look_around",
)  # fmt: skip
HANGS, LARGE, LONG = "hangs at its import", "a batch of 10^9", "10^10 iterations"
#: Limit of a hostile user's unfinished jobs: the oldest is cancelled for the next.
MOST_UNFINISHED = 10


@dataclass(frozen=True)
class Speed:
    """Iterations a second of the honest function, as the platform measured them before any attack."""

    by_gpus: dict[int, float]

    def seconds(self, iterations: int, gpus: int) -> float:
        return iterations / (0.9 * self.by_gpus[gpus])


@dataclass
class Run:
    """State shared by the threads. ``stop``: send no more. ``sent``: how often each kind of job was submitted
    or each act performed."""

    scene: Scene
    speed: Speed
    stop: threading.Event = field(default_factory=threading.Event)
    sent: dict[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    honest_jobs: list[Job] = field(default_factory=list)
    #: Each kill with its time.
    deeds: list[Deed] = field(default_factory=list)
    killed_agents: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, kind: str) -> None:
        with self._lock:
            self.sent[kind] = self.sent.get(kind, 0) + 1

    def note_error(self, who: str, error: PunctualError) -> None:
        with self._lock:
            self.errors.append(f"{who}: {error}")


def upload(scene: Scene) -> None:
    """Store the functions of all users."""
    for who, names in {
        HONEST: ("small_steps",),
        CARELESS: ("small_steps",),
        HOSTILE: ("small_steps", "mischief", "hangs_at_import"),
    }.items():
        person = scene.people[who]
        for name in names:
            person.client.functions.upload(FUNCTIONS / f"{name}.py", project=person.project)


def measure(scene: Scene) -> Speed:
    """Have the honest function, and the hostile one while harmless, measured before any attack."""
    calm: dict[str, Any] = {"mischief": "nothing", "variant": 0}
    functions: dict[str, tuple[str, dict[str, Any]]] = {
        HONEST: ("small_steps", {}),
        HOSTILE: ("mischief", calm),
    }
    jobs = {}
    for who, (function, more) in functions.items():
        person = scene.people[who]
        jobs[who] = submit(person.client, function, person.project, "first", iterations=10, **more)
    for job in jobs.values():
        job.wait(timeout_seconds=240)
    levels = jobs[HONEST].curve()["levels"]
    return Speed({int(level["gpus"]): float(level["iterations_per_second"]) for level in levels})


def submit(
    client: Client,
    function: str,
    project: str,
    name: str,
    *,
    iterations: int,
    deadline: float | None = None,
    batch_size: int = BATCH_SIZE,
    **hyperparameters: Any,
) -> Job:
    """Submit a stored function without waiting for the verdict."""
    return client.submit(
        f"{function}@1",
        project=project,
        name=name,
        batch_size=batch_size,
        max_iterations=iterations,
        deadline=deadline,
        hyperparameters=hyperparameters,
        checkpoint_seconds=10.0,
        verdict_seconds=0,
    )


def deck(chance: random.Random, cards: Sequence[Card]) -> Iterator[Card]:
    """Yield all items in a random order, then again in a new order, so that a short run covers many."""
    while True:
        yield from chance.sample(cards, len(cards))


def honest(run: Run, chance: random.Random) -> None:
    """Submit feasible work, and sometimes a new variant that must be measured first."""
    person = run.scene.people[HONEST]
    number = 0
    while not run.stop.is_set():
        number += 1
        iterations = int(chance.uniform(4.0, 10.0) * run.speed.by_gpus[2])
        needed = run.speed.seconds(iterations, 2) + SPARE_SECONDS
        is_new = chance.random() < 0.15
        points = 1024 + (number if is_new else 0)
        deadline = needed * chance.uniform(1.6, 3.2) + (60.0 if is_new else 0.0)
        try:
            job = submit(
                person.client, "small_steps", person.project, f"work {number}",
                iterations=iterations, deadline=deadline, points=points,
            )  # fmt: skip
        except PunctualError as error:
            run.note_error("the honest user was refused", error)
        else:
            run.honest_jobs.append(job)
            run.note("honest: work with a deadline" + (", to be measured first" if is_new else ""))
        run.stop.wait(chance.expovariate(1 / 5.0))


def careless(run: Run, chance: random.Random) -> None:
    """Submit correct jobs and change them erratically."""
    person = run.scene.people[CARELESS]
    jobs: list[Job] = []
    number = 0
    while not run.stop.is_set():
        number += 1
        deed = chance.choices(
            (
                "submits",
                "submits work without end",
                "pauses",
                "resumes",
                "cancels",
                "changes a deadline",
                "clones",
                "asks what if",
            ),
            weights=(4, 1, 2, 2, 1, 2, 1, 2),
        )[0]
        which, amount = chance.random(), chance.uniform(0.2, 3.0)
        run.note(f"careless: {deed}")
        try:
            _careless_deed(run, person, jobs, deed, which, amount, number)
        except PunctualError:
            # Many of these requests are impossible; the ledger has the answers.
            pass
        run.stop.wait(chance.expovariate(1 / 2.0))


def _careless_deed(
    run: Run, person: Person, jobs: list[Job], deed: str, which: float, amount: float, number: int
) -> None:
    iterations = int(amount * 4.0 * run.speed.by_gpus[2])
    deadline = run.speed.seconds(iterations, 2) + SPARE_SECONDS * amount
    if deed == "submits":
        jobs.append(
            submit(
                person.client,
                "small_steps",
                person.project,
                f"idea {number}",
                iterations=iterations,
                deadline=deadline,
            )
        )
    elif deed == "submits work without end":
        jobs.append(
            submit(person.client, "small_steps", person.project, f"for ever {number}", iterations=10**10)
        )
    elif deed == "asks what if":
        person.client.what_if(
            "small_steps@1",
            project=person.project,
            batch_size=BATCH_SIZE,
            max_iterations=10**10,
            deadline=20.0,
        )
    elif jobs:
        job = jobs[-1 - int(which * min(6, len(jobs)))]
        deeds: dict[str, Callable[[], object]] = {
            "pauses": job.pause,
            "resumes": job.resume,
            "cancels": job.cancel,
            "changes a deadline": lambda: job.change_deadline(deadline),
            "clones": lambda: jobs.append(job.clone(deadline=deadline)),
        }
        deeds[deed]()


def hostile_with_functions(run: Run, chance: random.Random) -> None:
    """Submit jobs with malicious code."""
    person = run.scene.people[HOSTILE]
    unfinished: list[Job] = []
    # The first job has no deadline and is placed while GPUs are free, so that a short run includes a spy.
    kinds = chain(("look_around",), deck(chance, (*MISCHIEF, HANGS, HANGS, LARGE, LONG)))
    number = 0
    while not run.stop.is_set():
        number += 1
        kind = next(kinds)
        after = chance.choice((0.0, 0.0, 8.0))
        iterations = chance.choice((50, 500, 10**10))
        deadline = chance.choice((None, None, 20.0, 60.0, 300.0))
        # Some attack during their measurement, others during training.
        variant = number if chance.random() < 0.3 else 0
        if number == 1:
            after, iterations, deadline, variant = 0.0, 500, None, 0
        run.note(f"hostile function: {kind.replace('_', ' ')}")
        try:
            unfinished.append(_hostile_job(person, kind, number, variant, after, iterations, deadline))
            while len(unfinished) > MOST_UNFINISHED:
                unfinished.pop(0).cancel()
        except PunctualError:
            # The ledger has the answer.
            pass
        run.stop.wait(chance.expovariate(1 / 2.0))


def _hostile_job(
    person: Person,
    kind: str,
    number: int,
    variant: int,
    after: float,
    iterations: int,
    deadline: float | None,
) -> Job:
    client, project, name = person.client, person.project, f"{kind} {number}"
    if kind == HANGS:
        # Each is a separate function with its own measurement.
        return submit(
            client, "hangs_at_import", project, name, iterations=100, deadline=deadline, variant=number
        )
    if kind == LARGE:
        return submit(
            client, "small_steps", project, name,
            iterations=iterations, deadline=deadline, batch_size=10**9, points=1024 + number,
        )  # fmt: skip
    mischief: dict[str, Any] = {"mischief": kind, "after_seconds": after, "variant": variant}
    if kind == LONG:
        iterations, mischief = 10**10, {"mischief": "nothing", "variant": 0}
    return submit(client, "mischief", project, name, iterations=iterations, deadline=deadline, **mischief)


def hostile_with_requests(run: Run, chance: random.Random) -> None:
    """Send requests that no client would send."""
    person = run.scene.people[HOSTILE]
    platform = run.scene.platform
    token = person.client.transport.http.headers["Authorization"].removeprefix("Bearer ")
    attacker = Attacker(
        person.name, token, person.project, platform.web_url, platform.agent_url, run.scene.ledger
    )
    attacks = deck(chance, REQUESTS)
    try:
        while not run.stop.is_set():
            if run.honest_jobs:
                attacker.stranger_job = run.honest_jobs[-1].id
            attacker.attack(next(attacks), chance)
            run.stop.wait(chance.expovariate(1 / 0.4))
    finally:
        attacker.close()


#: The misfortunes of a cluster's day: processes of the platform die and restart.
DEATHS = (
    "a web server's worker",
    "the planner's child",
    "an agent",
    "the agents' server",
    "the streams' server",
    "the clock of tasks",
)


def misfortune(run: Run, chance: random.Random, seconds_between: float) -> None:
    """Kill a process, wait, kill the next."""
    deaths = deck(chance, DEATHS)
    while not run.stop.wait(seconds_between * chance.uniform(0.7, 1.3)):
        what = next(deaths)
        agent = chance.choice(("agent-node-1", "agent-node-2"))
        run.note(f"killed: {what}")
        kill(run.scene, what, agent)
        run.killed_agents[agent] += what == "an agent"
        run.deeds.append(
            Deed(datetime.now(UTC), f"killed {what}{f' ({agent})' if what == 'an agent' else ''}")
        )


def kill(scene: Scene, what: str, agent: str) -> None:
    platform = scene.platform
    if what in ("a web server's worker", "the planner's child"):
        name = "web" if "web" in what else "celery-planner"
        children = platform.process(name).children
        if children:
            os.kill(children[0], signal.SIGKILL)
        return
    name = {"an agent": agent, "the agents' server": "agent-api", "the streams' server": "streams"}.get(
        what, "beat"
    )
    process = platform.process(name)
    if process.pid is not None:
        process.kill()
