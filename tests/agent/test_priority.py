"""Warm workers may begin at low priority only where the agent can give them the normal one later."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.agent.conftest import PROJECT
from tests.agent.test_sandbox import ORDINARY_USER, needs_root
from workers.agent import linux

#: As the agent does: starts somebody else's process at low priority and says what it thinks of raising it, and whether it can.
SCRIPT = """
import json, os, subprocess
from pathlib import Path
from workers.agent.worker_processes import can_restore_priority
child = subprocess.Popen(["sleep", "60"], user=int(os.environ["WORKER"]), preexec_fn=lambda: os.nice(10))
try:
    os.setpriority(os.PRIO_PROCESS, child.pid, 0)
    can = True
except PermissionError:
    can = False
child.kill()
child.wait()
print(json.dumps([can_restore_priority(), can]))
"""


@needs_root
@pytest.mark.parametrize("dropped", [(), (linux.CAP_SYS_NICE,)], ids=["root", "root-in-a-container"])
def test_an_agent_knows_whether_it_can_give_a_worker_the_normal_priority(dropped: tuple[int, ...]) -> None:
    if not linux.has_capability(linux.CAP_SYS_NICE):
        pytest.skip("the tests run without the capability themselves")

    def confine() -> None:
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
    believed, true = json.loads(done.stdout)
    assert believed == true == (not dropped)
