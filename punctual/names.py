"""Valid characters of names that people see: one rule for jobs, projects, labels, tokens, files and all
others.

A name must look like what it is. Characters that are invisible, change the direction of text or have no
meaning let one name pass for another. Needs only the standard library, because workers import it.
"""

from __future__ import annotations

import unicodedata

#: Letters and symbols that are invisible, or change how their neighbour is drawn, but are not control or
#: format characters.
_INVISIBLE = frozenset(
    {"\u034f", "\u115f", "\u1160", "\u17b4", "\u17b5", "\u2800", "\u3164", "\uffa0"}
    | {chr(code) for code in range(0x180B, 0x1810)}
    | {chr(code) for code in range(0xFE00, 0xFE10)}
    | {chr(code) for code in range(0xE0100, 0xE01F0)}
)
#: Marks on one letter: as many as languages need. More overlap the adjacent lines.
_MOST_MARKS = 4


def name_problem(name: str, *, line_breaks: bool = False) -> str | None:
    """Return why `name` is not a valid name, or None.

    Refused are control, format (zero-width, bidirectional), private and unassigned characters, half
    surrogates, spaces other than the plain one, invisible letters, and too many marks. `line_breaks` allows
    texts of several lines.
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
    """Return the name in one spelling (NFC), so that equal-looking names are equal."""
    return unicodedata.normalize("NFC", name)


def shown(text: str, *, line_breaks: bool = False) -> str:
    """Return the text with each invisible or direction-changing character replaced."""
    return "".join(
        character if _is_seen(character, line_breaks) else "\N{REPLACEMENT CHARACTER}" for character in text
    )


def _is_seen(character: str, line_breaks: bool) -> bool:
    if line_breaks and character in "\n\t":
        return True
    return character.isprintable() and character not in _INVISIBLE
