"""The embedding table partitioned by columns (Table 4)."""

from __future__ import annotations

from collections.abc import Sequence

from research.figure import Check, Context, FigureDefinition, FigureReport
from research.model_rows import ModelRow, row
from research.moesys import explaining, model
from research.moesys.published import TABLE_4
from research.runs import RunSpec

NAME = "embedding"
WIDTHS = (2048, 4096, 8192)


def runs(full: bool) -> Sequence[RunSpec]:
    """Return no run: bytes over rates."""
    return ()


def report(context: Context) -> FigureReport:
    """Report what is no longer sent, updated and kept, of the published step and memory."""
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="bytes of moe/moesys/embedding.py over rates of A100s, off the published step of the baseline",
        notes=(
            (
                "A step is 8 samples of 1,024 tokens, assumed. The table's gradient is sent at 250 GB/s, and "
                "updating the table moves 28 bytes of a parameter at 1.5 TB/s. Nothing is fitted."
            ),
        ),
        rows=_rows(context),
        checks=_checks(),
    )


def _rows(context: Context) -> list[ModelRow]:
    rows = []
    for experts, hidden in TABLE_4:
        x = f"{experts} experts, h {hidden}"
        speed, memory = model.embedding_speed(experts, hidden), model.embedding_memory(experts, hidden)
        rows += [
            row(
                context, NAME, "Speed, partitioned over replicated", x, speed, "moe/moesys/embedding.py",
                why=(explaining.by_hidden_alone(f"{speed:.3f}"),),
            ),
            row(
                context, NAME, "Memory, partitioned over replicated", x, memory,
                "16 bytes of a parameter less", why=(explaining.saved_states(f"{memory:.3f}"),),
            ),
        ]  # fmt: skip
    return rows


def _checks() -> list[Check]:
    speeds = [model.embedding_speed(4, hidden) for hidden in WIDTHS]
    published = [TABLE_4[4, hidden][3] / TABLE_4[4, hidden][2] for hidden in WIDTHS]
    off = max(abs(ours / theirs - 1.0) for ours, theirs in zip(speeds, published, strict=True))
    least = [
        (row[0] - row[1]) / (row[0] * (1.0 - model.embedding_memory(*key))) for key, row in TABLE_4.items()
    ]
    return [
        Check(
            "With four experts the gain grows with the width",
            speeds == sorted(speeds),
            ", ".join(f"{speed:.3f}" for speed in speeds),
        ),
        Check("It is within 10 % of the published one", off <= 0.10, f"{off:.1%} at most"),
        Check(
            "No published saving of memory is below 16 bytes of a parameter",
            min(least) > 0.98,
            f"{min(least):.2f} to {max(least):.2f} times that",
        ),
    ]


FIGURE = FigureDefinition(NAME, "The partitioned embedding table", False, runs, report)
