"""A state cut over ranks is restored whole on any number of ranks, and no rank holds all of it as bytes."""

from __future__ import annotations

import math
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workers.runtime.state.layout import TensorEntry, cut, put_together, take_apart
from workers.runtime.state.loading import ShardInMemory, load_state
from workers.runtime.state.shards import (
    STATE_FORMAT,
    UNFAIR_FORMAT,
    Shard,
    ShardCutter,
    ShardError,
    _part,
    describe_as_bytes,
    own_shard,
    read_description,
    read_shard,
    write_shard,
)

DTYPES = ["float32", "float64", "bfloat16", "int64", "uint8", "bool", "complex64"]
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
LAYOUTS = st.lists(st.tuples(st.sampled_from(DTYPES), SHAPES, st.booleans()), max_size=12).map(
    lambda drawn: [TensorEntry(("model", str(n)), *fields) for n, fields in enumerate(drawn)]
)


@given(LAYOUTS, st.integers(1, 9))
def test_every_element_is_in_one_slice_and_slices_are_even(layout: list[TensorEntry], shards: int) -> None:
    cuts = cut(layout, shards)
    assert len(cuts) == shards
    seen = sorted(
        (piece.entry, element)
        for slices in cuts
        for piece in slices
        for element in range(piece.start, piece.start + piece.count)
    )
    assert seen == [(n, element) for n, entry in enumerate(layout) for element in range(entry.count)]
    for slices in cuts[1:]:
        assert all(layout[piece.entry].replicated for piece in slices)
    sizes = [sum(piece.count * layout[piece.entry].element_bytes for piece in slices) for slices in cuts]
    alone = sum(entry.count * entry.element_bytes for entry in layout if not entry.replicated)
    largest_element = max((entry.element_bytes for entry in layout), default=0)
    assert max(sizes) <= max(alone, math.ceil(sum(sizes) / shards)) + largest_element
    # If rank 0's own part exceeds its share, the others share all the rest.
    if shards > 1 and alone >= sum(sizes) / shards:
        assert max(sizes[1:]) <= math.ceil((sum(sizes) - alone) / (shards - 1)) + largest_element


@given(LAYOUTS, st.integers(1, 9))
def test_earlier_versions_cut_replicated_tensors_evenly(layout: list[TensorEntry], shards: int) -> None:
    replicated = [entry for entry in layout if entry.replicated]
    alike = cut(replicated, shards)
    for slices, expected in zip(cut(layout, shards, fair=False), alike, strict=True):
        mine = [(layout[piece.entry].path, piece.start, piece.count) for piece in slices]
        same = [(replicated[piece.entry].path, piece.start, piece.count) for piece in expected]
        assert mine[len(mine) - len(same) :] == same, "what is rank 0's alone comes first"


@pytest.mark.parametrize("state_format", [STATE_FORMAT, UNFAIR_FORMAT])
def test_shards_of_this_version_and_of_the_one_before_are_loaded(
    state_format: int, monkeypatch: pytest.MonkeyPatch, alone: None
) -> None:
    monkeypatch.setattr("workers.runtime.state.shards.STATE_FORMAT", state_format)
    _part.cache_clear()
    state: dict[str, Any] = {
        "generation": 3, "iteration": 8, "model": {"weight": torch.arange(100.0), "seen": torch.arange(30)},
        "optimizer": {"state": {}},
    }  # fmt: skip
    shards = [
        own_shard(state, frozenset({"weight"}), rank=rank, world_size=2, copy=False) for rank in range(2)
    ]
    _part.cache_clear()
    sizes = [shard.bytes for shard in shards]
    assert sizes == ([320, 320] if state_format == STATE_FORMAT else [440, 200])
    opened = {number: ShardInMemory(shard) for number, shard in enumerate(shards)}
    loaded = load_state(opened, [0, 0], rank=0)
    assert loaded is not None
    for name, value in state["model"].items():
        assert torch.equal(loaded.content["model"][name], value)


LEAVES = st.one_of(
    st.integers(), st.text(max_size=3), st.none(), st.sampled_from([torch.arange(3), torch.tensor(2.5)])
)
STATES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.integers(), st.text(max_size=3)), inner, max_size=3),
    ),
    max_leaves=12,
)


