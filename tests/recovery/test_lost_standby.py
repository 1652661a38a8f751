"""A replacement server dies while it fetches the state: the next one fetches it too."""

from __future__ import annotations

import select
import socket
import socketserver
import threading
from collections.abc import Callable

from tests.recovery.test_peers import Server, later_worker, start
from tests.recovery.test_store import SECONDS, content, read, write

__all__ = ["start"]

SIZE = 3 << 20
#: More than the messages before a shard, and less than the whole shard.
PASSED_BYTES = 1 << 20


class HoldingUp(socketserver.ThreadingTCPServer):
    """A relay to a store that carries a number of bytes from it, and then no more."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int, passed_bytes: int) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.store = ("127.0.0.1", port)
        self.left = passed_bytes
        self.full = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Passing(socketserver.BaseRequestHandler):
    """One connection to the store."""

    server: HoldingUp

    def handle(self) -> None:
        with socket.create_connection(self.server.store) as store:
            while not self.server.full.is_set():
                ready, _, _ = select.select([self.request, store], [], [], SECONDS)
                if not ready or not all(self._passed(readable, store) for readable in ready):
                    return
            # Until the caller has disconnected.
            self.request.recv(1)

    def _passed(self, readable: socket.socket, store: socket.socket) -> bool:
        piece = readable.recv(1 << 16)
        if readable is store:
            self.server.left -= len(piece)
        if self.server.left < 0:
            self.server.full.set()
        else:
            (self.request if readable is store else store).sendall(piece)
        return bool(piece)


def test_the_next_standby_fetches_what_a_dead_one_had_begun(start: Callable[[str], Server]) -> None:
    first, second = start("first"), start("second")
    second.join(keep=[0])
    first.join(send=[{"rank": 0, "peers": [second.as_peer]}])
    worker = first.worker()
    write(worker, 7, size=SIZE // 2)
    write(worker, 8, committed=7, size=SIZE // 2)
    first.end()

    standby = start("standby")
    with HoldingUp(second.port, PASSED_BYTES) as way:
        standby.join(fetch=[{"rank": 0, "peers": [{**second.as_peer, "port": way.server_address[1]}]}])
        reader = standby.worker(generation=2)
        assert reader.find(0, 1, SECONDS) == {7, 8}
        reader._say({"open": 0, "generation": 1, "iteration": 8})
        assert way.full.wait(SECONDS), "it fetches"
        standby.end()

    another = start("another")
    later = later_worker(another, standby, second)
    assert later.find(0, 1, SECONDS) == {7, 8}, "nothing of what is kept went with the standby"
    assert read(later.open(0, 1, 8, SECONDS), SIZE // 2) == content(8, SIZE // 2)
    assert another.held() == [("job", 1, 0, 8)]
