"""Server-sent events are parsed as specified, and malformed ones wake the agent as well."""

from __future__ import annotations

from workers.agent.talking.wakeups import desired_versions


def test_versions_are_read_and_comments_and_other_events_ignored() -> None:
    text = (
        ": hello\n\nevent: desired\ndata: 124\n\nevent: other\ndata: 7\n\ndata: 8\n\nevent: "
        "desired\ndata:125\n\n"
    )
    assert list(desired_versions(iter(text.split("\n")))) == [124, 125]


def test_an_unreadable_version_is_still_a_wake_up() -> None:
    assert list(desired_versions(iter(["event: desired", "data: soon", ""]))) == [None]


def test_an_incomplete_event_is_ignored() -> None:
    assert list(desired_versions(iter(["event: desired", "data: 3"]))) == []
