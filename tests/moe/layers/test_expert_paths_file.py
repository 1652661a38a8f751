"""A file of expert paths is read; any other file is refused with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from punctual.moe import expert_paths
from punctual.moe.expert_paths import (
    MOST_PATHS,
    ExpertPaths,
    path_type,
    read_expert_paths,
    write_expert_paths,
)

CONTENT: dict[str, Any] = {
    "format": 1,
    "layers": ["a", "b"],
    "experts": [3, 2],
    "paths": torch.tensor([[0, 1], [2, 0]], dtype=torch.uint8),
}


def test_a_written_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "paths.pt"
    for experts in (256, 257, 40_000):
        kind = path_type((experts, 2))
        written = ExpertPaths(("a", "b"), (experts, 2), torch.tensor([[experts - 1, 1]]).to(kind))
        write_expert_paths(written, file)
        stored = read_expert_paths(file)
        assert (stored.layers, stored.experts) == (written.layers, written.experts)
        assert stored.paths.tolist() == [[experts - 1, 1]]


def test_only_the_paths_themselves_are_written(tmp_path: Path) -> None:
    rows = torch.zeros(MOST_PATHS, 2, dtype=torch.uint8)
    write_expert_paths(ExpertPaths(("a", "b"), (3, 2), rows[:5]), tmp_path / "paths.pt")
    assert (tmp_path / "paths.pt").stat().st_size < 4096


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"format": 2}, "has the format 2; it must be 1"),
        ({"layers": ["a"]}, "a name and a number of experts for each layer"),
        ({"layers": "ab"}, "a name and a number of experts for each layer"),
        ({"experts": [3, 2.0]}, "a name and a number of experts for each layer"),
        ({"experts": [3, 0]}, "each layer must have at least 1"),
        ({"layers": [], "experts": []}, "each layer must have at least 1"),
        ({"paths": [[0, 1]]}, "a tensor of uint8, int16 or int32"),
        ({"paths": torch.zeros(2, 2)}, "a tensor of uint8, int16 or int32"),
        ({"paths": torch.zeros(2, 3, dtype=torch.uint8)}, r"must be \(tokens, 2\)"),
        ({"paths": torch.zeros(2, 2, dtype=torch.uint8).to_sparse()}, r"must be \(tokens, 2\)"),
        ({"paths": torch.zeros(1, 2, dtype=torch.uint8).expand(10**9, 2)}, "1,000,000,000 tokens"),
        ({"paths": torch.tensor([[0, 2]], dtype=torch.uint8)}, "experts that its layers do not have"),
        ({"paths": torch.tensor([[-1, 0]], dtype=torch.int16)}, "experts that its layers do not have"),
    ],
)
def test_wrong_contents_are_refused(changes: dict[str, Any], match: str, tmp_path: Path) -> None:
    torch.save({**CONTENT, **changes}, tmp_path / "paths.pt")
    with pytest.raises(ValueError, match=match):
        read_expert_paths(tmp_path / "paths.pt")


class Executed:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return (print, ("executed",))


def test_other_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "paths.pt"
    torch.save(CONTENT, file)
    whole = file.read_bytes()
    torch.save(Executed(), file)
    for content in (b"", b"no archive", whole[: len(whole) // 2], file.read_bytes()):
        file.write_bytes(content)
        with pytest.raises(ValueError, match="no file of torch"):
            read_expert_paths(file)
    assert capsys.readouterr().out == ""
    torch.save([1], file)
    with pytest.raises(ValueError, match="has the format 'list'"):
        read_expert_paths(file)
    monkeypatch.setattr(expert_paths, "MOST_BYTES", 10)
    with pytest.raises(ValueError, match="the limit is 10"):
        read_expert_paths(file)
