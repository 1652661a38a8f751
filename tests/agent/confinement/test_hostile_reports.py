"""Messages and output of user code harm only its own job, never another job on the server."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from punctual.protocol.events import EVENTS
from punctual.protocol.reports import check_items
from tests.agent.confinement import test_untrusted_input
from tests.agent.conftest import RunningAgent, wait_until
from tests.agent.fake_control_plane import FakeControlPlane, generation
from workers.agent.processes import worker_processes
from workers.agent.processes.worker_messages import (
    FileWritten,
    MessageError,
    Metrics,
    PhaseChange,
    WorkerEvent,
    parse_message,
)
from workers.agent.processes.worker_processes import ExitStatus
from workers.agent.processes.worker_record import Assignment, WorkerRecord
from workers.agent.processes.worker_sockets import READ_BYTES, WAITING_MESSAGES, WorkerSockets
from workers.agent.storage import box_files
from workers.agent.storage.durable_store import DurableStore
from workers.agent.storage.uploads import Upload, store_upload
from workers.agent.talking import worker_logs
from workers.agent.talking.event_outbox import EventOutbox
from workers.agent.talking.fair_shares import fair_shares
from workers.agent.talking.metric_buffer import MetricBuffer
from workers.agent.talking.reports import Reporter


def assignment(job: str, rank: int = 0) -> Assignment:
    return Assignment(job, 1, "training", rank, rank, {})


def record(
    folder: Path, job: str, rank: int = 0, *, output: bytes = b"", ended: bool = False
) -> WorkerRecord:
    worker = WorkerRecord(f"{job}-{rank}", folder / f"{job}-{rank}", "r", None, None)
    worker.folder.mkdir()
    (worker.folder / "worker.log").write_bytes(output)
    worker.assignment = assignment(job, rank)
    worker.exit = ExitStatus(0, None, "exited", "") if ended else None
    return worker


def ship(records: list[WorkerRecord]) -> dict[str, str]:
    """Ship one report's logs as delivered; return the text by worker."""
    pieces = worker_logs.next_pieces(records)
    worker_logs.delivered(pieces)
    texts: dict[str, str] = {}
    for piece in pieces:
        texts[piece.record.key] = texts.get(piece.record.key, "") + piece.text
    return texts


