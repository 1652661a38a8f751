"""One run: measure undisturbed, start all users, let the promises end, check the invariants."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.chaos import evidence, users
from tests.chaos.findings import IN_ORDER, Report, broken_promises, invariants, jobs_by_owner
from tests.chaos.scene import Scene, running_scene
from tests.chaos.watching import Watcher

#: A run with at least this many promises is conclusive.
LEAST_PROMISES_A_MINUTE = 2
#: The longest deadline of the honest and the careless user, and the longest time until a promise for it is
#: scored.
LONGEST_WAIT_SECONDS = 330.0

_OPEN = """
    select 1 from scheduling_job j join scheduling_functionversion v on v.id = j.function_version_id
    join scheduling_function f on f.id = v.function_id
    where f.name = any(%s) and j.state not in ('completed', 'failed', 'cancelled', 'declined')
    and (j.promise_outcome = 'open' or j.state in ('submitted', 'profiling'))
    and not j.paused_by_owner and not (j.hyperparameters @> '{"global_batch_size": 1000000000}')
"""


def chaos(
    seconds: float,
    seed: int,
    *,
    timing: bool,
    say: Callable[[str], None] = print,
    evidence_folder: Path | None = None,
    keep_always: bool = False,
) -> Report:
    """Attack a platform of its own for ``seconds``. ``timing``: judge the length of passes too.

    The evidence (`evidence`) is kept if an invariant broke, or always with ``keep_always``: in
    ``evidence_folder``, or in a new folder.
    """
    say(f"chaos for {seconds:.0f} s with seed {seed}: starting a platform of its own")
    with running_scene() as scene:
        users.upload(scene)
        speed = users.measure(scene)
        rates = ", ".join(f"{gpus} GPUs {rate:.1f} it/s" for gpus, rate in sorted(speed.by_gpus.items()))
        say(f"measured in peace: {rates}")
        run = users.Run(scene, speed)
        with Watcher(scene) as watcher:
            _let_loose(run, seconds, seed)
            say("nobody sends any more; what was promised runs to its end")
            _let_promises_end(scene)
            watcher.look()
        if watcher.error is not None:
            raise watcher.error
        minutes = max(1.0, seconds / 60)
        report = Report(
            seed=seed,
            seconds=seconds,
            invariants=invariants(
                scene,
                watcher.seen,
                run.errors,
                least_promises=int(LEAST_PROMISES_A_MINUTE * minutes),
                timing=timing,
                killed=run.killed_agents,
            ),
            sent=run.sent,
            answers=scene.ledger.by_attack(),
            memory_bytes=watcher.seen.most_bytes,
            jobs=jobs_by_owner(scene),
            longest_pass_seconds=watcher.seen.longest_pass_seconds,
            highest_load=watcher.seen.highest_load,
            broken_connections=scene.ledger.broken,
        )
        if keep_always or not report.holds:
            report.kept = evidence_folder or Path(tempfile.mkdtemp(prefix="punctual-chaos-"))
            evidence.keep(
                scene.rows,
                scene.platform.folders.logs,
                report.kept,
                [row["id"] for row in broken_promises(scene)],
                [*run.deeds, *watcher.seen.loads],
            )
            (report.kept / "finding.txt").write_text("\n".join([*report.lines(), ""]))
            say(f"what is known of the run is kept in {report.kept}")
        return report


def _let_loose(run: users.Run, seconds: float, seed: int) -> None:
    actors: dict[str, Callable[[users.Run, random.Random], None]] = {
        "honest": users.honest,
        "careless": users.careless,
        "hostile with functions": users.hostile_with_functions,
        "hostile with requests": users.hostile_with_requests,
        "hostile with more requests": users.hostile_with_requests,
        "misfortune": lambda run, chance: users.misfortune(run, chance, min(45.0, seconds / 2.5)),
    }
    failures: list[Exception] = []

    def act(name: str) -> None:
        try:
            actors[name](run, random.Random(f"{seed} {name}"))
        except Exception as error:  # noqa: BLE001 - raised below, where the run can end in order
            failures.append(error)
            run.stop.set()

    threads = [threading.Thread(target=act, args=(name,), name=name, daemon=True) for name in actors]
    for thread in threads:
        thread.start()
    run.stop.wait(seconds)
    run.stop.set()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _let_promises_end(scene: Scene) -> None:
    """Leave hostile jobs as they are; wait until promises to the others, and pending verdicts, have ended."""
    ends_at = time.monotonic() + LONGEST_WAIT_SECONDS
    while scene.rows(_OPEN, list(IN_ORDER)) and time.monotonic() < ends_at:
        time.sleep(1.0)
