"""Inference clusters: their schedulers' reports and orders, and their settings by operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from punctual.client.reading import unreadable
from punctual.client.transport import Transport

Document = dict[str, Any]


class Inference:
    """Lend servers to training and reclaim them, as an inference scheduler with its own credential or as an
    operator.

    The caller chooses the ids of orders. Repeating an order returns the existing one, so a caller that is not
    sure whether it arrived can send it again.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def clusters(self) -> Sequence[Document]:
        """Return every inference cluster; with a scheduler's credential only its own."""
        return list(self._transport.pages("inference-clusters/", {"page_size": 200}))

    def cluster(self, name: str) -> Document:
        """Return one inference cluster with its state."""
        return self._get(_path(name))

    def create(self, name: str, **settings: Any) -> Document:
        """Create an inference cluster (operator)."""
        return self._post("inference-clusters/", {"name": name, **settings})

    def change(self, name: str, **settings: Any) -> Document:
        """Change settings; `lending=False` stops lending (operator)."""
        return self._document(self._transport.send("PATCH", _path(name), settings))

    def credential(self, name: str) -> str:
        """Return a new credential for its scheduler; the previous one stops working (operator)."""
        answer = self._transport.send("POST", _path(name, "credential"), {}, repeatable=False)
        return str(self._document(answer)["credential"])

    def servers(self, name: str) -> Sequence[Document]:
        """Return its servers, including lent ones, by name."""
        rows = self._transport.pages(_path(name, "servers"), {"page_size": 200})
        return sorted(rows, key=lambda row: str(row["name"]))

    def events(self, name: str) -> Iterator[Document]:
        """Yield its servers' events, newest first."""
        return self._transport.pages(_path(name, "events"), {"page_size": 200})

    def report_usage(self, name: str, samples: Sequence[Mapping[str, Any]]) -> Document:
        """Report usage by period: `period_ends_at`, `usage` from 0 to 1 and, if known, `shortfall_servers`.

        `source`: origin of a figure; by default `measured`, so set it for every figure that is not.
        """
        return self._post(_path(name, "usage"), {"samples": [dict(sample) for sample in samples]})

    def usage(self, name: str, *, limit: int = 288) -> Sequence[Document]:
        """Return reported usage, newest first."""
        return list(self._transport.pages(_path(name, "usage"), {"page_size": 200}, limit=limit))

    def lend(self, name: str, order_id: str, servers: Sequence[str]) -> Document:
        """Offer servers by name; either all of them are lent or none.

        Raises:
            ConflictError: lending is off, or one of them cannot be lent now.
        """
        return self._post(_path(name, "loan-orders"), {"id": order_id, "servers": list(servers)})

    def ask_back(
        self, name: str, order_id: str, count: int, *, wanted_by: datetime | None = None
    ) -> Document:
        """Reclaim `count` servers by a time; by default at once."""
        body: dict[str, Any] = {"id": order_id, "count": count}
        if wanted_by is not None:
            body["wanted_by"] = wanted_by.isoformat()
        return self._post(_path(name, "reclaim-orders"), body)

    def loan_orders(self, name: str, *, limit: int = 50) -> Sequence[Document]:
        """Return loan orders, newest first."""
        return list(self._transport.pages(_path(name, "loan-orders"), limit=limit))

    def reclaim_orders(self, name: str, *, limit: int = 50) -> Sequence[Document]:
        """Return reclaim orders, newest first."""
        return list(self._transport.pages(_path(name, "reclaim-orders"), limit=limit))

    def reclaim_order(self, name: str, order_id: str) -> Document:
        """Return one reclaim order with its servers."""
        return self._get(_path(name, "reclaim-orders", order_id))

    def confirm(self, name: str, order_id: str, servers: Sequence[str]) -> Document:
        """Confirm that these servers are back. Safe to repeat."""
        path = _path(name, "reclaim-orders", order_id, "confirm")
        return self._post(path, {"servers": list(servers)})

    def trainings(self, name: str, *, limit: int = 20) -> Sequence[Document]:
        """Return trainings of its forecasters, newest first (operator)."""
        return list(self._transport.pages(_path(name, "trainings"), limit=limit))

    def train(self, name: str, forecaster: str = "") -> Document:
        """Train a forecaster now; by default the cluster's own (operator)."""
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
