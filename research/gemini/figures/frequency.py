"""Checkpoint frequency and checkpoint time, beside storage."""

from __future__ import annotations

from collections.abc import Sequence

from recovery.costs.frequency import points_every, share_of_time
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.gemini import explaining, model
from research.gemini.measured_recovery import frequency_tables, measured_recovery
from research.gemini.specs import FailureSpec
from research.model_rows import ModelRow, row

NAME = "frequency"
MACHINES = (4, 8, 12, 16)
LINKS = (100.0, 200.0, 400.0)
EXTENSIONS = (0.0, 0.1, 0.5, 1.0, 2.4)


def runs(full: bool) -> Sequence[FailureSpec]:
    """Return no run: everything is computed."""
    return ()


def report(context: Context) -> FigureReport:
    """Report frequencies, checkpoint times by machines and links, and the cost that a point may have."""
    by_link = {link: [reduction(machines, link) for machines in MACHINES] for link in LINKS}
    expected = [0.85 * link * machines / 20 for link in LINKS for machines in MACHINES]
    computed = [value for values in by_link.values() for value in values]
    rows = tuple((f"{link:.0f} Gbps", *(f"{one:.0f}" for one in each)) for link, each in by_link.items())
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="by recovery/costs and recovery/traffic as published; the last table is measured",
        rows=_rows(context),
        tables=(
            Table(
                "Checkpoint time, storage over memory",
                "Storage is shared by all machines, so that its time grows with them; memory is not. Two "
                "replicas.",
                ("Link", *(f"{machines} machines" for machines in MACHINES)),
                rows,
            ),
            _worth_table(),
            *frequency_tables(measured_recovery()),
        ),
        checks=(
            Check(
                "Checkpoint times over storage are 0.85 · NIC · N / 20",
                all(abs(one - other) <= 0.01 * other for one, other in zip(computed, expected, strict=True)),
                ", ".join(f"{value:.0f}" for value in computed),
            ),
        ),
    )


def reduction(machines: int, link_gbps: float) -> float:
    """Return the time of a checkpoint to storage over that to a peer's memory."""
    trained = model.gpt2_100b(machines, link_gbps)
    return trained.storage_seconds / trained.memory_seconds()


def _rows(context: Context) -> list[ModelRow]:
    trained = model.gpt2_100b()
    period = model.gemini(trained).period_seconds
    every = model.high_frequency(trained, stalls=False)[0]
    computed = model.high_frequency(trained, stalls=True)[1].period_seconds
    serialized = model.SERIALIZATION_SECONDS
    of_training, of_all = serialized / computed, serialized / (computed + serialized)
    how = "recovery/costs/wasted_time.py"
    straw = explaining.rounded(f"10,800 s over {period:g} s; 'more than 170 times' is published")
    share = explaining.of_all_time(f"{of_training:.1%}; {of_all:.1%} of all time")
    rows = [
        row(
            context, NAME, "Gemini over Strawman", "GPT-2 100B", model.DURABLE_PERIOD_SECONDS / period, how,
            why=(straw,),
        ),
        row(context, NAME, "Gemini over HighFreq", "GPT-2 100B", float(every), how),
        row(
            context, NAME, "Serialization of HighFreq, share of time", "GPT-2 100B", of_training, how,
            shares=True, why=(share,),
        ),
    ]  # fmt: skip
    for link, told in ((100.0, "65 times"), (400.0, "more than 250 times")):
        value = reduction(16, link)
        rows.append(
            row(
                context, NAME, "Storage over memory, checkpoint time", f"N = 16, {link:.0f} Gbps", value,
                "recovery/traffic: a machine's state to one peer, in chunks through sub-buffers",
                why=(explaining.useful_share(f"{value:.0f}; {told} is published"),),
            )
        )  # fmt: skip
    return rows


def _worth_table() -> Table:
    trained = model.gpt2_100b()
    rate = trained.machines * model.FAILURES_A_DAY / 86_400.0
    rows = []
    for extension in EXTENSIONS:
        every = points_every(extension, trained.iteration_seconds, rate)
        cost = share_of_time(every, extension, trained.iteration_seconds, rate)
        each = share_of_time(1, extension, trained.iteration_seconds, rate)
        rows.append((f"{extension:g} s", f"{every}", f"{cost:.3%}", f"{each:.3%}"))
    return Table(
        "How often a point pays where it lengthens its iteration",
        "16 machines that fail 0.24 times a day together. Share of time: longer iterations, and work lost on "
        "average.",
        ("A point costs", "Iterations between points", "Share of time", "With one each iteration"),
        tuple(rows),
    )


FIGURE = FigureDefinition(NAME, "Checkpoint frequency and checkpoint time", False, runs, report)
