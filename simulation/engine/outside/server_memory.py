"""Host memory of simulated servers and workers: the levels that fit (decision 0017), by the core's rules."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path

from scheduling.core.question.arrays import BoolArray, Plans
from scheduling.core.question.columns import NO_LEVEL, CurveColumns, stack_curves
from scheduling.core.question.host_memory import (
    counted_on_by,
    least_beyond,
    levels_within,
    share_of,
    states_memory,
)
from scheduling.core.question.snapshot import FloatArray, IntArray, ScalingCurve, ServerSnapshot

BYTES_PER_GB = 1e9
COLUMNS = ("server", "memory_gb")


@dataclass(frozen=True, slots=True)
class HeldPlans:
    """GPUs that a question's jobs hold: in stored plans, and now (``gpus``). ``newcomer``: True for jobs not
    admitted yet."""

    plans: Plans
    gpus: IntArray
    newcomer: BoolArray

    def of(self, row: int) -> list[int]:
        """Return the numbers of GPUs that a job holds, now or later."""
        planned: list[int] = self.plans.gpus[row, : self.plans.length[row]].tolist()
        return [*planned, int(self.gpus[row])]


def server_memory_bytes(given: str | None, servers: int) -> tuple[float, ...]:
    """Return each server's host memory in bytes as the command line gives it: a number of gigabytes for all,
    or a file; empty if not given.

    Raises ValueError with one line that says what is wrong and what would be right.
    """
    if given is None:
        return ()
    try:
        gigabytes = float(given)
    except ValueError:
        return _from_file(Path(given), servers)
    if not isfinite(gigabytes) or gigabytes <= 0:
        raise ValueError(f"--server-memory-gb must be above 0, not {given}")
    return (gigabytes * BYTES_PER_GB,) * servers


def _from_file(path: Path, servers: int) -> tuple[float, ...]:
    if not path.is_file():
        raise ValueError(f"--server-memory-gb: {path} is neither a file nor a number of gigabytes")
    found = dict.fromkeys(range(servers), inf)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or [])]
            if missing:
                raise ValueError(f"{path}: no column {missing[0]}; the file has {' and '.join(COLUMNS)}")
            for line, row in enumerate(reader, start=2):
                server, gigabytes = _row(f"{path}, line {line}", row, servers)
                found[server] = gigabytes * BYTES_PER_GB
    except UnicodeDecodeError:
        raise ValueError(f"{path}: this is not a text file; a CSV is expected") from None
    return tuple(found.values())


def _row(where: str, row: dict[str, str], servers: int) -> tuple[int, float]:
    try:
        server, gigabytes = int(row["server"]), float(row["memory_gb"])
    except (TypeError, ValueError):
        raise ValueError(f"{where}: server is a whole number and memory_gb a number") from None
    if not 0 <= server < servers or not isfinite(gigabytes) or gigabytes <= 0:
        raise ValueError(f"{where}: server lies between 0 and {servers - 1}, and memory_gb is above 0")
    return server, gigabytes


def guaranteed_share(
    servers: Sequence[ServerSnapshot],
    curves: CurveColumns,
    needs: FloatArray | None,
    held: HeldPlans,
    least: float,
) -> float:
    """Return the bytes that every worker is guaranteed
    (`scheduling.core.question.host_memory.guaranteed_share`); infinity if neither servers nor the operator
    state any memory.

    ``needs``: bytes of one worker, in the shape of the curves; None if no job states any.
    """
    if not states_memory(servers, least):
        return inf
    counted_on = (
        counted_on_by(curve_of(curves, needs, row), held.of(row), newcomer=bool(held.newcomer[row]))
        for row in range(held.gpus.size)
    )
    return share_of(servers, least, 0.0 if needs is None else max(counted_on, default=0.0))


def fitting(curves: CurveColumns, needs: FloatArray | None, share: float) -> CurveColumns:
    """Return the curves without levels on which a worker needs more than ``share`` bytes."""
    if needs is None or not (needs > share).any():
        return curves
    rows = range(curves.levels.shape[0])
    return stack_curves([levels_within(curve_of(curves, needs, row), share) for row in rows])


def short_of_memory(
    ids: Sequence[str], curves: CurveColumns, needs: FloatArray | None, rows: IntArray, share: float
) -> dict[str, float]:
    """Return the jobs of ``rows`` that fit on no level: by id, the least memory of one worker, in bytes."""
    if needs is None:
        return {}
    found = {ids[row]: least_beyond(curve_of(curves, needs, row), share) for row in rows.tolist()}
    return {job_id: needed for job_id, needed in found.items() if needed}


def curve_of(curves: CurveColumns, needs: FloatArray | None, row: int) -> ScalingCurve:
    """Return one row of the matrices as a curve."""
    inside = curves.levels[row] != NO_LEVEL
    return ScalingCurve(
        curves.levels[row, inside],
        curves.throughput[row, inside],
        curves.pause[row, inside],
        None if needs is None else needs[row, inside],
    )
