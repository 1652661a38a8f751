"""A function tried at home uses the same files, class and data as on the platform."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from workers.runtime.at_home.local_agent import LocalAgent
from workers.runtime.at_home.own_function import find_data, read_source, write_files

CLASS = """
import punctual


class Base(punctual.TrainingFunction):
    def init_model(self): ...
    def init_dataset(self): ...
    def init_optimizer(self, model): ...
    def train(self, batch, model): ...


class Shapes(Base):
    pass
"""


def archive(path: Path, *names: str) -> Path:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as zipped:
        for name in names:
            zipped.writestr(name, CLASS if name.endswith("shapes.py") else "")
    path.write_bytes(content.getvalue())
    return path


def test_the_function_class_is_picked_as_the_platform_picks_it(tmp_path: Path) -> None:
    """A base class in the same file, under an imported name."""
    (tmp_path / "my shapes.py").write_text(CLASS)
    files, entry = read_source(tmp_path / "my shapes.py")
    assert (list(files), entry) == (["my_shapes.py"], "my_shapes:Shapes")


def test_a_zip_is_read_as_the_platform_reads_it(tmp_path: Path) -> None:
    source = archive(
        tmp_path / "Shapes.ZIP", "s-main/shapes.py", "s-main/help.py", "__MACOSX/s-main/._shapes.py"
    )
    files, entry = read_source(source)
    assert (sorted(files), entry) == (["help.py", "shapes.py"], "shapes:Shapes")
    assert (write_files(files, tmp_path / "out") / "shapes.py").read_text() == CLASS


def test_a_folder_is_read_as_the_command_line_packs_it(tmp_path: Path) -> None:
    (tmp_path / "shapes.py").write_text(CLASS)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "other.py").write_text(CLASS)
    files, entry = read_source(tmp_path)
    assert (sorted(files), entry) == (["shapes.py"], "shapes:Shapes")


@pytest.mark.parametrize("name", ["../shapes.py", "a\\..\\..\\shapes.py", "/shapes.py"])
def test_a_zip_with_paths_that_lead_out_is_refused_at_home(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="does not stay inside"):
        read_source(archive(tmp_path / "a.zip", name))


def test_data_is_found_in_the_current_folder_and_beside_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The current folder comes first, as `data_path` says."""
    for place in ("here/data/digits", "there/data/digits", "there/data/words"):
        (tmp_path / place).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    there = tmp_path / "there"
    expected = {"digits": tmp_path / "here/data/digits", "words": there / "data/words"}
    assert find_data(Path("../there/train.py")) == expected
    assert find_data(there) == expected
    monkeypatch.chdir(tmp_path)
    assert find_data(Path("nothing.py")) == {}


def test_a_worker_finds_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "words.txt").write_text("word")

    class Process:
        pid = 0

        def poll(self) -> int:
            return 0

        def wait(self, timeout: float | None = None) -> int:
            return 0

        def kill(self) -> None: ...

    with LocalAgent(lambda box, environment: Process(), {"words": tmp_path / "words.txt"}) as agent:
        assert (agent.start_worker().box / "data" / "words").read_text() == "word"
