"""Elastic training of tasks with unequal loads (Table 3), and the public recipe of VIMER-UFO 2.0."""

from __future__ import annotations

from collections.abc import Sequence

from moe.moesys.choices import Mode
from moe.moesys.elastic import plan_elastic, plan_one_gpu_each
from moe.moesys.gangs import Gang, predict_gang, useful_gangs
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.model_rows import ModelRow, row
from research.moesys import model
from research.runs import RunSpec

NAME = "elastic"
#: As many as the larger published gang.
FREE_GPUS = 8


def runs(full: bool) -> Sequence[RunSpec]:
    """Return no run: plans are made at once."""
    return ()


def report(context: Context) -> FigureReport:
    """Report both published plans, and others of the same tasks."""
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="planned by moe/moesys/elastic.py; T = c0 + c1·(largest load), through both published values",
        notes=(
            (
                "Two constants use up two values. The table has what they predict for other plans of the "
                "same tasks: two GPUs with packed tasks are as fast as four with one task each."
            ),
        ),
        rows=_rows(context),
        tables=(_plans(),),
        checks=_checks(),
    )


def _one_each() -> Gang:
    return predict_gang(plan_one_gpu_each(model.TASKS), model.step_cost())


def _rows(context: Context) -> list[ModelRow]:
    four, eight = _one_each(), predict_gang(plan_elastic(model.TASKS, Mode.UP), model.step_cost())
    gain = eight.samples_per_second_and_gpu / four.samples_per_second_and_gpu
    recipe = plan_elastic(model.UFO, Mode.UP)
    unknown = "sizes of the model, costs of its tasks and links of its cluster are not published"
    return [
        *(
            row(
                context, NAME, "Samples per second", f"{gang.plan.gpus} GPUs", gang.samples_per_second,
                "moe/moesys/gangs.py", unit="samples/s", calibrated=True,
            )
            for gang in (four, eight)
        ),
        row(
            context, NAME, "Gain of each GPU", "8 over 4 GPUs", gain, "moe/moesys/gangs.py", calibrated=True
        ),
        row(context, NAME, "GPUs of the recipe", "VIMER-UFO 2.0", recipe.gpus, "moe/moesys/elastic.py"),
        *(
            row(context, NAME, f"UFO over PyTorch, {what}", "32 GPUs", None, "nothing", missing=unknown)
            for what in ("throughput", "memory")
        ),
    ]  # fmt: skip


def _plans() -> Table:
    gangs = [_one_each(), *useful_gangs(model.TASKS, model.step_cost(), FREE_GPUS)]
    rows = []
    for number, gang in enumerate(gangs):
        samples = " | ".join("+".join(map(str, share.samples)) for share in gang.plan.shares)
        rows.append(
            (
                f"{gang.plan.gpus}{'' if number else ' (one task each)'}", samples,
                f"{gang.plan.utilisation:.0%}", f"{gang.samples_per_second:.1f}",
                f"{gang.samples_per_second_and_gpu:.1f}",
            )
        )  # fmt: skip
    return Table(
        "Plans for batches of 512, 256, 128 and 128",
        "Samples of each GPU; predicted samples per second of all GPUs and of each.",
        ("GPUs", "Samples", "Busy", "Samples per second", "Of each"),
        tuple(rows),
    )


def _checks() -> list[Check]:
    before = _one_each().samples_per_second_and_gpu
    gangs = useful_gangs(model.TASKS, model.step_cost(), FREE_GPUS)
    gains = [gang.samples_per_second_and_gpu / before for gang in gangs]
    recipe, single = plan_elastic(model.UFO, Mode.UP), plan_one_gpu_each(model.UFO)
    return [
        Check(
            "Every balanced plan does more for each GPU than one task on each",
            min(gains) > 1.0,
            f"{min(gains):.2f} to {max(gains):.2f} times",
        ),
        Check(
            "The recipe's GPUs are busy for 99.5 %, with one on each task for 25 %",
            round(recipe.utilisation, 3) == 0.995 and round(single.utilisation, 2) == 0.25,
            f"{recipe.utilisation:.3f}, {single.utilisation:.3f}",
        ),
    ]


FIGURE = FigureDefinition(NAME, "Elastic training", False, runs, report)
