"""The process that forks warm workers, one for all tests of a session: importing PyTorch takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from workers.runtime.at_home.local_nursery import Nursery


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """A process that forks warm workers."""
    # Imported here because most sessions do not need it.
    from workers.runtime.at_home.local_agent import stage_packages
    from workers.runtime.at_home.local_nursery import Nursery

    born = Nursery(stage_packages(tmp_path_factory.mktemp("packages") / "staged"))
    yield born
    born.close()
