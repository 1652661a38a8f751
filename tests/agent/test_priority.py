"""Warm workers may start at low priority only if the agent can raise it later."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.agent.confinement.test_sandbox import ORDINARY_USER, needs_root
from tests.agent.conftest import PROJECT
from workers.agent.machine import linux

#: Acts as the agent: starts a process of another user at low priority and prints whether it expects to raise
#: the priority, whether it can, and the priority that a worker ends up with.
SCRIPT = """
import json, os, subprocess, tempfile
from pathlib import Path
from workers.agent.processes.worker_processes import WARMING_NICE, can_restore_priority, restore_priority

def start(nice):
    # A group of its own, as every worker has.
    return subprocess.Popen(
        ["sleep", "60"], user=int(os.environ["WORKER"]), process_group=0, preexec_fn=lambda: os.nice(nice)
    )

believes = can_restore_priority()
low = start(WARMING_NICE)
try:
    os.setpriority(os.PRIO_PGRP, low.pid, 0)
    can = True
except PermissionError:
    can = False
warm = start(WARMING_NICE if believes else 0)
folder = Path(tempfile.mkdtemp())
(folder / "launcher.json").write_text(json.dumps({"worker_pid": warm.pid}))
restore_priority(folder)
print(json.dumps([believes, can, os.getpriority(os.PRIO_PROCESS, warm.pid)]))
for child in (low, warm):
    child.kill()
    child.wait()
"""


@needs_root
@pytest.mark.parametrize("dropped", [(), (linux.CAP_SYS_NICE,)], ids=["root", "root-in-a-container"])
def test_an_agent_detects_if_it_can_give_workers_normal_priority(dropped: tuple[int, ...]) -> None:
    if not linux.has_capability(linux.CAP_SYS_NICE):
        pytest.skip("the tests run without the capability themselves")

    def confine() -> None:
        # The tests' own process may have been reniced.
        os.setpriority(os.PRIO_PROCESS, 0, 0)
        for capability in dropped:
            linux.process_control(linux.PR_CAPBSET_DROP, capability)

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=PROJECT,
        env=os.environ | {"WORKER": str(ORDINARY_USER)},
        preexec_fn=confine,
        capture_output=True,
        text=True,
        check=True,
    )
    believed, true, priority = json.loads(done.stdout)
    assert believed == true == (not dropped)
    assert (priority, done.stderr) == (0, ""), "what is given work has the normal priority"
