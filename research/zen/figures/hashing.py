"""Hierarchical hashing: losses of one hash (Figure 3.8), collisions and work by memory and rounds (3.16)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from communication.zen.hash_family import REHASHES, drawn_family
from communication.zen.hierarchical_hashing import hierarchical_hash, memory_for
from communication.zen.partitioning import partitioned
from communication.zen.strawmen import expected_loss, one_hash
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.model_rows import ModelRow, row
from research.runs import RunSpec
from research.zen import explaining, model

NAME = "hashing"
PARTS = 16
#: A sample of DeepFM's embedding with its density; collisions depend on the load alone.
ELEMENTS, NONZEROS = 20_000_000, 560_000
FUNCTIONS = (1, 2, 3, 4, 5)
SHARES = (1.0, 2.0, 4.0)
#: Cost of a serial write in scanned slots, which is not published; with the second value the order of
#: memories is the published one.
SERIAL_COSTS = (10.0, 30.0, 100.0)
LOADS = (0.2, 0.1, 0.05, 0.025)


def runs(full: bool) -> Sequence[RunSpec]:
    """Return no run: indices are drawn by seed."""
    return ()


def report(context: Context) -> FigureReport:
    """Report the losses of one hash, and what is left to serial memory."""
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="by communication/zen/hierarchical_hashing.py and strawmen.py on drawn indices",
        notes=(
            (
                "Times of nonzero() on an A100 (19.2 ms and 29.1 ms for 4 GB at 1 % and 20 %, 5.8 ms for "
                "0.85 GB; 45 ms against Zen's 2 ms) need that GPU and are not repeated. What stands for them "
                "is the work counted: slots that are scanned and serial writes."
            ),
        ),
        rows=_rows(context),
        tables=(_losses(), _rounds(), _memories()),
        checks=_checks(),
    )


@dataclass(frozen=True)
class Hashed:
    """Work of one hierarchical hashing: hash evaluations, scanned slots, and serially written indices."""

    #: Number of hash evaluations.
    evaluations: int
    #: Number of scanned slots.
    slots: int
    #: Number of serially written indices.
    serial: int

    @property
    def left(self) -> float:
        """Share of indices that found no slot in parallel memory."""
        return self.serial / NONZEROS

    def cost(self, serial_cost: float) -> float:
        """Return the work in scanned slots for each non-zero."""
        return (self.slots + serial_cost * self.serial + self.evaluations) / NONZEROS


@cache
def hashed(functions: int, share: float) -> Hashed:
    """Hash the sample with this many second-level functions and this share of parallel memory."""
    memory = memory_for(NONZEROS, PARTS, share)
    table = hierarchical_hash(sample(), PARTS, memory, drawn_family("sample", functions))
    left, evaluations = NONZEROS, NONZEROS
    for placed in table.placed:
        evaluations += left
        left -= placed
    return Hashed(evaluations, table.slots.size, table.serial)


@cache
def sample() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the indices to hash, drawn uniformly: a hash ignores their places."""
    drawn = np.random.default_rng(0).choice(ELEMENTS, NONZEROS, replace=False, shuffle=False)
    return np.sort(drawn).astype(np.int64) + 1


@cache
def measured_loss(load: float) -> float:
    """Return the share of the sample that one hash into flat memory loses."""
    kept = one_hash(sample(), PARTS, round(NONZEROS / load / PARTS), drawn_family("strawman", 0))
    return 1.0 - sum(map(len, kept)) / NONZEROS


def _rows(context: Context) -> list[ModelRow]:
    how, drawn = "1 - (1 - exp(-λ)) / λ", "communication/zen/hierarchical_hashing.py on 560,000 indices"
    cases = (
        ("memory of the tensor's size, density 20 %", 0.2, "λ = 0.2"),
        ("2|G|", 0.2 / 2, "λ = 0.1, at the density of the other figure; 0.7 % at DeepFM's own 2.8 %"),
        ("8|G|", 0.2 / 8, "λ = 0.025; 0.2 % at DeepFM's own density"),
    )
    four = hashed(4, 2.0).left
    memory = memory_for(NONZEROS, PARTS)
    return [
        *(
            row(
                context, NAME, "Loss of one hash", place, expected_loss(load), how, shares=True,
                why=(explaining.ideal_hashing(f"{expected_loss(load):.2%} with {told}"),),
            )
            for place, load, told in cases
        ),
        row(
            context, NAME, "Without a slot", "4 functions", four, drawn, shares=True,
            why=(explaining.lockstep(f"{four:.2%} at a load of one half"),),
        ),
        row(
            context, NAME, "Memory over non-zeros", "all partitions", memory.parallel * PARTS / NONZEROS,
            "communication/zen/hierarchical_hashing.py: memory_for",
        ),
    ]  # fmt: skip


