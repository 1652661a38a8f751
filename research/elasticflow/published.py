"""The paper's published values, with which ours are compared.

Values come from `paper_figures.csv` in the traces folder (constants of the artifact's plotting scripts).
Without that file, the figures that need no trace are compared with the tables of this package.
"""

from __future__ import annotations

import csv
from pathlib import Path

from research.elasticflow.tables import FIGURE_9, FIGURE_10, FIGURE_11A, FIGURE_11B, SHARES
from research.figure import Published
from simulation.workloads.public_traces import traces_folder

PLACE = "elasticflow/paper_figures.csv"
ORIGINAL = "GitHub pkusys/ElasticFlow, plot_figure/"


def read_published(folder: Path | None = None) -> Published:
    """Return the values of the traces folder (None: the default one), else of the tables of this package.

    Figure 10's are always the tables': they come from logs, not from a plotting script. Raises ValueError
    with file and line for an unreadable file.
    """
    folder = folder or traces_folder()
    values = _kept()
    path = folder / PLACE if folder is not None else None
    if path is None or not path.is_file():
        return Published(values, f"tables of this program ({PLACE} is not in the traces folder)")
    return Published(values | _read(path), f"{PLACE} ({ORIGINAL})")


def _read(path: Path) -> dict[tuple[str, str, str], float]:
    values = {}
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        wanted = {"figure", "series", "x", "value"}
        if not wanted <= set(rows.fieldnames or ()):
            raise ValueError(f"{path}: the columns must be {', '.join(sorted(wanted))}")
        for row in rows:
            try:
                values[row["figure"], row["series"], row["x"]] = float(row["value"])
            except (TypeError, ValueError):
                raise ValueError(
                    f"{path}, line {rows.line_num}: value {row['value']!r} is not a number"
                ) from None
    return values


def _kept() -> dict[tuple[str, str, str], float]:
    values: dict[tuple[str, str, str], float] = {}
    for gpus, row in FIGURE_9.items():
        values |= {("9", series, f"{gpus} GPUs"): value for series, value in row.items()}
    for metric, row in FIGURE_10.items():
        values |= {("10", series, metric): value for series, value in row.items()}
    for figure, table in (("11a", FIGURE_11A), ("11b", FIGURE_11B)):
        for series, by_share in table.items():
            values |= {
                (figure, series, f"{share}%"): value for share, value in zip(SHARES, by_share, strict=True)
            }
    return values
