"""Parameters and memory of the trained models, and servers that hold them (Table 2, equation 1)."""

from __future__ import annotations

from collections.abc import Sequence

from moe.moesys.capacity import ONLY_GPUS, DeviceCapacity, Fit, TrainingDemands, fit
from moe.moesys.choices import Tier
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.model_rows import ModelRow, row
from research.moesys import explaining, model
from research.moesys.published import TABLE_2
from research.runs import RunSpec

NAME = "sizes"
SERVER = DeviceCapacity(640e9, 1e12, 8e12)
COLUMNS = {"DeepSpeed": 3, "MoESys": 4}


def runs(full: bool) -> Sequence[RunSpec]:
    """Return no run: this is arithmetic."""
    return ()


def report(context: Context) -> FigureReport:
    """Report sizes, and what equation 1 says of the largest model."""
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="computed by moe/moesys/sizes.py and capacity.py",
        notes=(
            (
                "What a GPU holds beside states, 12.4 and 13.9 GB, and the 20 bytes of a parameter with "
                "DeepSpeed are fitted to the rows of 16 to 128 GPUs. The published runs keep all states on "
                "GPUs, so they say nothing of host memory or disks."
            ),
        ),
        rows=_rows(context),
        tables=(_fits(),),
        checks=_checks(),
    )


def _rows(context: Context) -> list[ModelRow]:
    rows = []
    for gpus in TABLE_2:
        x = f"{gpus} GPUs"
        parameters = model.shape(gpus).sizes.parameters / 1e9
        rows.append(row(context, NAME, "Parameters, billions", x, parameters, "moe/moesys/sizes.py"))
        for system in COLUMNS:
            held = model.gpu_gigabytes(system, gpus)
            why = (explaining.smallest_model(f"{held:.1f} GB"),) if gpus == 8 else ()
            rows.append(
                row(
                    context, NAME, f"GB of a GPU, {system}", x, held, "bytes of a parameter, and a constant",
                    unit="GB", calibrated=gpus != 8, why=why,
                )
            )  # fmt: skip
    return rows


def _fits() -> Table:
    sizes = model.shape(128).sizes
    activations = model.GPU_MEMORY["MoESys"][1] * 1e9
    rows = []
    for alpha in (0.25, 0.5, 1.0):
        published = fit(sizes, SERVER, TrainingDemands(alpha, strict_paper=True))
        corrected = fit(sizes, SERVER, TrainingDemands(alpha, activation_bytes=activations))
        rows += [_cells(f"{alpha:g}, as published", published), _cells(f"{alpha:g}, corrected", corrected)]
    alone = fit(sizes, SERVER, TrainingDemands(strict_paper=True), ONLY_GPUS)
    return Table(
        "Servers that hold 207 billion parameters",
        "Eight GPUs of 80 GB, 1 TB of host memory and 8 TB of disk each; GB by tier. Corrected: with layers "
        "fetched ahead, gathered layers, activations, and a tenth of the disk left free.",
        ("Activated share", "Servers", "Binds", "Device memory", "Host memory", "Disk"),
        (*rows, _cells("GPUs alone", alone)),
    )


def _cells(name: str, found: Fit) -> tuple[str, ...]:
    needed = (f"{found.needed_bytes[tier] / 1e9:,.0f}" for tier in Tier)
    return (name, f"{found.devices}", found.binding.value, *needed)


def _checks() -> list[Check]:
    off = max(abs(model.shape(gpus).sizes.parameters / 1e9 - row[0]) for gpus, row in TABLE_2.items())
    memory = max(
        abs(model.gpu_gigabytes(system, gpus) - TABLE_2[gpus][column])
        for gpus in (16, 32, 64, 128)
        for system, column in COLUMNS.items()
    )
    least = fit(model.shape(128).sizes, SERVER, TrainingDemands(0.25, strict_paper=True))
    return [
        Check("Parameters are those of the table to 0.1 billion", off < 0.1, f"{off:.3f} billion"),
        Check(
            "Memory of a GPU is that of the table to 1 GB from 16 GPUs on", memory < 1.0, f"{memory:.2f} GB"
        ),
        Check(
            "With a quarter of the experts active one server holds what trained on 16",
            least.devices == 1,
            f"{least.devices} server; {least.binding.value} binds",
        ),
    ]


FIGURE = FigureDefinition(NAME, "Sizes and memory", False, runs, report)
