"""What may stand in a name that people see: one rule for jobs, projects, labels, tokens, files and all the
rest.

A name must look like what it is. Characters that cannot be seen, that turn the text around them or that mean
nothing let one name pass for another one. Needs the standard library alone, as workers import it.
"""

from __future__ import annotations

import unicodedata

#: Letters and symbols that are drawn as nothing, or change how their neighbour is drawn: not among the
#: control and format characters, though they might be.
_INVISIBLE = frozenset(
    {"\u034f", "\u115f", "\u1160", "\u17b4", "\u17b5", "\u2800", "\u3164", "\uffa0"}
    | {chr(code) for code in range(0x180B, 0x1810)}
    | {chr(code) for code in range(0xFE00, 0xFE10)}
    | {chr(code) for code in range(0xE0100, 0xE01F0)}
)
#: Marks on one letter: what languages need. More run over the lines around them.
_MOST_MARKS = 4


def name_problem(name: str, *, line_breaks: bool = False) -> str | None:
    """Why people should not be shown `name` as a name; None where they may.

    Refused are control, format (zero-width, bidirectional), private and unassigned characters, half
    surrogates, spaces other than the plain one, letters that are not drawn, and heaps of marks. `line_breaks`
    lets texts of several lines pass.
    """
    marks = _MOST_MARKS
    for position, character in enumerate(name):
        where = f"character {position + 1} (U+{ord(character):04X})"
        if not _is_seen(character, line_breaks):
            return f"{where} cannot be seen, or turns the text around it"
        marks = marks + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        if marks > _MOST_MARKS:
            return f"{where} is one mark too many, or has no letter to stand on"
    return None


def normalised(name: str) -> str:
    """The name in one spelling (NFC): what looks the same is the same."""
    return unicodedata.normalize("NFC", name)


def shown(text: str, *, line_breaks: bool = False) -> str:
    """The text with a replacement character for each that cannot be seen or turns the text around it."""
    return "".join(
        character if _is_seen(character, line_breaks) else "\N{REPLACEMENT CHARACTER}" for character in text
    )


def _is_seen(character: str, line_breaks: bool) -> bool:
    if line_breaks and character in "\n\t":
        return True
    return character.isprintable() and character not in _INVISIBLE
