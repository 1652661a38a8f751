"""Speedups of synchronising embeddings on 16 machines (Figure 3.13), and their breakdown (Figure 3.18)."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from communication.zen.schemes import Scheme
from research.figure import Check, Context, FigureDefinition, FigureReport, Table, within
from research.model_rows import ModelRow, row
from research.rows import Explanation
from research.runs import RunSpec
from research.zen import explaining, model
from research.zen.published import AT_16
from simulation.reports.style import PALETTE, Drawing, base_figure

NAME = "embeddings"
MACHINES = (2, 4, 8, 16)
BETAS = (0.6, 0.65, 0.7, 0.75, 0.8)
#: Published: speedup with COO alone, and what the hash bitmap adds.
BREAKDOWN = {"LSTM": (4.97, 0.36), "BERT": (2.39, 0.26)}


def runs(full: bool) -> Sequence[RunSpec]:
    """Return no run: these are the planner's formulas."""
    return ()


def report(context: Context) -> FigureReport:
    """Report speedups over all-reduce by model and scheme."""
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="computed by communication/zen/schemes.py with the densities of machines",
        notes=(
            (
                "16 machines of 8 GPUs: each machine's GPUs add up first, so what is pushed has the density "
                "of 8 workers' sum and what is pulled that of 128. LSTM's and DeepFM's densification is "
                "fitted to their speedups; BERT's and NMT's follow from end points."
            ),
        ),
        rows=_rows(context),
        tables=(_table(), _sensitivity(), _breakdown()),
        drawings=(_drawing(),),
        checks=_checks(),
    )


def coo_speedup(name: str) -> float:
    """Return the speedup of Zen with COO both ways."""
    return model.embedding_speedup(model.MODELS[name], Scheme.BALANCED_COO)


def zen_speedup(name: str) -> float:
    """Return the speedup of Zen."""
    return model.embedding_speedup(model.MODELS[name], Scheme.ZEN)


def over_rivals(rivals: Sequence[Scheme], machines: Sequence[int] = (model.MACHINES,)) -> float:
    """Return Zen's largest gain over rivals' exchanges of an embedding, over all models."""
    return max(
        model.embedding_seconds(each, rival, model.V100, count)
        / model.embedding_seconds(each, Scheme.ZEN, model.V100, count)
        for each in model.MODELS.values()
        for rival in rivals
        for count in machines
    )


def _rows(context: Context) -> list[ModelRow]:
    how = "research/zen/model.py: formulas, 0.86 of the line rate, 2 ms of hashing"

    def one(series: str, x: str, ours: float, *why: Explanation, fitted: bool = False) -> ModelRow:
        gain = series == "Gain of the hash bitmap"
        return row(context, NAME, series, x, ours, how, shares=gain, calibrated=fitted, why=why)

    rows = []
    for name in model.MODELS:
        value, place = zen_speedup(name), f"{name}, {AT_16}"
        if name in model.FITTED_EMBEDDING:
            rows.append(one("Zen over all-reduce", place, value, fitted=True))
        else:
            why = explaining.constant_work(f"{value:.2f}, beta {model.fitted_beta(name):.3f}")
            rows.append(one("Zen over all-reduce", place, value, why))
    for name in BREAKDOWN:
        coo, zen, place = coo_speedup(name), zen_speedup(name), f"{name}, {AT_16}"
        told = f"{coo:.2f} with COO, {zen:.2f} with the bitmap"
        causes = (explaining.densities(told), explaining.constant_work(told))
        rows.append(one("Zen with COO alone over all-reduce", place, coo, *causes))
        rows.append(one("Gain of the hash bitmap", place, zen / coo - 1.0, *causes))
    omni = max(model.embedding_speedup(each, Scheme.OMNIREDUCE) for each in model.MODELS.values())
    skew = explaining.one_skew(f"{omni:.2f} at most, on LSTM")
    rows.append(one("OmniReduce over all-reduce, at most", AT_16, omni, skew))
    for rival, series in (
        (Scheme.SPARCML, "Zen over SparCML, at most"),
        (Scheme.OMNIREDUCE, "Zen over OmniReduce, at most"),
    ):
        told = f"{over_rivals((rival,)):.2f}"
        causes = (explaining.densities(told), explaining.one_skew(told))
        rows.append(one(series, AT_16, over_rivals((rival,)), *causes))
    most = over_rivals((Scheme.SPARCML, Scheme.OMNIREDUCE), MACHINES)
    skew = explaining.one_skew(f"{most:.2f} over OmniReduce or SparCML, found over 2 to 16 machines")
    rows.append(one("Zen over the state of the art, at most", "all machines", most, skew))
    return rows


def _table() -> Table:
    return Table(
        "Speedups over all-reduce, 16 machines, 25 Gbps (Figure 3.13)",
        "Of the embedding's synchronisation.",
        ("Model", *(scheme.value for scheme in model.SCHEMES)),
        tuple(
            (name, *(f"{model.embedding_speedup(each, scheme):.2f}" for scheme in model.SCHEMES))
            for name, each in model.MODELS.items()
        ),
    )


