"""What each process of the platform loads at its start: only modules that it needs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from functools import cache

import pytest

from config.celery import app
from launch.folders import PROJECT
from launch.services import CELERY_QUEUES

ARRAYS = {"numpy", "pandas", "pyarrow"}
COMPILERS = {"numba", "llvmlite", "scipy", "sympy"}
TRAINING = {"torch"}
PAGES = {"plotly", "config.urls", "dashboard.views"}
SERVER = {"django", "celery"}
MODELS = {"django.db.models", "rest_framework"}
COMPUTING = ARRAYS | COMPILERS | TRAINING

CELERY = "from config.celery import app; app.loader.import_default_modules(); app.finalize()"
#: What a process imports, and what must not be loaded by then.
PROCESSES: dict[str, tuple[str, set[str]]] = {
    "web": ("import config.wsgi", COMPUTING),
    "agent-api": ("import config.wsgi_agents", COMPUTING | PAGES),
    "streams": ("import config.asgi, config.urls_streams", COMPUTING | PAGES),
    "beat": (f"import sys; sys.argv[1:] = ['beat']; {CELERY}", COMPUTING | PAGES | MODELS),
    **{
        queue: (
            f"{CELERY}; from workers.tasks.queue_tasks import import_tasks; import_tasks([{queue!r}])",
            TRAINING | PAGES if queue == "planner" else COMPUTING | PAGES,
        )
        for queue in CELERY_QUEUES
    },
    "supervisor": ("import launch.__main__", COMPUTING | PAGES | SERVER),
    "forks of the supervisor": (
        "from launch.forking import import_shared; import_shared({})",
        COMPUTING | PAGES,
    ),
    "agent": ("import workers.agent.command_line", COMPUTING | PAGES | SERVER),
    "nursery": ("import workers.agent.processes.nursery_process", COMPUTING | PAGES | SERVER),
    "memory store": ("import recovery.store.process", COMPUTING | PAGES | SERVER),
    "inference emulator": (
        "import workers.inference_emulator.__main__",
        COMPILERS | TRAINING | PAGES | SERVER,
    ),
}


@dataclass(frozen=True)
class Loaded:
    """The modules, and our Celery tasks, in a new process of one kind after its start."""

    modules: frozenset[str]
    tasks: frozenset[str]


#: Forks a process for each kind from one that has imported only what that kind imports first.
SCRIPT = """
import json, os, sys
common, kinds = json.loads(sys.argv[1])

def fork(name, code, own):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        exec(code, own)
        tasks = own["app"].tasks if "app" in own else ()
        tasks = [task for task in tasks if task.startswith("workers.tasks.")]
        print(json.dumps([name, list(sys.modules), tasks]))
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, name

for name, code in kinds.items():
    if not code.startswith(common):
        fork(name, code, {})
own = {}
exec(common, own)
for name, code in kinds.items():
    if code.startswith(common):
        fork(name, code.removeprefix(common).lstrip("; "), own)
"""


@cache
def all_loaded() -> dict[str, Loaded]:
    asked = json.dumps([CELERY, {name: code for name, (code, _) in PROCESSES.items()}])
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, asked], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("[")]
    return {name: Loaded(frozenset(modules), frozenset(tasks)) for name, modules, tasks in lines}


def loaded(process: str) -> Loaded:
    return all_loaded()[process]


@pytest.mark.parametrize("process", PROCESSES)
def test_process_loads_only_what_it_computes_with(process: str) -> None:
    _, unwanted = PROCESSES[process]
    assert loaded(process).modules & unwanted == set()


def test_planner_loads_the_decision_core_at_its_start() -> None:
    assert {"numba", "scheduling.core.decide"} <= loaded("planner").modules


@pytest.mark.parametrize("queue", CELERY_QUEUES)
def test_module_of_a_queue_defines_the_tasks_routed_there(queue: str) -> None:
    routes = {name: app.amqp.router.route({}, name)["queue"].name for name in loaded(queue).tasks}
    assert set(routes.values()) == {queue}


def test_every_periodic_or_routed_task_is_defined() -> None:
    defined = {name for queue in CELERY_QUEUES for name in loaded(queue).tasks}
    assert {entry["task"] for entry in app.conf.beat_schedule.values()} | set(app.conf.task_routes) <= defined
