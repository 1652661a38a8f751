"""A cluster that runs beside a test: the planner, and a node that obeys at once, in a thread."""

from __future__ import annotations

import hashlib
import signal
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from django.conf import settings
from django.db import connection

from cluster.models import Cluster
from scheduling.services.planning.planning import run_planner
from tests.control_plane.simulated_agent import SimulatedAgent, SimulatedWorker

#: Iterations a second by number of GPUs.
SPEED = {1: 10.0, 2: 19.0, 4: 34.0}
WEIGHTS = b"weights of a model"


class LivingCluster:
    """One node with four GPUs. Jobs whose ids are in `endless` train until they are cancelled; others
    complete."""

    def __init__(self) -> None:
        self.endless = False
        self._ended = threading.Event()
        self._failure: Exception | None = None
        self._looks: dict[tuple[str, int], int] = {}
        self._thread = threading.Thread(target=self._live, name="living-cluster")

    def __enter__(self) -> Self:
        Cluster.objects.create(
            name="default", slot_seconds=0.001, promise_margin=0.0, offer_hold_seconds=60.0
        )
        self._node = SimulatedAgent.enrol("node-1", 4, SPEED)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(60)
        if self._failure is not None:
            raise self._failure

    def _live(self) -> None:
        try:
            while not self._ended.wait(0.02):
                run_planner("living-cluster")
                self._node.obey()
                for worker in list(self._node.workers.values()):
                    self._train(worker)
                self._node.report()
        except Exception as failure:  # noqa: BLE001  (raised in the test at its end)
            self._failure = failure
            # The test would wait in vain from now on.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        finally:
            connection.close()

    def _train(self, worker: SimulatedWorker) -> None:
        generation = (worker.entry["job"], worker.entry["generation"])
        if worker.phase != "training" or worker.rank != 0:
            return
        # The first report says that it trains, the second has its measurements, the third its completion.
        looks = self._looks[generation] = self._looks.get(generation, 0) + 1
        if looks == 2:
            self._node.report(**self._first_news(worker))
        elif looks > 2 and not self.endless:
            self._complete(worker)

    def _first_news(self, worker: SimulatedWorker) -> dict[str, Any]:
        source = {"job": worker.entry["job"], "generation": worker.entry["generation"]}
        values = {
            "values": {"loss": 0.25},
            "iterations_per_second": 10.0,
            "train_seconds": 0.1,
            "age_seconds": 0.0,
        }
        lines = "epoch 1\n\x1b[31mloss\x1b[0m 0.25\n"
        return {
            "metrics": [source | values | {"iteration": worker.iteration}],
            "logs": [source | {"rank": 0, "offset": 0, "text": lines}],
        }

    def _complete(self, worker: SimulatedWorker) -> None:
        store, entry = Path(settings.CHECKPOINT_URL.removeprefix("file://")), worker.entry
        folder = store / "jobs" / entry["job"] / "artifacts" / str(entry["generation"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "weights.pt").write_bytes(WEIGHTS)
        stored = {
            "name": "weights.pt",
            "uri": (folder / "weights.pt").as_uri(),
            "bytes": len(WEIGHTS),
            "sha256": hashlib.sha256(WEIGHTS).hexdigest(),
        }
        worker.phase = "completed"
        self._node.event(
            worker,
            "completed",
            iteration=worker.entry["termination"]["max_iterations"],
            reason="max_iterations",
            artifacts=[stored],
            metrics={"loss": 0.125},
            store_seconds=0.1,
        )


def eventually(truth: Any, *, timeout_seconds: float = 60.0) -> Any:
    """Poll until the answer is true, for a bounded time; return it."""
    give_up_at = time.monotonic() + timeout_seconds
    while not (answer := truth()):
        assert time.monotonic() < give_up_at, "it did not come true in time"
        threading.Event().wait(0.02)
    return answer
