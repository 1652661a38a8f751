"""Archives made by Finder, GitHub and Windows are read alike by platform and agent."""

from __future__ import annotations

import struct
import unicodedata
import zipfile
from pathlib import Path

import pytest

from scheduling.bundles import BundleError
from tests.api.conftest import SOURCE
from tests.api.functions.test_bundles import facts, refusal, zipped
from workers.agent.storage.unpacking import unpack_bundle

HELPER = "WIDTH = 8\n"
#: What Finder leaves beside the files.
OF_FINDER = [
    ("__MACOSX/", b""),
    ("__MACOSX/._train.py", b"\0\x05\x16\x07" + b"\0" * 60),
    (".DS_Store", b"\0\0\0\1Bud1"),
    ("Icon\r", b""),
]
OF_WINDOWS = [("Thumbs.db", b"\xd0\xcf"), ("desktop.ini", "[.ShellClassInfo]\r\n".encode("utf-16"))]


def unpacked(content: bytes, entry: str, folder: Path) -> set[str]:
    """Return the files that a worker finds."""
    (folder / "bundle").write_bytes(content)
    unpack_bundle(folder / "bundle", entry, folder / "out")
    return {str(path.relative_to(folder / "out")) for path in (folder / "out").rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("files", "entry", "kept"),
    [
        ([("train.py", SOURCE), *OF_FINDER], "train:Classifier", {"train.py"}),
        ([("train.py", SOURCE), *OF_WINDOWS], "train:Classifier", {"train.py"}),
        (
            [("shapes/", b""), ("shapes/train.py", SOURCE), ("shapes/._x.py", b"\0"), *OF_FINDER],
            "train:Classifier",
            {"train.py"},
        ),
        (
            [
                ("shapes-main/README.md", "# Shapes"),
                ("shapes-main/train.py", SOURCE),
                ("shapes-main/a/b.py", ""),
            ],
            "train:Classifier",
            {"README.md", "train.py", "a/b.py"},
        ),
        (
            [("s-main/s-main/train.py", SOURCE), ("s-main/s-main/helper.py", HELPER)],
            "train:Classifier",
            {"train.py", "helper.py"},
        ),
        ([("shapes\\", b""), ("shapes\\model\\train.py", SOURCE)], "train:Classifier", {"train.py"}),
        (
            [("src\\train.py", "\ufeff" + SOURCE.replace("\n", "\r\n")), ("README", "")],
            "src.train:Classifier",
            {"src/train.py", "README"},
        ),
        (
            [("shapes/__init__.py", ""), ("shapes/train.py", SOURCE)],
            "shapes.train:Classifier",
            {"shapes/__init__.py", "shapes/train.py"},
        ),
        (
            [("shapes/train.py", f"from shapes.helper import WIDTH\n{SOURCE}"), ("shapes/helper.py", HELPER)],
            "shapes.train:Classifier",
            {"shapes/train.py", "shapes/helper.py"},
        ),
        (
            [("model/train.py", f"from model import WIDTH\n{SOURCE}"), ("model/model.py", HELPER)],
            "train:Classifier",
            {"train.py", "model.py"},
        ),
    ],
)
def test_the_function_is_found_and_unpacked_where_it_was_found(
    tmp_path: Path, files: list[tuple[str, bytes | str]], entry: str, kept: set[str]
) -> None:
    content = zipped(*files)
    bundle_facts = facts(content)
    assert bundle_facts.entry == entry
    assert {file.path for file in bundle_facts.files} == kept
    assert unpacked(content, entry, tmp_path) == kept


def test_an_entry_with_the_folder_still_names_the_file_in_it(tmp_path: Path) -> None:
    """Functions were stored with such entries before their top folder was removed."""
    content = zipped(("shapes/train.py", SOURCE), ("shapes/helper.py", HELPER))
    assert facts(content, entry="shapes.train:Classifier").entry == "shapes.train:Classifier"
    paths = {"shapes/train.py", "shapes/helper.py"}
    assert unpacked(content, "shapes.train:Classifier", tmp_path) == paths


def test_an_entry_that_means_two_files_is_refused() -> None:
    content = zipped(("a/b/b/x.py", SOURCE), ("a/b/x.py", HELPER))
    assert "zip the contents of a/b/ without the folder" in refusal(content).detail


def test_names_of_finder_are_read_in_one_spelling(tmp_path: Path) -> None:
    """Finder writes decomposed UTF-8 without the flag; Python would not find the module."""
    name = unicodedata.normalize("NFD", "modèle.py")
    content = bytearray(zipped((name, SOURCE)))
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.index(mark) + offset
        content[at : at + 2] = struct.pack("<H", 0)
    assert facts(bytes(content)).entry == "modèle:Classifier"
    assert unpacked(bytes(content), "modèle:Classifier", tmp_path) == {"modèle.py"}


@pytest.mark.parametrize(
    "name",
    [
        "..\\train.py",
        "a\\..\\..\\train.py",
        "\\etc\\train.py",
        "C:\\train.py",
        "__MACOSX/../../train.py",
        "a\\.\\b.py",
    ],
)
def test_no_spelling_of_a_path_leads_out(name: str) -> None:
    assert refusal(zipped((name, SOURCE))).code == "bundle_path_traversal"


def test_two_spellings_of_one_path_are_refused() -> None:
    assert refusal(zipped(("a\\b.py", SOURCE), ("a/b.py", SOURCE))).code == "bundle_duplicate_name"


def test_litter_is_not_unpacked_however_large_it_is() -> None:
    """It does not count as files either: Finder writes one entry per file."""
    bomb = ("__MACOSX/._zeros", b"\0" * (20 * 1024 * 1024))
    many = [(f"__MACOSX/._{number}", b"") for number in range(40)]
    data = [(f"{number}.txt", b"") for number in range(40)]
    assert len(facts(zipped(("train.py", SOURCE), bomb, *many, *data)).files) == 41


@pytest.mark.parametrize("files", [[("shapes/", b"")], [("shapes\\", b""), *OF_FINDER], OF_FINDER])
def test_an_archive_of_folders_and_litter_alone_is_empty(files: list[tuple[str, bytes]]) -> None:
    assert refusal(zipped(*files)).code == "bundle_empty"


@pytest.mark.parametrize("text", ["\ufeffpandas>=2\r\n", "pandas>=2\r\n".encode("utf-16")])
def test_requirements_as_windows_writes_them_are_read(text: str | bytes) -> None:
    bundle_facts = facts(zipped(("shapes-main/train.py", SOURCE), ("shapes-main/requirements.txt", text)))
    assert bundle_facts.requirements is not None
    assert bundle_facts.requirements.text == "pandas>=2\n"


def test_a_link_stays_refused_under_any_name() -> None:
    info = zipfile.ZipInfo("shapes\\train.py")
    info.external_attr = 0o120777 << 16
    with pytest.raises(BundleError) as caught:
        facts(zipped((info, "/etc/passwd")))
    assert caught.value.code == "bundle_special_file"
