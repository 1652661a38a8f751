"""The nursery imports torch and forks: it must not touch the GPU, and its children must be able to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.conftest import ON_THE_CPU

#: The folder of the driver's libraries in a container.
SYSTEM = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
ROOT = Path(__file__).parents[2]
_FORKS = """
import os, runpy, sys
sys.path.insert(0, sys.argv[1])
runpy.run_path(sys.argv[1] + "/workers/runtime/preload.py")
from workers.agent.processes.nursery_process import why_not_to_fork
assert why_not_to_fork() is None, why_not_to_fork()
child = os.fork()
if child == 0:
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    import torch
    computed = torch.ones(8, device="cuda").sum().item()
    os._exit(0 if computed == 8.0 else 3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_process_forked_after_importing_torch_uses_the_gpu() -> None:
    if ON_THE_CPU:
        pytest.skip("it is about the GPU's driver")
    done = subprocess.run(
        [sys.executable, "-P", "-c", _FORKS, str(ROOT)],
        env={**SYSTEM, "OMP_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_preloaded_modules_load_no_driver() -> None:
    code = (
        f"import runpy; runpy.run_path({str(ROOT / 'workers/runtime/preload.py')!r}); "
        "from pathlib import Path; assert 'libcuda.so' not in Path('/proc/self/maps').read_text()"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**SYSTEM, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
