"""The matrix of links: legible for two servers and for sixty-four, and clear about what was measured."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cluster.link_pairs import pairs_of
from communication.profiles.link import LinkRate
from dashboard.figures.cluster import link_matrix
from scheduling.selectors.network.link_matrix import LinkMatrix, MatrixLink
from scheduling.selectors.network.network import DEFAULT_RATE, KnownRate

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MEASURED = KnownRate(LinkRate(2e-4, 1e9), "measured", emulated=True, since=NOW - timedelta(minutes=3))
DEFAULT = KnownRate(DEFAULT_RATE, "default")


def link(first: str, second: str, known: KnownRate = MEASURED, **fields: Any) -> MatrixLink:
    fields = {"measuring": False, "tried_at": NOW, "problem": "", **fields}
    return MatrixLink(first, second, known, **fields)


def cluster(size: int) -> LinkMatrix:
    names = tuple(f"server-{number}" for number in range(size))
    links = tuple(link(names[one], names[other]) for one, other in pairs_of(range(size)))
    return LinkMatrix(names, links, NOW)


def test_one_server_has_no_links() -> None:
    assert link_matrix.figure(cluster(1)) is None


def test_two_servers_show_rate_and_latency_in_words() -> None:
    drawn = link_matrix.figure(cluster(2))
    assert drawn is not None
    (cells,) = drawn.data
    assert [list(row) for row in cells.text] == [["", "1 GB/s<br>0.2 ms"], ["1 GB/s<br>0.2 ms", ""]]
    assert "measured 3 min ago" in cells.customdata[0][1]
    assert "emulated" in cells.customdata[0][1]
    assert list(drawn.layout.xaxis.ticktext) == ["server-0", "server-1"]


@pytest.mark.parametrize("size", [2, 10, 24, 64])
def test_every_row_has_room_for_its_name(size: int) -> None:
    drawn = link_matrix.figure(cluster(size))
    assert drawn is not None
    room = drawn.layout.height / size
    assert room >= drawn.layout.yaxis.tickfont.size + 2
    assert len(drawn.layout.yaxis.ticktext) == size
    labelled = any(text for row in drawn.data[0].text for text in row)
    assert labelled == (room > 40), "rates are written where there is room for two lines"


def test_unmeasured_links_stay_empty_and_are_explained() -> None:
    matrix = LinkMatrix(("a", "b", "c"), (link("a", "b"), link("a", "c", DEFAULT, problem="no route")), NOW)
    drawn = link_matrix.figure(matrix)
    assert drawn is not None
    (cells,) = drawn.data
    assert cells.z[0][1] is not None
    assert cells.z[0][2] is None
    assert "default" in cells.customdata[0][2]
    assert "no route" in cells.customdata[0][2]
    said = link_matrix.caption(matrix)
    assert "1 of 2 pairs" in said
    assert "a – b, 1 GB/s" in said
    assert "Emulated links" in said
    assert "no route" in said


def test_a_server_name_like_a_tag_is_escaped() -> None:
    matrix = LinkMatrix(("<b>", "b"), (link("<b>", "b"),), NOW)
    drawn = link_matrix.figure(matrix)
    assert drawn is not None
    assert "<b>" not in drawn.data[0].customdata[0][1].replace("<br>", "")
    assert drawn.layout.yaxis.ticktext[0] == "&lt;b&gt;"
