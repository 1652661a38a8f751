"""What reaches a node besides a job's own bundle and requirements, and the names that follow from it.

The agent copies these to where workers find them, the agents' image holds them, and the control plane refuses
bundles that would hide one of their names. A package that workers are to import is added here and in the
image, nowhere else.
"""

from __future__ import annotations

import sys

#: Of this repository: files, or folders with all their modules.
STAGED = (
    "communication",
    "moe/__init__.py",
    "moe/gating",
    "moe/lina",
    "moe/moesys",
    "punctual",
    "recovery/__init__.py",
    "recovery/costs",
    "recovery/store",
    "recovery/traffic",
    "workers/__init__.py",
    "workers/links",
    "workers/runtime",
    "workers/serving",
)
#: Of the node's own installation.
INSTALLED = ("numpy", "torch")


def reserved_because(module: str) -> str | None:
    """Why no module of a bundle may have this top-level name; None where it may.

    A bundle comes first on workers' path: whatever it names like this would be imported in place of it, by
    PyTorch itself too.
    """
    if module in {name.split("/")[0] for name in STAGED}:
        return f"the platform's package {module}"
    if module in INSTALLED:
        return f"the package {module}"
    if module in sys.stdlib_module_names:
        return f"Python's own module {module}"
    return None