def _sensitivity() -> Table:
    rows = []
    for beta in BETAS:
        values = (model.embedding_speedup(model.LSTM, one, beta=beta) for one in model.SCHEMES)
        rows.append((f"{beta:g}", *(f"{value:.2f}" for value in values)))
    rows.append(
        (
            f"{model.fitted_beta('LSTM'):.4f} (fitted)",
            *(f"{model.embedding_speedup(model.LSTM, one):.2f}" for one in model.SCHEMES),
        )
    )
    return Table(
        "LSTM by beta",
        "Nothing is published of its densification; the published speedup of Zen asks for little of it.",
        ("Beta", *(scheme.value for scheme in model.SCHEMES)),
        tuple(rows),
    )


def _breakdown() -> Table:
    """Show what both speedups imply together: they differ only by the pull's index bytes."""
    rows = []
    for name, (coo, gain) in BREAKDOWN.items():
        pulled = implied_pull_density(coo, gain)
        law = model.exchange(model.MODELS[name]).densification
        rows.append((name, f"{coo:g}", f"{coo * (1 + gain):.2f}", f"{pulled:.3f}", f"{law.after(128):.3f}"))
    return Table(
        "Density that the published breakdown implies (Figure 3.18)",
        "1 / COO - 1 / Zen is half of the pulled density less 1/32, whatever else both have in common. That "
        "of BERT is not the 0.408 that is told elsewhere: it is another measurement.",
        ("Model", "COO alone", "Zen", "Pulled density implied", "In this model"),
        tuple(rows),
    )


def implied_pull_density(coo: float, gain: float) -> float:
    """Return the density with which hash bitmaps add ``gain`` to a speedup over all-reduce."""
    return 2.0 * (1.0 / coo - 1.0 / (coo * (1.0 + gain))) + 1.0 / 32.0


def _drawing() -> Drawing:
    figure = base_figure(height=340)
    for number, scheme in enumerate(model.SCHEMES):
        figure.add_trace(
            go.Bar(
                x=list(model.MODELS),
                y=[model.embedding_speedup(each, scheme) for each in model.MODELS.values()],
                name=scheme.value,
                marker_color=PALETTE[number],
            )
        )
    figure.add_hline(y=1.0, line_dash="dash")
    figure.update_yaxes(title_text="speedup over all-reduce")
    note = "Embedding alone, 16 machines, 25 Gbps."
    return Drawing("zen-embeddings", "Speedup on embeddings", note, figure, wide=True)


def _checks() -> list[Check]:
    bands = [
        within(f"{name}, Zen over all-reduce, 20 %", zen_speedup(name), published, 0.2 * published, ".2f")
        for name, published in (("LSTM", 6.77), ("BERT", 3.0), ("DeepFM", 2.10), ("NMT", 1.97))
    ]
    bands += [
        within(f"{name}, Zen with COO alone, 20 %", coo_speedup(name), coo, 0.2 * coo, ".2f")
        for name, (coo, _) in BREAKDOWN.items()
    ]
    gains = {name: zen_speedup(name) / coo_speedup(name) - 1.0 for name in model.MODELS}
    implied = {name: implied_pull_density(*speedups) for name, speedups in BREAKDOWN.items()}
    omni = max(model.embedding_speedup(each, Scheme.OMNIREDUCE) for each in model.MODELS.values())
    order = all(
        zen_speedup(name) > model.embedding_speedup(each, scheme)
        for name, each in model.MODELS.items()
        for scheme in model.BASELINES
    )
    slower = [
        scheme.value
        for scheme in (Scheme.AGSPARSE, Scheme.SPARSE_PS, Scheme.SPARCML)
        if min(model.embedding_speedup(each, scheme) for each in model.MODELS.values()) < 1.0
    ]
    return [
        *bands,
        Check("OmniReduce gains no more than 1.58", omni <= 1.58, f"{omni:.2f}"),
        Check("Zen is faster than every baseline, on each model", order, "16 machines"),
        Check(
            "AGsparse, Sparse PS and SparCML lose to all-reduce on some model",
            len(slower) == 3,
            ", ".join(slower),
        ),
        Check(
            "The hash bitmap gains on every model",
            min(gains.values()) > 0.0,
            ", ".join(f"{name} {gain:.0%}" for name, gain in gains.items()),
        ),
        Check(
            "The breakdown implies pulled densities of .138 for LSTM and .204 for BERT",
            abs(implied["LSTM"] - 0.138) < 0.001 and abs(implied["BERT"] - 0.204) < 0.001,
            ", ".join(f"{name} {density:.3f}" for name, density in implied.items()),
        ),
    ]


FIGURE = FigureDefinition(NAME, "Speedups of embeddings, and their breakdown", False, runs, report)
