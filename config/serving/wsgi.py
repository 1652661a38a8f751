"""The WSGI side of the front: the environ of a request, and the response in pieces."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uvicorn._types import HTTPScope

_PIECE_BYTES = 256 * 1024


@dataclass
class Answer:
    """The response of a WSGI application."""

    status: int = 500
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    content: Iterable[bytes] = ()
    pieces: Iterator[bytes] = iter(())

    def start(
        self, status: str, headers: list[tuple[str, str]], _error: Any = None
    ) -> Callable[[bytes], object]:
        """WSGI's `start_response`."""
        self.status = int(status.split(" ", 1)[0])
        self.headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        return _refuse_to_write

    def piece(self) -> tuple[bytes, bool]:
        """Return the next bytes and whether there may be more. The last piece closes the response."""
        gathered = bytearray()
        try:
            for part in self.pieces:
                gathered += part
                if len(gathered) >= _PIECE_BYTES:
                    return bytes(gathered), True
        except BaseException:
            self.close()
            raise
        self.close()
        return bytes(gathered), False

    def close(self) -> None:
        """Close the content, at which Django releases the request's resources."""
        content, self.content = self.content, ()
        getattr(content, "close", lambda: None)()


def headers_of(scope: HTTPScope) -> dict[str, str]:
    """Return the headers by their WSGI names.

    A header with an underscore is dropped: it would become the same name as one with a hyphen, which a proxy
    in front may have set.
    """
    found: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        if b"_" in raw_name:
            continue
        name = raw_name.decode("latin-1").upper().replace("-", "_")
        name = name if name in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{name}"
        value = raw_value.decode("latin-1")
        if name in found:
            value = found[name] + ("; " if name == "HTTP_COOKIE" else ",") + value
        found[name] = value
    return found


def environ_of(scope: HTTPScope, headers: dict[str, str], body: IO[bytes], length: int) -> dict[str, Any]:
    host, port = scope["server"] or ("localhost", None)
    peer, peer_port = scope["client"] or ("", 0)
    return {
        **headers,
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": "",
        "PATH_INFO": scope["path"].encode().decode("latin-1"),
        "QUERY_STRING": scope["query_string"].decode("latin-1"),
        "SERVER_PROTOCOL": f"HTTP/{scope['http_version']}",
        "SERVER_NAME": host,
        "SERVER_PORT": str(port or 0),
        "REMOTE_ADDR": peer,
        "REMOTE_PORT": str(peer_port),
        # Measured, because a chunked body declares no length.
        "CONTENT_LENGTH": str(length),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scope["scheme"],
        "wsgi.input": body,
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }


def _refuse_to_write(_content: bytes) -> object:
    raise NotImplementedError("WSGI's write() is not used here; return an iterable")
