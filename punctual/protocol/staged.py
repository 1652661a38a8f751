"""Code that reaches a node besides a job's bundle and requirements, and the names that it reserves.

The agent stages it for workers, the agents' image contains it, and the control plane refuses bundles that
would hide one of its names. To let workers import another package, add it here and to the image, nowhere
else.
"""

from __future__ import annotations

import sys

#: From this repository: files, or folders with all their modules.
STAGED = (
    "communication",
    "emulated_links",
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
    "workers/runtime",
    "workers/serving",
)
#: From the node's own installation.
INSTALLED = ("numpy", "torch")


def reserved_because(module: str) -> str | None:
    """Return why no module of a bundle may have this top-level name, or None.

    A bundle is first on workers' path, so its modules would hide others of the same name, even from PyTorch.
    """
    if module in {name.split("/")[0] for name in STAGED}:
        return f"the platform's package {module}"
    if module in INSTALLED:
        return f"the package {module}"
    if module in sys.stdlib_module_names:
        return f"Python's own module {module}"
    return None