def _losses() -> Table:
    return Table(
        "What one hash into flat memory loses (Algorithm 3.1)",
        "λ: non-zeros over slots.",
        ("λ", "Ideal hash", "Drawn"),
        tuple((f"{load:g}", f"{expected_loss(load):.2%}", f"{measured_loss(load):.2%}") for load in LOADS),
    )


def _rounds() -> Table:
    return Table(
        "Second-level functions, memory twice the non-zeros (Figure 3.16b)",
        f"Cost: slots scanned, hashes, and {SERIAL_COSTS[1]:g} for each serial write, over the non-zeros.",
        ("Functions", "Serial", "Hashes for each index", "Cost"),
        tuple(
            (
                f"{functions}", f"{hashed(functions, 2.0).left:.2%}",
                f"{hashed(functions, 2.0).evaluations / NONZEROS:.2f}",
                f"{hashed(functions, 2.0).cost(SERIAL_COSTS[1]):.2f}",
            )
            for functions in FUNCTIONS
        ),
    )  # fmt: skip


def _memories() -> Table:
    rows = []
    for share in SHARES:
        one = hashed(REHASHES, share)
        costs = (f"{one.cost(weight):.2f}" for weight in SERIAL_COSTS)
        rows.append((f"{share:g}|G|d", f"{one.left:.2%}", f"{one.slots / NONZEROS:.2f}", *costs))
    return Table(
        "Parallel memory, three functions (Figure 3.16a)",
        "The same cost, with serial writes that cost more or less.",
        ("Memory", "Serial", "Slots for each index", *(f"Cost, {weight:g}" for weight in SERIAL_COSTS)),
        tuple(rows),
    )


def _checks() -> list[Check]:
    left = [hashed(functions, 2.0).left for functions in FUNCTIONS]
    costs = [hashed(functions, 2.0).cost(SERIAL_COSTS[1]) for functions in FUNCTIONS]
    by_memory = {
        weight: [hashed(REHASHES, share).cost(weight) for share in SHARES] for weight in SERIAL_COSTS
    }
    table = hierarchical_hash(sample(), PARTS, memory_for(NONZEROS, PARTS), drawn_family("sample"))
    everything = np.sort(np.concatenate(table.partitions()))
    sorted_parts = partitioned(sample(), PARTS, drawn_family("sample")).split(sample())
    same = all(
        np.array_equal(np.sort(one), other)
        for one, other in zip(table.partitions(), sorted_parts, strict=True)
    )
    best = {weight: SHARES[int(np.argmin(found))] for weight, found in by_memory.items()}
    losses = [measured_loss(load) for load in LOADS]
    return [
        Check(
            "No index is lost", np.array_equal(everything, sample()), f"{len(everything):,} of {NONZEROS:,}"
        ),
        Check("Counting sort gives the same partitions", same, f"{PARTS} partitions"),
        Check(
            "Cost falls from one function to three, and hardly any more to four",
            costs[0] > costs[1] > costs[2] and abs(costs[3] - costs[2]) < 0.2 * (costs[0] - costs[2]),
            ", ".join(f"{cost:.2f}" for cost in costs),
        ),
        Check(
            "Twice the non-zeros is the cheapest memory of one, two and four times",
            best[SERIAL_COSTS[1]] == 2.0,
            ", ".join(f"{share:g} at {weight:g}" for weight, share in best.items()),
        ),
        Check(
            "Each function leaves less to serial memory",
            left == sorted(left, reverse=True),
            f"{left[2]:.2%} after 3",
        ),
        Check(
            "One hash loses less in more memory",
            losses == sorted(losses, reverse=True)
            and all(abs(one - expected_loss(load)) < 0.005 for one, load in zip(losses, LOADS, strict=True)),
            ", ".join(f"{loss:.2%}" for loss in losses),
        ),
        Check(
            "Parallel memory of DeepFM is twice its non-zeros, 16 partitions together",
            memory_for(round(model.DEEPFM.embedding * model.DEEPFM.density), PARTS).parallel * PARTS
            == 2 * round(model.DEEPFM.embedding * model.DEEPFM.density),
            "2|G|d slots",
        ),
    ]


FIGURE = FigureDefinition(NAME, "Hierarchical hashing: collisions, memory and rounds", False, runs, report)
