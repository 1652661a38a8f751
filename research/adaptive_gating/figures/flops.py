"""FLOPs of each scheme, and the two-expert shares that they imply (Table 5.3)."""

from __future__ import annotations

from collections.abc import Sequence

from moe.gating.flops import interpolate
from research.adaptive_gating import explaining
from research.adaptive_gating.model import EVALUATED, Task
from research.adaptive_gating.published import ADAPTIVE, FLOPS, SHARE, STATED_SHARES, TOP1, TOP2, flops_series
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.model_rows import ModelRow, row
from research.runs import RunSpec

NAME = "flops"
LAW = "moe/gating/flops.py: the stated share of the way from printed top-1 to printed top-2"
FORMULA = "moe/gating/flops.py: attention, gate and experts of a layer"
IMPLIED = "moe/gating/flops.py: the share that the printed FLOPs imply"


def runs(full: bool) -> Sequence[RunSpec]:
    """Return no run: everything is computed."""
    return ()


def report(context: Context) -> FigureReport:
    """Report FLOPs by law and by formula, and implied shares."""
    return FigureReport(
        name=NAME,
        title=FIGURE.title,
        made="computed by moe/gating/flops.py",
        notes=(
            (
                "Printed figures are neither FLOPs nor multiply-adds of a token: 2.18 G is about the "
                "multiply-adds of BERT-Base for a sample of 25 tokens. So ratios are compared."
            ),
        ),
        rows=[one for task in EVALUATED.values() for one in _rows(context, task)],
        tables=(_formula_table(),),
        checks=_checks(),
    )


def _adaptive_over_top2(task: Task) -> float:
    stated = STATED_SHARES[task.number] or task.printed_share
    top1, top2 = FLOPS[TOP1][task.number], FLOPS[TOP2][task.number]
    return interpolate(top1, top2, stated) / top2


def _rows(context: Context, task: Task) -> list[ModelRow]:
    adaptive, top1 = _adaptive_over_top2(task), task.flops(1) / task.flops(2)
    # Without a stated share the printed figure gives its own share.
    is_fitted = STATED_SHARES[task.number] is None
    contradiction = (explaining.contradicted_share(f"{task.printed_share:.3f} by the table's FLOPs"),)
    rows = [
        row(
            context, NAME, flops_series(TOP1), task.name, top1, FORMULA,
            why=(explaining.printed_flops(f"{top1:.3f} by formula, assuming {task.assumed}"),),
        ),
        row(
            context, NAME, flops_series(ADAPTIVE), task.name, adaptive, LAW, calibrated=is_fitted,
            why=contradiction,
        ),
    ]  # fmt: skip
    if not is_fitted:
        rows.append(row(context, NAME, SHARE, task.name, task.printed_share, IMPLIED, why=contradiction))
    return rows


def _formula_table() -> Table:
    rows = []
    for task in EVALUATED.values():
        top1, top2 = task.flops(1), task.flops(2)
        adaptive = interpolate(top1, top2, task.share)
        printed = FLOPS[TOP2][task.number] / FLOPS[TOP1][task.number]
        rows.append(
            (
                task.name, task.assumed, *(f"{each / 1e6:.1f} M" for each in (top1, top2, adaptive)),
                f"{adaptive / 2e6:.1f} M", f"{adaptive / top2:.3f}", f"{top2 / top1:.2f}", f"{printed:.2f}",
            )
        )  # fmt: skip
    return Table(
        "FLOPs of a token in a layer, by formula",
        "A multiply-add is two FLOPs. Shares are those of the text; for translation and summarisation those "
        "of the table.",
        (
            "Task", "Assumed", "Top-1", "Top-2", "Adaptive", "Adaptive, multiply-adds", "Over top-2",
            "Top-2 over top-1", "Printed",
        ),
        tuple(rows),
    )  # fmt: skip


def _checks() -> list[Check]:
    ratios = {task.name: _adaptive_over_top2(task) for task in EVALUATED.values()}
    gaps = [
        ratios[task.name] * FLOPS[TOP2][task.number] / FLOPS[ADAPTIVE][task.number] - 1.0
        for task in EVALUATED.values()
        if task.name != "translation"
    ]
    least, most = min(ratios.values()), max(ratios.values())
    printed = [FLOPS[ADAPTIVE][task.number] / FLOPS[TOP1][task.number] for task in EVALUATED.values()]
    return [
        Check(
            "The law gives the printed FLOPs within 0.5 %, except for translation",
            max(map(abs, gaps)) <= 0.005,
            f"at most {max(map(abs, gaps)):.2%} off",
        ),
        Check(
            "Adaptive needs 0.70 to 0.77 of top-2's FLOPs",
            least >= 0.695 and most <= 0.775,
            f"{least:.3f} to {most:.3f}",
        ),
        Check(
            "Adaptive's printed FLOPs are at most 1.11 of top-1's",
            max(printed) <= 1.115,
            f"at most {max(printed):.3f}",
        ),
    ]


FIGURE = FigureDefinition(NAME, "FLOPs and two-expert shares", False, runs, report)
