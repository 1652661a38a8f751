"""Packing functions for upload."""

from __future__ import annotations

import importlib
import io
import sys
import zipfile
from pathlib import Path

import pytest

from punctual.client import bundles
from punctual.client.bundles import pack
from punctual.errors import BundleError


def names_in(content: bytes) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(content)).namelist()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "my project"
    for name, text in {
        "train.py": "x = 1\n",
        "layers/attention.py": "y = 2\n",
        "requirements.txt": "einops\n",
        ".git/config": "secret",
        "__pycache__/train.cpython-311.pyc": "z",
        "layers/__pycache__/attention.pyc": "z",
        ".venv/lib/big.py": "z",
        "data/images.bin": "0" * 100,
        "notes/todo.md": "-",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_single_file_is_sent_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(b"class Train: ...\r\n")
    bundle = pack(path)
    assert (bundle.filename, bundle.content, bundle.suggested_name) == (
        "train.py",
        b"class Train: ...\r\n",
        "train",
    )


def test_a_folder_is_zipped_without_files_that_are_no_code(folder: Path) -> None:
    (folder / ".punctualignore").write_text("data/\n*.md\n")
    bundle = pack(str(folder))
    assert names_in(bundle.content) == ["layers/attention.py", "requirements.txt", "train.py"]
    assert bundle.suggested_name == "my-project"


def test_ignore_rules_can_be_negated(folder: Path) -> None:
    (folder / ".punctualignore").write_text("notes/*\n!notes/keep.md\n")
    (folder / "notes/keep.md").write_text("kept")
    assert "notes/keep.md" in names_in(pack(folder).content)
    assert "notes/todo.md" not in names_in(pack(folder).content)


def test_the_same_files_give_the_same_bytes(folder: Path) -> None:
    first = pack(folder).content
    (folder / "train.py").touch()
    (folder / "layers/attention.py").chmod(0o600)
    assert pack(folder).content == first


def test_a_requirements_file_can_accompany_a_single_file(folder: Path) -> None:
    bundle = pack(folder / "train.py", requirements=folder / "requirements.txt")
    assert names_in(bundle.content) == ["requirements.txt", "train.py"]


def test_a_class_brings_its_file_and_names_its_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lone_module.py").write_text("class Train: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("lone_module")
    assert pack(module.Train).entry == "lone_module:Train"
    assert pack(module.Train).content == b"class Train: ...\n"
    assert pack(module).entry is None
    sys.modules.pop("lone_module")


def test_a_class_in_a_package_brings_the_whole_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "vision_package" / "models"
    package.mkdir(parents=True)
    for path in (package.parent / "__init__.py", package / "__init__.py"):
        path.touch()
    (package / "resnet.py").write_text("class Train: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("vision_package.models.resnet")
    bundle = pack(module.Train)
    assert bundle.entry == "vision_package.models.resnet:Train"
    assert "vision_package/models/resnet.py" in names_in(bundle.content)
    for name in [name for name in sys.modules if name.startswith("vision_package")]:
        sys.modules.pop(name)


def test_a_class_without_a_source_file_is_refused_with_a_hint() -> None:
    class Local: ...

    with pytest.raises(BundleError, match="inside a function"):
        pack(Local)
    with pytest.raises(BundleError, match="no source file"):
        pack(type("Typed", (), {"__module__": "nowhere"}))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("train.txt", "x", "neither"), ("folder/readme.md", "x", "no .py")],
)
def test_an_object_that_is_no_function_is_refused(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    with pytest.raises(BundleError, match=message):
        pack(path if name == "train.txt" else path.parent)


@pytest.mark.parametrize(
    "name", ["nowhere.py", "nul\0.py", "", "~unknown-person/train.py", "x" * 5000 + ".py"]
)
def test_an_unreadable_file_gives_a_readable_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BundleError):
        pack(name)


def test_links_out_of_the_folder_are_refused(folder: Path) -> None:
    (folder / "passwords.py").symlink_to("/etc/passwd")
    with pytest.raises(BundleError, match="link"):
        pack(folder)


def test_links_to_folders_are_refused_but_for_ignored_ones(folder: Path) -> None:
    (folder / "everything").symlink_to("/")
    with pytest.raises(BundleError, match="link"):
        pack(folder)
    (folder / ".punctualignore").write_text("everything\n")
    assert "everything" not in names_in(pack(folder).content)


def test_a_folder_that_is_too_large_is_refused_early(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "MAXIMUM_FILES", 2)
    with pytest.raises(BundleError, match="more than 2 files") as refused:
        pack(folder)
    assert ".punctualignore" in (refused.value.hint or "")