@given(STATES)
def test_a_state_is_cut_into_shards_and_joined_again(state: Any) -> None:
    rest, layout, tensors = take_apart(state, lambda path: True)
    again = put_together(rest, {entry.path: tensor for entry, tensor in zip(layout, tensors, strict=True)})
    assert repr(again) == repr(state)


def _state() -> dict[str, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(50, 40), torch.nn.BatchNorm1d(40), torch.nn.Linear(40, 3))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(8, 50)).sum().backward()
    optimizer.step()
    return {
        "generation": 2,
        "iteration": 17,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "function": {"seen": torch.arange(5), "name": "mine"},
        "history": [[1, {"loss": 2.0}]],
    }


def _parameters(state: dict[str, Any]) -> frozenset[str]:
    return frozenset(name for name in state["model"] if "running" not in name and "batches" not in name)


def _shards(state: dict[str, Any], world_size: int) -> list[Shard]:
    names = _parameters(state)
    ranks = range(world_size)
    return [own_shard(state, names, rank=rank, world_size=world_size, copy=True) for rank in ranks]


def test_shard_files_can_be_joined_with_pytorch_alone(tmp_path: Path) -> None:
    """Runs the program of docs/functions.md unchanged."""
    state = _state()
    for shard in _shards(state, 3):
        write_shard(shard, tmp_path / f"{shard.description['shard']}.pt")
    text = (Path(__file__).parents[3] / "docs" / "functions.md").read_text()
    begun = text.index("import torch", text.index("Reading a checkpoint with PyTorch alone"))
    program = text[begun : text.index("```", begun)]
    scope: dict[str, Any] = {}
    exec(program.replace("FOLDER", repr(str(tmp_path))), scope)
    assert scope["tensors"].keys() == {entry.path for entry in take_apart(state, lambda path: True)[1]}
    for name, value in state["model"].items():
        assert torch.equal(scope["tensors"]["model", name], value), name
    assert scope["rest"]["function"]["name"] == "mine"


def test_each_file_holds_only_its_share(tmp_path: Path) -> None:
    state = _state()
    state["model"]["large"] = torch.zeros(1_000_000)
    sizes = []
    for shard in _shards(state, 4):
        write_shard(shard, tmp_path / "shard.pt")
        sizes.append((tmp_path / "shard.pt").stat().st_size)
    assert max(sizes) < 1_100_000 < 4_000_000 / 3


def test_a_copied_shard_keeps_what_training_changes(tmp_path: Path) -> None:
    state = _state()
    (shard,) = _shards(state, 1)
    before = [value.clone() for value in shard.values]
    state["model"]["0.weight"].add_(1)
    state["history"].append("later")
    assert all(torch.equal(value, earlier) for value, earlier in zip(shard.values, before, strict=True))
    assert shard.description["rest"]["history"] == [[1, {"loss": 2.0}]]


def test_a_state_of_earlier_versions_is_read_as_its_only_shard(tmp_path: Path) -> None:
    state = {"format": 1, **_state()}
    torch.save(state, tmp_path / "old.pt")
    shard = read_shard(tmp_path / "old.pt")
    assert (shard.description["world_size"], shard.description["iteration"]) == (1, 17)
    assert sum(value.numel() for value in shard.values) == sum(
        entry.count for entry in take_apart(state, lambda path: True)[1]
    )


@pytest.mark.parametrize("damage", ["cut off", "no shard", "no file", "other count", "code"])
def test_an_invalid_shard_file_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "0.pt"
    (shard,) = _shards(_state(), 1)
    write_shard(shard, path)
    if damage == "cut off":
        path.write_bytes(path.read_bytes()[:-2000])
    elif damage == "no shard":
        torch.save([1, 2], path)
    elif damage == "no file":
        path.unlink()
    elif damage == "other count":
        torch.save({**shard.description, "values": [value[:-1] for value in shard.values]}, path)
    elif damage == "code":
        torch.save({"format": 2, "surprise": Path}, path)
    with pytest.raises(ShardError):
        read_shard(path)


def test_a_crash_while_writing_a_shard_leaves_no_shard_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shard,) = _shards(_state(), 1)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", crash)
    with pytest.raises(KeyboardInterrupt):
        write_shard(shard, tmp_path / "0.pt")
    assert not (tmp_path / "0.pt").exists()


