"""Inference clusters: what their schedulers report, offer and ask back, and what operators set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from punctual.client.reading import unreadable
from punctual.client.transport import Transport

Document = dict[str, Any]


class Inference:
    """Lend servers to training and ask them back: as an inference scheduler with its own credential, or as an
    operator.

    The ids of orders are the caller's. An order that is sent again is answered with itself, so that a caller
    who does not know whether it arrived sends it again.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def clusters(self) -> Sequence[Document]:
        """Every inference cluster; a scheduler's credential shows its own alone."""
        return list(self._transport.pages("inference-clusters/", {"page_size": 200}))

    def cluster(self, name: str) -> Document:
        """One inference cluster with where it stands."""
        return self._get(_path(name))

    def create(self, name: str, **settings: Any) -> Document:
        """Make an inference cluster (operator)."""
        return self._post("inference-clusters/", {"name": name, **settings})

    def change(self, name: str, **settings: Any) -> Document:
        """Change settings: `lending=False` stops lending (operator)."""
        return self._document(self._transport.send("PATCH", _path(name), settings))

    def credential(self, name: str) -> str:
        """A new credential for its scheduler; the one before stops working (operator)."""
        answer = self._transport.send("POST", _path(name, "credential"), {}, repeatable=False)
        return str(self._document(answer)["credential"])

    def servers(self, name: str) -> Sequence[Document]:
        """Its servers, wherever they are, by name."""
        rows = self._transport.pages(_path(name, "servers"), {"page_size": 200})
        return sorted(rows, key=lambda row: str(row["name"]))

    def events(self, name: str) -> Iterator[Document]:
        """What happened to its servers, newest first."""
        return self._transport.pages(_path(name, "events"), {"page_size": 200})

    def report_usage(self, name: str, samples: Sequence[Mapping[str, Any]]) -> Document:
        """Report usage by period: `period_ends_at`, `usage` from 0 to 1 and, where known,
        `shortfall_servers`.

        `source` says where a figure is from; `measured` unless given, so give it for everything that only
        stands in for that.
        """
        return self._post(_path(name, "usage"), {"samples": [dict(sample) for sample in samples]})

    def usage(self, name: str, *, limit: int = 288) -> Sequence[Document]:
        """Reported usage, newest first."""
        return list(self._transport.pages(_path(name, "usage"), {"page_size": 200}, limit=limit))

    def lend(self, name: str, order_id: str, servers: Sequence[str]) -> Document:
        """Offer servers by name; all of them are lent or none.

        Raises:
            ConflictError: lending is off, or one of them cannot be lent now.
        """
        return self._post(_path(name, "loan-orders"), {"id": order_id, "servers": list(servers)})

    def ask_back(
        self, name: str, order_id: str, count: int, *, wanted_by: datetime | None = None
    ) -> Document:
        """Ask for so many servers by a time; at once unless told."""
        body: dict[str, Any] = {"id": order_id, "count": count}
        if wanted_by is not None:
            body["wanted_by"] = wanted_by.isoformat()
        return self._post(_path(name, "reclaim-orders"), body)

    def loan_orders(self, name: str, *, limit: int = 50) -> Sequence[Document]:
        """Loan orders, newest first."""
        return list(self._transport.pages(_path(name, "loan-orders"), limit=limit))

    def reclaim_orders(self, name: str, *, limit: int = 50) -> Sequence[Document]:
        """Reclaim orders, newest first."""
        return list(self._transport.pages(_path(name, "reclaim-orders"), limit=limit))

    def reclaim_order(self, name: str, order_id: str) -> Document:
        """One reclaim order with its servers."""
        return self._get(_path(name, "reclaim-orders", order_id))

    def confirm(self, name: str, order_id: str, servers: Sequence[str]) -> Document:
        """Say that these servers are back; may be repeated."""
        path = _path(name, "reclaim-orders", order_id, "confirm")
        return self._post(path, {"servers": list(servers)})

    def trainings(self, name: str, *, limit: int = 20) -> Sequence[Document]:
        """Trainings of its forecasters, newest first (operator)."""
        return list(self._transport.pages(_path(name, "trainings"), limit=limit))

    def train(self, name: str, forecaster: str = "") -> Document:
        """Train a forecaster now; the cluster's own unless named (operator)."""
        return self._post(_path(name, "trainings"), {"forecaster": forecaster} if forecaster else {})

    def _get(self, path: str) -> Document:
        return self._document(self._transport.get(path))

    def _post(self, path: str, body: Mapping[str, Any]) -> Document:
        return self._document(self._transport.send("POST", path, body))

    def _document(self, answer: Any) -> Document:
        if not isinstance(answer, dict):
            raise unreadable("an inference cluster")
        return answer


def _path(*parts: str) -> str:
    return "/".join(("inference-clusters", *(quote(part, safe="") for part in parts), ""))
