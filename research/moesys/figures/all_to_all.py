"""The hierarchical all-to-all: its published gain, servers, spines and message sizes."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from moe.moesys.all_to_all import Algorithm, AllToAll, LinkRates, choose_all_to_all
from moe.moesys.hierarchical_exchange import messages_between
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.model_rows import ModelRow, row
from research.moesys import model
from research.runs import RunSpec
from simulation.reports.style import PALETTE, Drawing, base_figure

NAME = "all_to_all"
COUNTS = (2, 4, 8, 16)
#: Bytes from rank to rank.
SIZES = (4_096, 65_536, 524_288, 4_194_304)
LEAF = 25e9
PLACE = "80.7 B, 32 GPUs"


def runs(full: bool) -> Sequence[RunSpec]:
    """Return no run: the cost model is a formula."""
    return ()


def report(context: Context) -> FigureReport:
    """Report what one published gain says of the spine, and what follows from it."""
    as_time = model.spine_with_gain(1 / (1 - model.COMMUNICATION_CUT))
    as_speed = model.spine_with_gain(1 + model.COMMUNICATION_CUT)
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="by moe/moesys/all_to_all.py",
        notes=(
            (
                "Rates of links and shapes of layers are not published. The spine's share of a leaf's rate "
                f"follows from the published 15.5 %: {as_time:.3f} read as time, {as_speed:.3f} read "
                "as speed; 0.75 is used. From 10.3 % it follows that communication is "
                f"{model.communication_share():.1%} of a flat step."
            ),
        ),
        rows=_rows(context),
        tables=(_by_servers(), _by_size()),
        drawings=(_drawing(),),
        checks=_checks(),
    )


def _rows(context: Context) -> list[ModelRow]:
    time = 1.0 / model.exchange_gain(model.SERVERS, model.spine_rates(model.SPINE))
    share = model.communication_share()
    flat, hierarchical = messages_between(model.SERVERS, model.GPUS)
    return [
        row(
            context, NAME, "Communication over flat", PLACE, time, "the cost model with the fitted spine",
            calibrated=True,
        ),
        row(
            context, NAME, "Step over flat", PLACE, 1.0 - share + share * time,
            "with the fitted share of communication", calibrated=True,
        ),
        row(
            context, NAME, "Messages between servers, flat over hierarchical", "8 GPUs a server",
            flat / hierarchical, "moe/moesys/hierarchical_exchange.py",
        ),
    ]  # fmt: skip


def _by_servers() -> Table:
    shared = LinkRates(within_latency=0.0, between_latency=0.0, oversubscription=model.OVERSUBSCRIPTION)
    rates = (model.spine_rates(model.SPINE), shared)
    return Table(
        "Flat over hierarchical by servers of eight",
        "Without latency: with a spine of 0.75 of a leaf, and with uplinks oversubscribed 1.5 times.",
        ("Servers", "Spine 0.75", "Uplinks 1.5"),
        tuple(
            (f"{servers}", *(f"{model.exchange_gain(servers, each):.3f}" for each in rates))
            for servers in COUNTS
        ),
    )


def _by_size() -> Table:
    rows = []
    for size in SIZES:
        for share in (1.0, 0.75, 0.5):
            choice = choose_all_to_all(
                AllToAll(model.SERVERS, model.GPUS, size), LinkRates(spine=LEAF * share)
            )
            ratio = choice.flat_seconds / choice.hierarchical_seconds
            rows.append((f"{size / 1024:,.0f} KiB, {share:g}", f"{ratio:.2f}", choice.algorithm.value))
    return Table(
        "Choices on four servers of eight",
        "By bytes from rank to rank and the spine's share of a leaf's rate; 5 and 2 µs for a message.",
        ("Bytes, spine", "Flat over hierarchical", "Chosen"),
        tuple(rows),
    )


def _drawing() -> Drawing:
    figure = base_figure(height=320)
    spines = [0.25 + 0.05 * step for step in range(16)]
    for number, servers in enumerate(COUNTS):
        gains = [model.exchange_gain(servers, model.spine_rates(spine)) for spine in spines]
        figure.add_trace(
            go.Scatter(x=spines, y=gains, name=f"{servers} servers", line={"color": PALETTE[number]})
        )
    figure.update_xaxes(title_text="spine's share of a leaf's rate")
    figure.update_yaxes(title_text="flat over hierarchical")
    return Drawing("moesys-all-to-all", "Gain by spine", "Large messages.", figure, wide=True)


def _checks() -> list[Check]:
    gains = [model.exchange_gain(servers, model.spine_rates(model.SPINE)) for servers in COUNTS]
    slower = [model.exchange_gain(model.SERVERS, model.spine_rates(spine)) for spine in (1.0, 0.75, 0.5)]
    small, large = (
        choose_all_to_all(AllToAll(model.SERVERS, model.GPUS, size), LinkRates(spine=LEAF))
        for size in (SIZES[0], SIZES[-1])
    )
    gain = gains[COUNTS.index(model.SERVERS)]
    cut = 1.0 - 1.0 / gain
    step_cut = model.communication_share() * cut
    return [
        Check("The gain grows with servers", gains == sorted(gains), ", ".join(f"{g:.2f}" for g in gains)),
        Check(
            "It grows as the spine gets slower",
            slower == sorted(slower),
            f"{slower[0]:.2f} to {slower[-1]:.2f}",
        ),
        Check(
            "With a spine as fast as leaves it is a loss for large messages alone",
            (small.algorithm, large.algorithm) == (Algorithm.HIERARCHICAL, Algorithm.FLAT),
            f"{small.flat_seconds / small.hierarchical_seconds:.2f} and "
            f"{large.flat_seconds / large.hierarchical_seconds:.2f}",
        ),
        Check(
            "On four servers communication gains 15.5 %, as time or speed, to two points",
            min(abs(cut - 0.155), abs(gain - 1.155)) <= 0.02,
            f"{cut:.1%} less time, {gain - 1:.1%} more speed",
        ),
        Check("A step gains 10.3 % to two points", abs(step_cut - 0.103) <= 0.02, f"{step_cut:.1%}"),
    ]


FIGURE = FigureDefinition(NAME, "The hierarchical all-to-all", False, runs, report)