def test_a_shards_description_is_current_when_sent() -> None:
    """Constant parts are described once for all shards; changing parts never are."""
    state = _state()
    own = {"compression": {"residual": torch.zeros(7)}}
    for iteration, changed in enumerate(({}, {"function": {"seen": torch.arange(9)}}, {})):
        state |= {"iteration": iteration, "history": [[iteration, {"loss": 1.0}]], **changed}
        for rank in (0, 1, 0, 1):
            for held in ({}, own):
                shard = own_shard(state, _parameters(state), rank=rank, world_size=2, copy=False, own=held)
                read = read_description(describe_as_bytes(shard))
                assert read == shard.description
                counts = [piece["count"] for piece in read["slices"]]
                counts += [math.prod(entry["shape"]) for entry in read["own"]]
                assert counts == [value.numel() for value in shard.values]


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "nothing": lambda state: None,
    "values": lambda state: state["model"]["0.weight"].add_(1),
    "where a tensor lies": lambda state: state["model"].update({"0.weight": torch.randn(40, 50)}),
    "its type": lambda state: state["model"].update({"0.weight": state["model"]["0.weight"].double()}),
    "its shape": lambda state: state["function"].update(seen=torch.arange(9)),
    "how it lies": lambda state: state["model"].update({"0.weight": torch.randn(50, 40).T}),
    "which tensors there are": lambda state: state["function"].pop("seen", None),
    "the order of tensors": lambda state: state.update(model=dict(reversed(state["model"].items()))),
    "plain values": lambda state: state["history"].append([state["iteration"], {"loss": 0.5}]),
    "its memory": lambda state: state["model"]["0.weight"].set_(torch.randn_like(state["model"]["0.weight"])),
}


@given(st.lists(st.sampled_from(sorted(CHANGES)), max_size=8), st.booleans())
def test_cached_parts_of_earlier_shards_never_leak_into_later_ones(
    changes: list[str], residuals: bool
) -> None:
    """A rank's later shards equal those that a new cutter would make."""
    state = _state()
    own = {"compression": {"residual": torch.zeros(7)}} if residuals else {}
    cutters = [ShardCutter(_parameters(state), rank=rank, world_size=2) for rank in range(2)]
    for change in ["nothing", *changes]:
        state["iteration"] += 1
        CHANGES[change](state)
        for rank, cutter in enumerate(cutters):
            shard = cutter.cut(state, copy=False, own=own)
            alone = own_shard(state, _parameters(state), rank=rank, world_size=2, copy=False, own=own)
            assert shard.description == alone.description
            assert describe_as_bytes(shard) == describe_as_bytes(alone)
            assert [bytes(piece) for piece in shard.pieces()] == [bytes(piece) for piece in alone.pieces()]
            assert shard.bytes == alone.bytes == sum(map(len, alone.pieces()))


def test_a_shard_keeps_no_memory_that_its_tensor_released() -> None:
    state = _state()
    cutter = ShardCutter(_parameters(state), rank=0, world_size=1)
    left = []
    for _ in range(4):
        state["model"]["0.weight"] = torch.randn(40, 50)
        left.append(weakref.ref(state["model"]["0.weight"].untyped_storage()))
        cutter.cut(state, copy=False)
    assert [reference() is None for reference in left] == [True, True, True, False]


def test_a_description_with_rich_values_survives_a_round_trip() -> None:
    state = _state()
    state["function"]["graph"] = torch.eye(3).to_sparse()
    shard = own_shard(state, _parameters(state), rank=0, world_size=1, copy=False)
    read = read_description(describe_as_bytes(shard))
    assert torch.equal(read["rest"]["function"]["graph"].to_dense(), torch.eye(3))
    assert read["layout"] == shard.description["layout"]


def test_an_invalid_description_is_refused() -> None:
    shard = own_shard(_state(), frozenset(), rank=0, world_size=1, copy=False)
    code = b"plain\n" + pickle.dumps({**shard.description, "surprise": Path})
    cut_off = describe_as_bytes(shard)[:-10]
    for content in (b"", b"PK", b"plain\n", code, cut_off, describe_as_bytes(Shard({"lasting": 3}, []))):
        with pytest.raises(ShardError):
            read_description(content)
    with pytest.raises(ShardError):
        read_description(describe_as_bytes(Shard(dict(shard.description), [], b"no archive")))
