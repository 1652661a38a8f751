"""Tables for the terminal and for Markdown, and their place in a document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Table:
    """A title, names of columns, and rows of text."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        """Return the table as Markdown, which is readable in a terminal too."""
        cells = [list(self.columns), *(list(row) for row in self.rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(self.columns))]

        def line(row: Sequence[str]) -> str:
            padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            return f"| {' | '.join(padded)} |"

        rule = f"|{'|'.join('-' * (width + 2) for width in widths)}|"
        return "\n".join([f"**{self.title}**", "", line(cells[0]), rule, *map(line, cells[1:])])


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, such as "1 GPU" or "2 GPUs"."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def write_section(document: Path, name: str, text: str) -> None:
    """Replace the text between `<!-- NAME -->` and `<!-- end of NAME -->`.

    Raises ValueError if the document does not have both marks.
    """
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, found, rest = document.read_text(encoding="utf-8").partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise ValueError(f"{document} has no {begin} followed by {end}; the tables go between them")
    document.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