class TestLogs:
    def test_a_flood_of_200_megabytes_does_not_delay_a_neighbours_line(self, tmp_path: Path) -> None:
        flood = [record(tmp_path, "flood", rank) for rank in range(4)]
        for worker in flood:
            with (worker.folder / "worker.log").open("wb") as file:
                file.truncate(50 << 20)
        quiet = record(tmp_path, "quiet", output=b"step 1\n")
        assert ship([*flood, quiet])["quiet-0"] == "step 1\n"

    def test_a_flood_of_output_ships_in_few_reports_and_names_the_gap(self, tmp_path: Path) -> None:
        line = b"all work and no play\n"
        flood = record(tmp_path, "flood", output=line * (50_000_000 // len(line)), ended=True)
        reports = 0
        text = ""
        while flood.log_offset < flood.log_size:
            text += ship([flood])[flood.key]
            reports += 1
        assert reports <= 10
        assert text.count("bytes of output are left out here") == 1
        left_out = int(text.split(" bytes of output")[0].strip(" \n[").replace(",", ""))
        assert left_out + text.count(line.decode()) * len(line) == flood.log_size

    def test_output_at_a_sustainable_rate_arrives_whole(self, tmp_path: Path) -> None:
        worker = record(tmp_path, "job")
        written = ""
        text = ""
        for number in range(50):
            lines = "".join(f"{number} {place} é\n" for place in range(5000))
            written += lines
            with (worker.folder / "worker.log").open("ab") as file:
                file.write(lines.encode())
            text += ship([worker]).get(worker.key, "")
        assert text == written

    def test_logs_of_ended_workers_are_sent_last_but_not_starved(self, tmp_path: Path) -> None:
        living = record(tmp_path, "living", output=b"l" * worker_logs.REPORT_BYTES * 4)
        ended = record(tmp_path, "ended", output=b"e" * worker_logs.REPORT_BYTES * 4, ended=True)
        texts = ship([ended, living])
        assert len(texts["living-0"]) >= 7 * worker_logs.ENDED_BYTES
        assert len(texts["ended-0"]) == worker_logs.ENDED_BYTES

    def test_room_in_a_report_is_shared_by_job_not_by_worker(self, tmp_path: Path) -> None:
        many = [record(tmp_path, "many", rank, output=b"m" * 500_000) for rank in range(3)]
        alone = record(tmp_path, "one", output=b"o" * 500_000)
        texts = ship([*many, alone])
        assert len(texts["one-0"]) == worker_logs.REPORT_BYTES // 2

    @given(
        sizes=st.lists(
            st.tuples(st.integers(0, 3), st.integers(0, 3_000_000), st.booleans()), min_size=1, max_size=8
        )
    )
    def test_reports_stay_within_their_limit_and_all_logs_end(
        self, tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[int, int, bool]]
    ) -> None:
        folder = tmp_path_factory.mktemp("logs")
        records = []
        for rank, (job, size, ended) in enumerate(sizes):
            worker = record(folder, f"job{job}", rank, ended=ended)
            with (worker.folder / "worker.log").open("wb") as file:
                file.truncate(size)
            records.append(worker)
        reports = 0
        while any(worker.log_offset < worker.log_size for worker in records):
            pieces = worker_logs.next_pieces(records)
            assert sum(piece.end - piece.offset for piece in pieces) <= worker_logs.REPORT_BYTES + len(
                records
            )
            assert pieces
            worker_logs.delivered(pieces)
            reports += 1
        assert reports <= 80


@given(demands=st.dictionaries(st.integers(0, 9), st.integers(0, 1000)), total=st.integers(0, 3000))
def test_fair_shares_use_all_room_and_are_even(demands: dict[int, int], total: int) -> None:
    shares = fair_shares(demands, total)
    assert sum(shares.values()) == min(total, sum(demands.values()))
    for key, share in shares.items():
        assert 0 <= share <= demands[key]
        if share < demands[key]:
            assert all(share >= other - 1 for other in shares.values())


messages = test_untrusted_input.TestMessages
BAD_MESSAGES: dict[str, Any] = {
    "NUL in a name": {"metrics": {"iteration": 1, "values": {"a\0": 1.0}}},
    "a surrogate in a name": {"metrics": {"iteration": 1, "values": {"\ud800": 1.0}}},
    "thousands of names": {"metrics": {"iteration": 1, "values": {f"m{n}": 1.0 for n in range(5000)}}},
    "memory below nothing": {"metrics": {"iteration": 1, "values": {}, "host_memory_bytes": -1}},
    "a rate beyond reason": {"metrics": {"iteration": 1, "values": {}, "iterations_per_second": 1e300}},
    "no pause": {"event": {"id": "1", "kind": "first_iteration", "iteration": 1}},
    "a pause for ever": {
        "event": {"id": "1", "kind": "first_iteration", "iteration": 1, "pause_seconds": 1e15}
    },
    "a level without numbers": {"event": {"id": "1", "kind": "profile_level", "gpus": 1}},
    "a level of 10^-30": {
        "event": {
            "id": "1",
            "kind": "profile_level",
            "gpus": 1,
            "iterations_per_second": 1e-30,
            "train_seconds": 0.1,
            "pause_seconds": 0.1,
        }
    },
    "a huge iteration": {"phase": "training", "iteration": 2**60},
    "requests below nothing": {"serving": {"requests": -1}},
    "busy for no number of seconds": {"serving": {"busy_seconds": float("nan")}},
    "latencies beyond all buckets": {"serving": {"latencies": [1] * 97}},
}


@pytest.mark.parametrize("name", BAD_MESSAGES)
def test_the_agent_refuses_what_the_control_plane_would_refuse(name: str) -> None:
    with pytest.raises(MessageError):
        parse_message(json.dumps(BAD_MESSAGES[name]).encode())


@given(
    message=st.dictionaries(
        messages.kinds,
        messages.values | st.dictionaries(messages.names, messages.values, max_size=6),
        max_size=2,
    )
)
def test_any_worker_message_becomes_well_formed_items(message: dict[str, Any]) -> None:
    try:
        parsed = parse_message(json.dumps(message).encode())
    except MessageError:
        return
    if isinstance(parsed, Metrics):
        buffer = MetricBuffer()
        buffer.add(assignment("job"), parsed)
        entries = [measured.entry for measured in buffer.next(10, 1 << 20)]
        assert check_items("metrics", entries)[1] == []
    elif isinstance(parsed, WorkerEvent):
        head = {"id": "6f2c1d0a-5d0e-4c55-9a58-8a5f6d1f5a2e", "job": "job", "generation": 1, "rank": 0}
        assert check_items("events", [{**parsed.body, **head}])[1] == []
    else:
        assert isinstance(parsed, PhaseChange | FileWritten) or hasattr(parsed, "warm")


def test_a_workers_reported_memory_reaches_the_report() -> None:
    line = json.dumps({"metrics": {"iteration": 3, "values": {}, "host_memory_bytes": 5 * 2**30}}).encode()
    metrics = parse_message(line)
    assert isinstance(metrics, Metrics)
    buffer = MetricBuffer()
    buffer.add(assignment("growing"), metrics)
    (entry,) = [measured.entry for measured in buffer.next(1, 10_000)]
    assert entry["host_memory_bytes"] == 5 * 2**30


def test_a_flood_of_metrics_drops_only_the_flooding_workers_metrics() -> None:
    buffer = MetricBuffer()
    buffer.add(assignment("quiet"), Metrics(1, {"loss": 1.0}, None, None))
    for iteration in range(20_000):
        buffer.add(assignment("flood"), Metrics(iteration, {"loss": 1.0}, None, None))
    chosen = buffer.next(500, 1 << 20)
    assert "quiet" in {measured.entry["job"] for measured in chosen}
    buffer.forget(chosen)
    assert len(buffer.next(500, 1 << 20)) == 1, "the rest of the flood's entries"


def test_reading_pauses_while_a_workers_messages_pile_up(tmp_path: Path) -> None:
    (tmp_path / "box").mkdir()
    inbox: list[Any] = []
    sockets = WorkerSockets(lambda key, message: inbox.append(message))
    sockets.listen("talker", tmp_path / "box", None)
    sockets.start()
    count = 20_000
    with socket.socket(socket.AF_UNIX) as talker:
        wait_until((tmp_path / "box/agent.sock").exists, "the agent listens")
        talker.connect(str(tmp_path / "box/agent.sock"))
        line = json.dumps({"metrics": {"iteration": 1, "values": {"loss": 1.0}}}).encode() + b"\n"
        talking = threading.Thread(target=lambda: talker.sendall(line * count))
        talking.start()
        wait_until(lambda: len(inbox) > WAITING_MESSAGES, "messages arrive")
        handled = 0
        most = 0
        while handled < count:
            wait_until(lambda: len(inbox) > handled, "more messages arrive")  # noqa: B023 - waited for here
            most = max(most, len(inbox) - handled)
            handled += 1
            sockets.handled("talker")
        talking.join()
    sockets.stop()
    assert most <= WAITING_MESSAGES + READ_BYTES // len(line) + 1


@pytest.fixture
def outbox(tmp_path: Path) -> EventOutbox:
    return EventOutbox(tmp_path / "events")


def add_events(outbox: EventOutbox, job: str, count: int) -> None:
    for number in range(count):
        event = {
            "id": f"{job}-{number}",
            "kind": "failed",
            "job": job,
            "generation": 1,
            "message": "x" * 20_000,
        }
        outbox.add(event, worker_key=job)


def test_events_of_several_jobs_take_turns(outbox: EventOutbox) -> None:
    add_events(outbox, "flood", 150)
    add_events(outbox, "quiet", 2)
    pending = outbox.pending(200, 1 << 20)
    assert [event["id"] for event in pending[:4]] == ["flood-0", "quiet-0", "flood-1", "quiet-1"]
    assert len(json.dumps(pending)) < 2 << 20


class FakeState:
    """The part of the agent's state from which reports are built."""

    memory = SimpleNamespace(epoch=1)

    def __init__(self) -> None:
        self.sequence = 0

    def next_sequence(self) -> int:
        self.sequence += 1
        return self.sequence


def talk(reporter: Reporter, poison: Callable[[dict[str, Any]], bool]) -> tuple[list[Any], int]:
    """Report to a control plane that rejects every report with a poisoned item. Return the accepted items and
    the number of rounds."""
    accepted: list[Any] = []
    for rounds in range(1, 60):
        report = reporter.build([], [], 1)
        items = [*report.body["events"], *report.body["metrics"]]
        if not items:
            return accepted, rounds
        if any(poison(item) for item in items):
            reporter.refused(report, "400")
        else:
            accepted += items
            acknowledged = [event["id"] for event in report.body["events"]]
            reporter.answered(report, {"acknowledged": acknowledged})
    pytest.fail("the item was never set aside")


@pytest.mark.parametrize("place", [0, 7, 39])
def test_only_the_item_that_makes_reports_fail_is_set_aside(
    outbox: EventOutbox, tmp_path: Path, place: int
) -> None:
    reporter = Reporter(FakeState(), outbox, {})  # type: ignore[arg-type]
    add_events(outbox, "job", 5)
    for iteration in range(40):
        reporter.add_metrics(assignment("job"), Metrics(iteration, {"loss": 1.0}, None, None))
    accepted, rounds = talk(reporter, lambda item: item.get("iteration") == place)
    assert len(accepted) == 44
    assert rounds < 40
    add_events(outbox, "other", 5)
    accepted, _ = talk(reporter, lambda item: item.get("id") == "other-3")
    assert len(accepted) == 4
    assert len(list((tmp_path / "events" / "refused").iterdir())) == 1


def test_items_that_could_not_be_applied_are_sent_again(outbox: EventOutbox) -> None:
    reporter = Reporter(FakeState(), outbox, {"gpus": []})  # type: ignore[arg-type]
    reporter.add_metrics(assignment("job"), Metrics(1, {"loss": 1.0}, None, None))
    report = reporter.build([], [], 1)
    reporter.answered(report, {"acknowledged": [], "deferred": ["inventory", "metrics"]})
    again = reporter.build([], [], 1)
    assert len(again.body["metrics"]) == 1
    assert again.body["inventory"] == {"gpus": []}
    reporter.answered(again, {"acknowledged": []})
    last = reporter.build([], [], 1)
    assert (last.body["metrics"], last.body["inventory"]) == ([], None)


def test_artifacts_with_unusable_names_are_left_out_of_the_event(tmp_path: Path) -> None:
    final = tmp_path / "box/out/final"
    (final / "d" / ("e" * 100)).mkdir(parents=True)
    for name in ("weights.pt", "n" * 201, f"d/{'e' * 100}/{'f' * 100}"):
        (final / name).write_bytes(b"x")
    (final / "d\nd").mkdir()
    (final / "d\nd" / "x").write_bytes(b"x")
    written = FileWritten("out/final", "final", 3, "max_iterations", {"loss": 1.0}, "abc")
    upload = Upload("k", tmp_path / "box", "job", 1, 0, written, 0.0)
    event, refused = store_upload(DurableStore((tmp_path / "store").as_uri()), upload)
    assert [artifact["name"] for artifact in event["artifacts"]] == ["weights.pt"]
    assert len(refused) == 3
    assert check_items("events", [event])[1] == []
    assert set(EVENTS) >= {event["kind"]}


def test_files_that_resist_deletion_do_no_harm(tmp_path: Path) -> None:
    """The agent deletes files of user code in the one thread on which its other jobs depend."""
    box = tmp_path / "k" / "box"
    (box / "out").mkdir(parents=True)
    box_files.delete(box, "n" * 300)
    box_files.delete(box, "nothing")
    nested = os.open(box / "out", os.O_RDONLY)
    for _ in range(3000):  # deeper than Python's recursion limit and any path
        os.mkdir("d", dir_fd=nested)
        inner = os.open("d", os.O_RDONLY, dir_fd=nested)
        os.close(nested)
        nested = inner
    os.close(nested)
    box_files.delete(box, "d")
    with box_files.open_output_folder(box) as folder, pytest.raises(box_files.BoxFileError):
        box_files.list_files(folder, "d")
    worker_processes.delete_folder(tmp_path / "k")
    assert not (tmp_path / "k").exists()
    (tmp_path / "linked" / "box").mkdir(parents=True)
    (tmp_path / "linked" / "box" / "out").symlink_to(tmp_path)
    box_files.delete(tmp_path / "linked" / "box", "linked")
    assert (tmp_path / "linked" / "box").exists()


def test_an_impossible_file_name_is_refused() -> None:
    message = {"path": "out/" + "\u00e9" * 128, "kind": "final", "iteration": 1, "reason": "max_iterations"}
    with pytest.raises(MessageError, match="no name that a file can have"):
        parse_message(json.dumps({"file": message}).encode())
    assert parse_message(json.dumps({"file": message | {"path": "out/" + "\u00e9" * 127}}).encode())


@pytest.mark.parametrize(
    "content",
    [
        {"code": "0", "signal": [1], "reason": 7, "message": {"a": 1}},
        {"code": 2**70, "signal": None, "reason": "exited\0", "message": "\ud800" * 99_999},
        {},
    ],
)
def test_exit_files_from_a_sandbox_are_validated(tmp_path: Path, content: dict[str, Any]) -> None:
    worker = record(tmp_path, "job")
    (worker.folder / "exit.json").write_text(json.dumps(content))
    worker.exit = worker_processes.read_exit(worker.folder)
    assert check_items("workers", [worker.listing()])[1] == []


def test_a_hostile_job_is_warned_and_its_neighbour_reports_normally(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    """Real workers on one agent: one floods its log and socket and sends impossible messages."""
    hostile = generation(
        "hostile", hyperparameters={"global_batch_size": 4, "babble": True, "shout": 3_000_000}
    )
    quiet = generation(
        "quiet",
        workers=[{"rank": 0, "gpu_index": 1}],
        hyperparameters={"global_batch_size": 4, "final_after": 40},
    )
    plane.want(hostile, quiet)
    agent.start()
    wait_until(lambda: [e for e in plane.events_of("completed") if e["job"] == "quiet"], "the quiet job ends")
    assert "goal train" in plane.log_of("quiet")
    assert [entry for entry in plane.metrics if entry["job"] == "quiet"]
    wait_until(lambda: plane.events_of("refused"), "a refusal is reported to the job")
    refusals = plane.events_of("refused")
    assert {event["job"] for event in refusals} == {"hostile"}
    assert len(refusals) <= 5
    wait_until(
        lambda: "bytes of output are left out here" in plane.log_of("hostile"), "the log names the gap"
    )
    assert plane.phase("hostile") == "training", "refused messages do not end the job"
    for report in plane.reports:
        for part in ("workers", "events", "metrics", "logs"):
            assert check_items(part, report[part])[1] == []
