"""Each part alone over the same baseline (Table 5), as far as bytes determine it."""

from __future__ import annotations

from collections.abc import Sequence

from moe.moesys.embedding import TableTraffic
from research.figure import Context, FigureDefinition, FigureReport
from research.model_rows import row
from research.moesys import explaining, model
from research.moesys.published import BASELINE_5, TABLE_5
from research.runs import RunSpec

NAME = "cross"
HIDDEN = 2048
EMBEDDING, ALL_TO_ALL = "Embedding partition", "Resource-aware"
UNKNOWN = "servers, tasks and their loads are not published, and steps are not simulated event by event"


def runs(full: bool) -> Sequence[RunSpec]:
    """Return no run: this is arithmetic."""
    return ()


def report(context: Context) -> FigureReport:
    """Report the memory of parts that move no load between GPUs."""
    saved = TableTraffic(model.VOCABULARY, HIDDEN, model.GPUS, model.SEQUENCE).saved_memory_bytes / model.GB
    memory = {ALL_TO_ALL: 1.0, EMBEDDING: 1.0 - saved / BASELINE_5[0]}
    rows = [
        *(
            row(context, NAME, "Speed over the baseline", part, None, "nothing", missing=UNKNOWN)
            for part in TABLE_5
        ),
        *(
            row(
                context, NAME, "Memory over the baseline", part, memory.get(part),
                "16 bytes of a parameter less" if part == EMBEDDING else "the same states",
                missing="" if part in memory else UNKNOWN,
                why=(explaining.saved_states(f"{memory[part]:.3f}"),) if part == EMBEDDING else (),
            )
            for part in TABLE_5
        ),
    ]  # fmt: skip
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="bytes of moe/moesys/embedding.py off the published memory of the baseline",
        notes=(f"No speed of ours stands here: {UNKNOWN}.",),
        rows=rows,
    )


FIGURE = FigureDefinition(NAME, "Each part alone", False, runs, report)
