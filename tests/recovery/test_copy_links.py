"""Copies between stores of emulated servers use these servers' links, share them with training, and are sent
when their worker reports an idle network."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulated_links.client import LinkClient
from emulated_links.rates import (
    DECLARED_LINKS,
    GRADIENTS,
    HOST_TO_DEVICE,
    NETWORK,
    NETWORK_IN,
    SPINE,
    STATE,
    ServerLinks,
)
from emulated_links.server import LinkServer
from recovery.store.allowances import LONGEST_COPY_SECONDS, LONGEST_PAUSE_SECONDS, Allowance, Sending, Span
from recovery.store.client import StoreClient
from tests.recovery.test_peers import Server, later_worker
from tests.recovery.test_store import SECONDS, content, read, wait_until, write

#: 10 Mbit/s.
RATE = 1.25e6
RATES = {
    name: {"bytes_per_second": 100 * RATE if name == HOST_TO_DEVICE else RATE} for name in DECLARED_LINKS
}
SIZE = 250_000


class Emulated(Server):
    """A server with emulated links."""

    def __init__(self, folder: Path, name: str, rack: str = "one") -> None:
        self.server_links = ServerLinks.from_message(RATES)
        self.server = LinkServer(self.server_links)
        self.server.start()
        super().__init__(folder, name)
        self.server.listen("store", self.folder)
        self.links = {"rates": RATES, "rack": rack}
        self.tell()

    def carried(self, link: str) -> float:
        """Return the bytes of copies that a link has carried."""
        return self.server.carried()[link][STATE]

    def end(self) -> None:
        super().end()
        if self.server.is_alive():
            self.server.stop()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Emulated]]:
    made: list[Emulated] = []

    def begin(name: str, rack: str = "one") -> Emulated:
        made.append(Emulated(tmp_path / name, name, rack))
        return made[-1]

    yield begin
    for server in made:
        server.end()


@pytest.fixture
def first(start: Callable[..., Emulated]) -> Emulated:
    return start("first")


@pytest.fixture
def second(start: Callable[..., Emulated], first: Emulated) -> Emulated:
    """Return a server that keeps a copy of rank 0, whose worker is on the first server."""
    other = start("second")
    other.join(keep=[0])
    first.join(send=[{"rank": 0, "peers": [other.as_peer]}])
    return other


def seconds_of_a_copy(worker: StoreClient, iteration: int) -> float:
    """Return the seconds from the write until the version is complete on both servers."""
    began = time.monotonic()
    write(worker, iteration, size=SIZE)
    return time.monotonic() - began


def test_a_copy_is_paced_by_the_links_of_both_servers(first: Emulated, second: Emulated) -> None:
    worker = first.worker()
    assert seconds_of_a_copy(worker, 7) * RATE >= SIZE
    assert first.carried(NETWORK) == pytest.approx(SIZE, rel=0.01)
    assert second.carried(NETWORK_IN) == pytest.approx(SIZE, rel=0.01)
    assert first.carried(SPINE) == 0.0, "they are in one rack"
    copied = worker.copied()
    assert copied is not None
    assert (copied.peers, copied.bytes) == (1, SIZE + len(b"head"))
    assert copied.bytes / copied.seconds <= RATE, "what was measured is no faster than the link"


def test_copies_across_racks_use_the_spine_and_fetches_use_links(
    first: Emulated, start: Callable[..., Emulated]
) -> None:
    far = start("far", "two")
    far.join(keep=[0])
    first.join(send=[{"rank": 0, "peers": [far.as_peer]}])
    write(first.worker(), 7, size=SIZE)
    assert first.carried(SPINE) == pytest.approx(SIZE, rel=0.01)
    third = start("third")
    later = later_worker(third, far)
    assert later.find(0, 1, SECONDS) == {7}
    began = time.monotonic()
    assert read(later.open(0, 1, 7, SECONDS), SIZE) == content(7, SIZE)
    assert (time.monotonic() - began) * RATE >= SIZE
    assert far.carried(NETWORK) == far.carried(SPINE) == pytest.approx(SIZE, rel=0.01)
    assert third.carried(NETWORK_IN) == pytest.approx(SIZE, rel=0.01)


@pytest.mark.live
def test_copies_and_collectives_share_a_link(first: Emulated, second: Emulated, tmp_path: Path) -> None:
    worker = first.worker()
    box = tmp_path / "training"
    box.mkdir()
    first.server.listen("training", box)
    collectives = LinkClient(first.server_links, box)
    stopped = threading.Event()

    def train() -> None:
        while not stopped.is_set():
            collectives.carry((NETWORK,), GRADIENTS, 50_000, time.monotonic())

    thread = threading.Thread(target=train)
    thread.start()
    try:
        wait_until(lambda: first.server.carried()[NETWORK][GRADIENTS] > 0, "training sends")
        before = first.server.carried()[NETWORK][GRADIENTS]
        seconds = seconds_of_a_copy(worker, 7)
        sent = first.server.carried()[NETWORK][GRADIENTS] - before
    finally:
        stopped.set()
        thread.join()
        collectives.close()
    # Training leaves small gaps between its transfers, in which the copy has the whole link.
    assert seconds * RATE >= 1.3 * SIZE
    assert sent >= 0.3 * SIZE, "and training is not held up by it"


def test_a_planned_copy_sends_only_its_allowance(first: Emulated, second: Emulated) -> None:
    worker = first.worker()
    write(worker, 7, size=SIZE)
    before = first.carried(NETWORK)
    planned = Sending(pause_seconds=SECONDS, seconds=SECONDS)
    wait_until(lambda: worker.fits(SIZE, 7), "there is room")
    assert worker.write(8, [content(8, SIZE)], size=SIZE, description_bytes=0, committed=7, sending=planned)
    for allowed in (50_000, 90_000):
        worker.allow(allowed, SECONDS)
        before += allowed
        # A remainder too small for a separate piece stays unsent.
        wait_until(lambda: first.carried(NETWORK) > before - 4096, "what is allowed is sent")  # noqa: B023
        assert first.carried(NETWORK) <= before + 1
        assert not worker.holds(8)
    worker.allow(SIZE, None)
    wait_until(lambda: worker.holds(8), "all of it is allowed")
    assert second.held() == [("job", 1, 0, 8)]


def test_a_copy_ends_its_wait_when_its_worker_is_gone_or_frozen(first: Emulated, second: Emulated) -> None:
    worker = first.worker()
    write(worker, 7, size=1000)
    for iteration, pause_seconds in ((8, 0.1), (9, SECONDS)):
        sending = Sending(pause_seconds, SECONDS)

        def is_written() -> bool:
            return worker.write(
                iteration, [content(iteration, 1000)], size=1000, description_bytes=0,  # noqa: B023
                committed=iteration - 1, sending=sending,  # noqa: B023
            )  # fmt: skip

        # Refused while the copy of an earlier point holds the memory.
        wait_until(is_written, "there is room")
        if iteration == 9:
            first.served.clear()
            first.tell()
        expected = ("job", 1, 0, iteration)
        wait_until(lambda: second.held() == [expected], "it is sent all the same")  # noqa: B023


@given(
    size=st.integers(1, 1 << 40),
    seconds=st.floats(1e-3, 1e3),
    usable_share=st.floats(0.1, 1.0),
    late=st.floats(0, 2),
)
def test_a_late_send_still_ends_within_its_idle_span(
    size: int, seconds: float, usable_share: float, late: float
) -> None:
    takes = usable_share * seconds
    usable = Span(size, size, takes, ends=seconds).usable(late * seconds)
    assert 0 <= usable <= size
    # At the highest rate.
    assert usable == 0 or late * seconds + usable / size * takes <= seconds * (1 + 1e-9)
    if late <= 1.0 - usable_share - 1e-6:
        assert usable == size, "what is not too late is sent whole"


def test_without_a_plan_copies_do_not_wait() -> None:
    assert Allowance(Sending()).take(77) == 77


def test_the_rest_of_a_paced_copy_goes_at_once_when_its_plan_ends() -> None:
    times = [1000.0]
    allowance = Allowance(Sending(pause_seconds=60.0, seconds=100.0), lambda: times[-1])
    allowance.allow(10_000, None)
    assert allowance.take(SIZE) == 10_000
    times.append(1101.0)
    allowance.allow(10_000, None)
    assert allowance.take(SIZE) == SIZE


def test_a_workers_requested_pacing_is_bounded() -> None:
    assert Sending.bounded(1e9, 1e9, 1 << 60) == Sending(LONGEST_PAUSE_SECONDS, LONGEST_COPY_SECONDS, 4)
    assert Sending.bounded(-1.0, -1.0, 0) == Sending(0.0, 0.0, 1)
