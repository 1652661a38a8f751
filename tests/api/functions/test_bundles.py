"""Invalid uploads are refused with a precise reason; bundle code is never executed."""

from __future__ import annotations

import io
import json
import os
import resource
import stat
import struct
import subprocess
import zipfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from projects.errors import Unavailable
from punctual.protocol import limits
from scheduling.bundles import (
    BundleError,
    BundleFacts,
    BundleLimits,
    ReadingBounds,
    bounded,
    read_bundle,
    read_bundle_apart,
)
from scheduling.core.question import worker_counts
from tests.api.conftest import SOURCE

LIMITS = BundleLimits(unpacked_bytes=5 * 1024 * 1024, files=50)


def zipped(
    *files: tuple[str | zipfile.ZipInfo, bytes | str], compression: int = zipfile.ZIP_DEFLATED
) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in files:
            archive.writestr(name, content, compress_type=compression)
    return buffer.getvalue()


def facts(content: bytes, filename: str = "bundle.zip", entry: str | None = None) -> BundleFacts:
    return read_bundle(content, filename, entry, LIMITS)


def refusal(content: bytes, filename: str = "bundle.zip", entry: str | None = None) -> BundleError:
    with pytest.raises(BundleError) as caught:
        facts(content, filename, entry)
    return caught.value


