"""An agent fetches shards: it tries the holders of a shard in turn and checks the content."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, cast

import pytest

from workers.agent.storage.node_cache import NodeCache
from workers.agent.storage.provisioning import NotYet, Provisioner

CONTENT = b"a shard"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def provisioner(tmp_path: Path) -> Provisioner:
    nobody = cast(Any, None)
    return Provisioner(nobody, nobody, NodeCache(tmp_path / "cache", 1 << 20), copy=True)


def holder(folder: Path, name: str, content: bytes) -> dict[str, Any]:
    (folder / name).write_bytes(content)
    return {"tier": "store", "uri": (folder / name).as_uri()}


def start(*holders: dict[str, Any], **changes: Any) -> dict[str, Any]:
    shards = [
        {"id": 0, "reader": 1, "bytes": 9, "sha256": "0" * 64, "holders": []},
        {"id": 1, "reader": 0, "bytes": len(CONTENT), "sha256": DIGEST, "holders": list(holders), **changes},
    ]
    return {"from": "checkpoint", "generation": 3, "iteration": 8, "world_size": 2, "shards": shards}


def test_a_rank_gets_the_shards_that_it_reads_and_no_others(provisioner: Provisioner, tmp_path: Path) -> None:
    files = provisioner.fetch_shards(tmp_path / "box", start(holder(tmp_path, "a", CONTENT)), 0)
    assert files == {"1": "in/state-3-8-1.pt"}
    assert (tmp_path / "box" / files["1"]).read_bytes() == CONTENT


@pytest.mark.parametrize("damaged", [b"a shArd", b"a shard and more", b""])
def test_a_damaged_shard_is_refused_and_the_next_holder_asked(
    provisioner: Provisioner, tmp_path: Path, damaged: bytes
) -> None:
    gone = {"tier": "store", "uri": (tmp_path / "gone").as_uri()}
    order = start(gone, holder(tmp_path, "a", damaged), holder(tmp_path, "b", CONTENT))
    (path,) = provisioner.fetch_shards(tmp_path / "box", order, 0).values()
    assert (tmp_path / "box" / path).read_bytes() == CONTENT


def test_a_worker_gets_no_shard_while_all_holders_have_damaged_ones(
    provisioner: Provisioner, tmp_path: Path
) -> None:
    with pytest.raises(NotYet, match="has the digest"):
        provisioner.fetch_shards(tmp_path / "box", start(holder(tmp_path, "a", b"a shArd")), 0)
    assert not list(tmp_path.glob("box/in/*"))


def test_a_state_of_an_earlier_version_has_no_digest(provisioner: Provisioner, tmp_path: Path) -> None:
    order = start(holder(tmp_path, "a", CONTENT), sha256=None)
    assert provisioner.fetch_shards(tmp_path / "box", order, 0)
