"""Interference: the slow-down of an iteration under each way to send a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from recovery.traffic.link import Link
from recovery.traffic.modes import IterationTraffic, ModeOutcome, TrafficMode, compare, iteration_under
from recovery.traffic.partition import USABLE_SHARE
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.gemini.measured import measured, measured_tables
from research.gemini.model import COPY_BYTES_PER_SECOND, GPUS_PER_MACHINE, gpt2_100b
from research.gemini.specs import FailureSpec
from research.model_rows import ModelRow, row

NAME = "interference"
#: GPT-2 40B on p3dn: 30 GB a machine over 100 Gbps; copies are no faster than the link.
LINK_40B = Link(100e9 / 8 / GPUS_PER_MACHINE)
BYTES_40B = 30_000_000_000 // GPUS_PER_MACHINE
LONGEST_SPAN_SECONDS = 1.6
#: Free GPU memory, which the largest gap's buffer exceeds according to the text.
FREE_GPU_BYTES = 2_000_000_000
BLOCKING_PUBLISHED, WITHOUT_PIPELINE_PUBLISHED = 0.101, 0.035
#: Relative lengths of the spans besides the longest. The result is the same for all, as the table shows.
SHAPES: dict[str, tuple[float, ...]] = {
    "four equal": (1.0, 1.0, 1.0, 1.0),
    "growing": (1.0, 2.0, 3.0, 4.0),
    "many": (1.0,) * 40,
    "a long last one": (1.0, 1.0, 2.0),
}
CALIBRATED = (TrafficMode.BLOCKING, TrafficMode.WITHOUT_PIPELINE)
IN_ORDER = (TrafficMode.GEMINI, TrafficMode.WITHOUT_PIPELINE, TrafficMode.BLOCKING)
Outcomes = Mapping[TrafficMode, ModeOutcome]


def runs(full: bool) -> Sequence[FailureSpec]:
    """Return no run: iterations are computed."""
    return ()


def gpt2_40b(shape: Sequence[float]) -> IterationTraffic:
    """Return one GPU's iteration, calibrated: its length by the cost of blocking, its idle time by the cost
    without a pipeline; the longest span is published."""
    network = BYTES_40B / LINK_40B.bytes_per_second
    iteration = network / BLOCKING_PUBLISHED
    usable = 2 * network - WITHOUT_PIPELINE_PUBLISHED * iteration
    # The longest comes first. Of each span but the last, only a share may be used.
    rest = usable - USABLE_SHARE * LONGEST_SPAN_SECONDS
    one = rest / (USABLE_SHARE * sum(shape[:-1]) + shape[-1])
    return IterationTraffic(
        iteration_seconds=iteration,
        spans=(LONGEST_SPAN_SECONDS, *(one * part for part in shape)),
        checkpoint_bytes=BYTES_40B,
        replicas=2,
        link=LINK_40B,
        copy_bytes_per_second=LINK_40B.bytes_per_second,
        free_gpu_bytes=FREE_GPU_BYTES,
    )


def gpt2_100b_traffic(idle_seconds: float) -> IterationTraffic:
    """Return one GPU's iteration of GPT-2 100B on p4d with this idle time, none of it in the last span."""
    trained = gpt2_100b()
    return IterationTraffic(
        iteration_seconds=trained.iteration_seconds,
        spans=(idle_seconds / 2, idle_seconds / 2, 0.0),
        checkpoint_bytes=round(trained.machine_bytes / GPUS_PER_MACHINE),
        replicas=2,
        link=Link(trained.link().bytes_per_second / GPUS_PER_MACHINE),
        copy_bytes_per_second=COPY_BYTES_PER_SECOND / GPUS_PER_MACHINE,
        free_gpu_bytes=FREE_GPU_BYTES,
    )


def report(context: Context) -> FigureReport:
    """Report the modes of GPT-2 40B, and whether GPT-2 100B is unaffected."""
    shapes = {name: {one.mode: one for one in compare(gpt2_40b(shape))} for name, shape in SHAPES.items()}
    found = shapes["four equal"]
    naive, gemini = found[TrafficMode.NAIVE], found[TrafficMode.GEMINI]
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="computed by recovery/traffic/modes.py for one GPU; the last table is measured",
        notes=(
            (
                "Neither the iteration time nor the spans of GPT-2 40B are published. Its iteration is "
                "calibrated from what blocking costs, and its idle time from what interleaving without a "
                "pipeline costs, so that these two rows agree by construction. That Gemini costs nothing, "
                "and that naive interleaving runs out of memory, follows, whatever the list of spans."
            ),
        ),
        rows=_rows(context, found),
        tables=(_table(shapes), *measured_tables(measured())),
        checks=(
            Check(
                "Naive interleaving runs out of memory",
                naive.out_of_memory,
                f"{naive.buffer_bytes / 1e9:.1f} GB for the span of {LONGEST_SPAN_SECONDS} s; Gemini's "
                f"buffers take {gemini.buffer_bytes / 1e6:.0f} MB",
            ),
            Check(
                "Gemini, then no pipeline, then blocking, for every list of spans",
                all(_in_order(each) for each in shapes.values()),
                ", ".join(f"{found[mode].extension_seconds:.2f} s" for mode in IN_ORDER),
            ),
            _idle_needed(),
        ),
    )


def _in_order(found: Outcomes) -> bool:
    extensions = [found[mode].extension_seconds for mode in IN_ORDER]
    return extensions == sorted(extensions) and extensions[0] == 0.0


def _rows(context: Context, found: Outcomes) -> list[ModelRow]:
    base = gpt2_40b(SHAPES["four equal"]).iteration_seconds
    rows = [
        row(
            context, NAME, mode.value, "GPT-2 40B on p3dn",
            None if outcome.out_of_memory else outcome.extension_seconds / base,
            "recovery/traffic/modes.py: share by which an iteration becomes longer",
            calibrated=mode in CALIBRATED, missing="out of memory" if outcome.out_of_memory else "",
        )
        for mode, outcome in found.items()
        if mode is not TrafficMode.NONE
    ]  # fmt: skip
    large = iteration_under(TrafficMode.GEMINI, gpt2_100b_traffic(3.0))
    how = "recovery/traffic/modes.py, 3 s of idle time in an iteration of 62 s; spans are not published"
    share = large.extension_seconds / gpt2_100b().iteration_seconds
    return [*rows, row(context, NAME, "gemini", "GPT-2 100B on p4d", share, how)]


def _idle_needed() -> Check:
    """Find the idle time that an iteration needs, by bisection."""
    low, high = 0.0, 10.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        longer = iteration_under(TrafficMode.GEMINI, gpt2_100b_traffic(middle)).extension_seconds > 0.0
        low, high = (middle, high) if longer else (low, middle)
    return Check(
        "GPT-2 100B needs about 2.2 s of idle time in 62 s",
        abs(high - 2.2) < 0.05,
        f"{high:.2f} s, {high / gpt2_100b().iteration_seconds:.1%}",
    )


def _table(shapes: Mapping[str, Outcomes]) -> Table:
    return Table(
        "GPT-2 40B by the list of spans",
        "By how much an iteration becomes longer. The sum of what may be used is the same in all lists.",
        ("Spans", *(mode.value for mode in TrafficMode)),
        tuple((name, *(_told(found[mode]) for mode in TrafficMode)) for name, found in shapes.items()),
    )


def _told(outcome: ModeOutcome) -> str:
    return "out of memory" if outcome.iteration_seconds is None else f"{outcome.extension_seconds:.2f} s"


FIGURE = FigureDefinition(NAME, "Interference with training", False, runs, report)