def link(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


def encrypted() -> bytes:
    content = bytearray(zipped(("train.py", SOURCE)))
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.index(mark) + offset
        content[at : at + 2] = struct.pack("<H", struct.unpack("<H", content[at : at + 2])[0] | 1)
    return bytes(content)


def lying_about_its_size() -> bytes:
    """Return a zip whose headers claim ten bytes for ten megabytes of zeros."""
    content = bytearray(zipped(("train.py", SOURCE), ("zeros.bin", b"\0" * (10 * 1024 * 1024))))
    at = content.rindex(b"PK\x01\x02") + 24
    content[at : at + 4] = struct.pack("<I", 10)
    return bytes(content)


MALFORMED: dict[str, tuple[Callable[[], bytes], str]] = {
    "an empty file": (lambda: b"", "bundle_empty"),
    "not a zip": (lambda: b"hello", "bundle_not_a_zip"),
    "half a zip": (lambda: zipped(("train.py", SOURCE))[:100], "bundle_broken_zip"),
    "an empty zip": (zipped, "bundle_empty"),
    "a zip of zeros": (lambda: zipped(("zeros.bin", b"\0" * (4 * 1024 * 1024))), "bundle_zip_bomb"),
    "a zip that grows too large": (
        lambda: zipped(("data.bin", bytes(range(256)) * 24_000), compression=zipfile.ZIP_STORED),
        "bundle_zip_bomb",
    ),
    "a path out of the bundle": (lambda: zipped(("../train.py", SOURCE)), "bundle_path_traversal"),
    "an absolute path": (lambda: zipped(("/etc/train.py", SOURCE)), "bundle_path_traversal"),
    "a Windows path": (lambda: zipped(("a\\..\\..\\train.py", SOURCE)), "bundle_path_traversal"),
    "a drive": (lambda: zipped(("c:/train.py", SOURCE)), "bundle_path_traversal"),
    "a link": (lambda: zipped((link("train.py"), "/etc/passwd")), "bundle_special_file"),
    "an encrypted zip": (encrypted, "bundle_encrypted"),
    "an unusual method": (
        lambda: zipped(("train.py", SOURCE), compression=zipfile.ZIP_LZMA),
        "bundle_compression",
    ),
    "too many files": (lambda: zipped(*((f"{n}.txt", "") for n in range(51))), "bundle_too_many_files"),
    "far too many files": (lambda: zipped(*((f"{n}.txt", "") for n in range(200))), "bundle_too_many_files"),
    "a file that is a folder": (lambda: zipped(("a", "x"), ("a/b.py", SOURCE)), "bundle_duplicate_name"),
    "no class": (lambda: zipped(("train.py", "print('hello')")), "bundle_missing_class"),
    "a class without methods": (
        lambda: zipped(("t.py", "from punctual import TrainingFunction\nclass F(TrainingFunction): pass")),
        "bundle_missing_methods",
    ),
    "a syntax error": (lambda: zipped(("train.py", "def f(:\n  pass")), "bundle_syntax_error"),
    "text that is not UTF-8": (lambda: zipped(("train.py", b"# caf\xe9")), "bundle_not_utf8"),
    "a hidden package": (lambda: zipped(("torch/__init__.py", SOURCE)), "bundle_reserved_name"),
    "a hidden package of ours": (
        lambda: zipped(("workers/train.py", SOURCE), ("a", "")),
        "bundle_reserved_name",
    ),
    "a hidden module of Python's": (
        lambda: zipped(("train.py", SOURCE), ("queue.py", "")),
        "bundle_reserved_name",
    ),
    "two classes": (
        lambda: zipped(("a.py", SOURCE), ("b.py", SOURCE.replace("Classifier", "Other"))),
        "bundle_entry_needed",
    ),
    "a computed speed_neutral": (
        lambda: zipped(("a.py", SOURCE.replace('{"learning_rate", "momentum"}', "names()"))),
        "bundle_speed_neutral",
    ),
    "two megabytes of names that change no speed": (
        lambda: zipped(("a.py", neutral(f"name_{number:06d}" for number in range(120_000)))),
        "bundle_speed_neutral",
    ),
    "a name of a kilobyte": (lambda: zipped(("a.py", neutral(["n" * 1_000]))), "bundle_speed_neutral"),
    "a name that turns the text around it": (
        lambda: zipped(("a.py", neutral(["\u202eetar_gninrael"]))),
        "bundle_speed_neutral",
    ),
    "computed worker_counts": (lambda: zipped(("a.py", declaring("set(range(3))"))), "bundle_worker_counts"),
    "no worker at all": (lambda: zipped(("a.py", declaring("{0, 3}"))), "bundle_worker_counts"),
    "workers by name": (lambda: zipped(("a.py", declaring('{"three"}'))), "bundle_worker_counts"),
    "half a worker": (lambda: zipped(("a.py", declaring("{1.5, True}"))), "bundle_worker_counts"),
    "more workers than any generation has": (
        lambda: zipped(("a.py", declaring("{10**9}"))),
        "bundle_worker_counts",
    ),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_bundle_is_refused_for_its_own_reason(what: str) -> None:
    content, code = MALFORMED[what]
    error = refusal(content())
    assert error.code == code
    assert error.errors
    assert error.status == 400


def test_a_name_that_would_hide_another_is_refused_with_what_it_hides() -> None:
    assert "Python's own module random" in refusal(SOURCE.encode(), "random.py").detail
    inside = zipped(("train.py", SOURCE), ("mine/queue.py", ""), ("mine/__init__.py", ""))
    assert facts(inside).entry == "train:Classifier", "within a package of its own it hides nothing"


def test_a_name_that_is_there_twice_is_refused() -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        content = zipped(("train.py", SOURCE), ("train.py", "import os"))
    assert refusal(content).code == "bundle_duplicate_name"


def test_false_sizes_in_zip_headers_are_refused() -> None:
    error = refusal(lying_about_its_size())
    assert error.code in {"bundle_zip_bomb", "bundle_broken_zip"}


def test_a_syntax_error_names_line_and_column() -> None:
    error = refusal(b"x = 1\ny = (\n", "train.py")
    assert "train.py, line 2, column 5" in error.detail


@pytest.mark.parametrize(
    "source",
    ["-" * 100_000 + "1", "(" * 100_000, "a" + ".b" * 100_000, "1" + "+1" * 100_000, "x = 1" + "0" * 9_000],
)
def test_source_that_exhausts_a_parser_is_a_syntax_error(source: str) -> None:
    assert refusal(source.encode(), "train.py").code == "bundle_syntax_error"


def test_function_class_is_found_in_a_single_file() -> None:
    bundle_facts = facts(SOURCE.encode(), "my classifier.py")
    assert bundle_facts.entry == "my_classifier:Classifier"
    assert bundle_facts.description == "Tells shapes apart."
    assert bundle_facts.speed_neutral == ("learning_rate", "momentum")
    assert [file.path for file in bundle_facts.files] == ["my_classifier.py"]


def neutral(names: Iterable[str]) -> str:
    """Return the source with these names in its ``speed_neutral``."""
    return SOURCE.replace('{"learning_rate", "momentum"}', repr(sorted(names)))


def declaring(worker_counts: str) -> str:
    """Return the function with these numbers of workers."""
    line = f"    worker_counts = {worker_counts}\n"
    return SOURCE.replace("    speed_neutral", f"{line}    speed_neutral", 1)


def test_a_function_may_declare_what_the_decision_core_can_plan() -> None:
    assert limits.MOST_WORKERS == worker_counts.MOST_WORKERS


@pytest.mark.parametrize(
    ("declared", "found"), [("{12, 3, 6}", (3, 6, 12)), ("(3,)", (3,)), ("set()", ()), ("[]", ())]
)
def test_numbers_of_workers_are_read_without_running_the_file(declared: str, found: tuple[int, ...]) -> None:
    assert facts(declaring(declared).encode(), "train.py").worker_counts == found


def test_a_base_in_another_module_of_the_bundle_counts() -> None:
    base = SOURCE.replace("Classifier", "Base")
    child = "from .base import Base\n\n\nclass Tuned(Base):\n    speed_neutral = ()\n"
    bundle_facts = facts(
        zipped(("model/__init__.py", ""), ("model/base.py", base), ("model/tuned.py", child))
    )
    assert (bundle_facts.entry, bundle_facts.speed_neutral) == ("model.tuned:Tuned", ())


@pytest.mark.parametrize(
    "line", ["import punctual as p", "import punctual.function as p", "from punctual import function as p"]
)
def test_the_base_class_is_known_under_any_name(line: str) -> None:
    source = SOURCE.replace("from punctual import TrainingFunction", line).replace(
        "(TrainingFunction)", "(p.TrainingFunction)"
    )
    assert facts(source.encode(), "a.py").entry == "a:Classifier"


def test_an_entry_chooses_among_several_classes() -> None:
    content = zipped(("a.py", SOURCE), ("b.py", SOURCE.replace("Classifier", "Other")))
    assert facts(content, entry="b:Other").entry == "b:Other"
    assert refusal(content, entry="b:Missing").code == "bundle_missing_class"
    assert refusal(content, entry="b.Other").errors["entry"]


def test_code_is_read_and_never_run(tmp_path: object) -> None:
    bundle_facts = facts(f"raise SystemExit('run')\n{SOURCE}".encode(), "a.py")
    assert bundle_facts.entry == "a:Classifier"


def test_equal_requirements_are_normalised_to_one_environment() -> None:
    first = facts(zipped(("a.py", SOURCE), ("requirements.txt", "Pandas>=2 # tables\n\nscikit_learn==1.5\n")))
    second = facts(zipped(("a.py", SOURCE), ("requirements.txt", "scikit-learn == 1.5\npandas >= 2\n")))
    assert first.requirements is not None
    assert first.requirements == second.requirements
    assert first.requirements.text == "pandas>=2\nscikit-learn==1.5\n"
    assert facts(zipped(("a.py", SOURCE), ("requirements.txt", "# nothing\n"))).requirements is None


@pytest.mark.parametrize(
    "line",
    [
        "-e .",
        "--index-url https://example.org",
        "-r other.txt",
        "https://example.org/x.whl",
        "x @ https://example.org/x.whl",
        "git+https://example.org/x",
        "./x",
        "x.whl",
        "not a requirement",
        "pandas \\",
    ],
)
def test_requirements_other_than_package_names_are_refused(line: str) -> None:
    error = refusal(zipped(("a.py", SOURCE), ("requirements.txt", f"numpy\n{line}\n")))
    assert error.code == "bundle_requirements"
    assert "line 2" in error.detail


def test_requirements_in_a_package_are_not_overlooked() -> None:
    package = [
        ("project/__init__.py", ""),
        ("project/a.py", SOURCE),
        ("project/requirements.txt", "pandas\n"),
    ]
    assert "top of the zip" in refusal(zipped(*package)).detail


@given(
    content=some.one_of(some.binary(max_size=400), some.text(max_size=200).map(str.encode)),
    name=some.sampled_from(["a.py", "a.zip", "a"]),
)
def test_whatever_is_uploaded_the_answer_is_facts_or_a_refusal(content: bytes, name: str) -> None:
    with suppress(BundleError):
        facts(content, name)


@given(at=some.integers(min_value=0), byte=some.integers(0, 255))
def test_a_zip_with_a_broken_byte_is_facts_or_a_refusal(at: int, byte: int) -> None:
    content = bytearray(zipped(("train.py", SOURCE), ("requirements.txt", "pandas\n")))
    content[at % len(content)] = byte
    with suppress(BundleError):
        facts(bytes(content))


def test_as_many_names_as_are_taken_are_stored_whole() -> None:
    names = [f"{number:03d}" + "n" * 97 for number in range(64)]
    bundle_facts = facts(zipped(("a.py", neutral(names))))
    assert bundle_facts.speed_neutral == tuple(names)
    assert len(json.dumps(bundle_facts.speed_neutral)) < 8_000, "every job of the function is read with them"


# --- in a process of its own --------------------------------------------------------------------------------

BOUNDS = ReadingBounds(memory_bytes=256 * 1024**2)


def apart(content: bytes, bounds: ReadingBounds = BOUNDS, filename: str = "train.py") -> BundleFacts:
    return read_bundle_apart(content, filename, None, LIMITS, bounds)


def test_reading_in_a_subprocess_gives_the_same_result() -> None:
    content = zipped(("train.py", SOURCE), ("requirements.txt", "pandas\n"))
    assert apart(content, filename="train.zip") == facts(content)
    with pytest.raises(BundleError) as caught:
        apart(b"x = (\n")
    assert (caught.value.code, caught.value.detail) == (
        "bundle_syntax_error",
        refusal(b"x = (\n", "train.py").detail,
    )


@pytest.mark.parametrize(
    "literal",
    [
        "[" + "[[]]," * 300_000 + "]",
        pytest.param("[" + "1," * 700_000 + "]", marks=pytest.mark.slow),
        pytest.param("[" + "{}," * 500_000 + "]", marks=pytest.mark.slow),
    ],
)
def test_costly_source_is_refused_without_using_server_memory(literal: str) -> None:
    """In the server's process 1.5 MB of list literals took 1.8 GB, of which 851 MB stayed."""
    before = resident_bytes()
    with pytest.raises(BundleError) as caught:
        apart(f"{SOURCE}\nx = {literal}\n".encode())
    assert caught.value.code == "bundle_too_costly_to_read"
    assert "256 MiB of memory" in caught.value.detail
    assert caught.value.status == 400
    assert resident_bytes() - before < 64 * 1024**2
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 < 2 * 1024**3


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_nesting_that_the_parser_refuses_is_no_lack_of_memory() -> None:
    with pytest.raises(BundleError) as caught:
        apart(b"x = " + b"-" * 100_000 + b"1")
    assert caught.value.code == "bundle_syntax_error"


@pytest.mark.parametrize("bounds", [ReadingBounds(cpu_seconds=1), ReadingBounds(wall_seconds=0.5)])
def test_reading_a_slow_source_is_given_up(bounds: ReadingBounds, monkeypatch: pytest.MonkeyPatch) -> None:
    # A parser that never ends stands for one that takes minutes.
    endless = "reading_process._answer = lambda asked: any(iter(int, 1)); reading_process.main()"
    started = bounded._PROGRAM.partition("from")[0]
    program = f"{started}from scheduling.bundles import reading_process; {endless}"
    monkeypatch.setattr(bounded, "_PROGRAM", program)
    with pytest.raises(BundleError) as caught:
        apart(SOURCE.encode(), bounds)
    assert caught.value.code == "bundle_too_costly_to_read"
    assert "1 s of processor time" in caught.value.detail or "takes more than 0.5 s" in caught.value.detail


def test_the_reading_process_has_none_of_the_platforms_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://secret")
    started: list[dict[str, Any]] = []
    run = subprocess.run

    def remember(*arguments: Any, **options: Any) -> Any:
        started.append(options)
        return run(*arguments, **options)

    monkeypatch.setattr(subprocess, "run", remember)
    apart(SOURCE.encode())
    assert set(started[0]["env"]) == {"PATH", "LANG"}
    assert "secret" not in os.environ["PATH"]
    assert started[0].get("close_fds", True)


def test_reading_is_unavailable_after_a_long_wait_for_others() -> None:
    with bounded._READING, pytest.raises(Unavailable):
        apart(SOURCE.encode(), ReadingBounds(wall_seconds=0.05))
