"""Time of the selection, and the number of tensors that it may offload (Tables 4.3 and 4.4)."""

from __future__ import annotations

from collections.abc import Sequence

from research.espresso import explaining, model
from research.espresso.specs import SelectionSpec
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.model_rows import ModelRow, row
from research.store import RunResult

NAME = "selection"
MOST_SECONDS = 3.0


def runs(full: bool) -> Sequence[SelectionSpec]:
    """Return a run of every workload on 64 GPUs."""
    return [SelectionSpec(name) for name in model.WORKLOADS]


def report(context: Context) -> FigureReport:
    """Report times of both algorithms beside the published ones, and how much each has tried."""
    rows: list[ModelRow] = []
    table = []
    slowest = 0.0
    for name in model.WORKLOADS:
        spec = SelectionSpec(name)
        if (result := context.get(spec)) is None:
            continue
        rows += _rows(context, spec, name, result)
        facts = result.facts
        slowest = max(slowest, float(facts["decision_seconds"] + facts["offload_seconds"]))
        table.append(
            (
                name,
                f"{facts['candidates']:.0f}",
                f"{facts['decision_evaluations']:,.0f}",
                f"{facts['offload_vectors']:,.0f}",
                f"2^{facts['offload_candidates']:.0f}",
                f"{facts['evaluations']:,.0f}",
            )
        )
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="wall-clock time of communication/espresso on the machine that made this report",
        rows=rows,
        tables=(
            Table(
                "What was tried",
                "Undominated options of a size; timelines of Algorithm 4.1; vectors of Algorithm 4.2 and the "
                "subsets that they stand for; timelines of the whole selection with all its passes.",
                ("Model", "Options", "One pass", "Vectors", "Subsets", "Whole selection"),
                tuple(table),
            ),
        ),
        checks=(
            Check(
                "One pass and its offload search take less than 3 s for every model",
                slowest < MOST_SECONDS if table else None,
                f"{slowest:.3f} s at most",
            ),
        ),
    )


def _rows(context: Context, spec: SelectionSpec, name: str, result: RunResult) -> list[ModelRow]:
    facts, how = result.facts, spec.described()
    tensors, candidates = float(facts["tensors"]), float(facts["offload_candidates"])
    return [
        row(
            context, NAME, "Tensors", name, tensors, "the public profile",
            why=(explaining.other_tensors(f"{tensors:.0f}"),),
        ),
        row(
            context, NAME, "GPU decision", name, float(facts["decision_seconds"]), how, unit="s",
            why=(explaining.other_machine(f"{facts['decision_evaluations']:,.0f} timelines"),),
        ),
        row(
            context, NAME, "Offload candidates", name, candidates, how,
            why=(explaining.other_selection(f"{candidates:.0f} tensors are compressed on GPUs"),),
        ),
        row(
            context, NAME, "Offload search", name, float(facts["offload_seconds"]), how, unit="s",
            why=(explaining.other_machine(f"{facts['offload_vectors']:,.0f} vectors"),),
        ),
    ]  # fmt: skip


FIGURE = FigureDefinition(NAME, "Selection time", False, runs, report)
