"""Input from users and their code is checked before it is used."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import stat
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.agent.fake_control_plane import zip_bundle
from workers.agent.machine.configuration import Configuration
from workers.agent.processes.worker_messages import (
    FileWritten,
    MessageError,
    Metrics,
    WorkerEvent,
    parse_message,
)
from workers.agent.storage import box_files
from workers.agent.storage.data_sources import DataError, allowed_path, fetch_url, public_address
from workers.agent.storage.unpacking import UnpackingError, unpack_bundle, unpack_environment
from workers.agent.talking.worker_logs import whole_characters


def configuration(tmp_path: Path, **changes: Any) -> Configuration:
    return Configuration(
        server_url="http://server",
        stream_url="http://stream",
        checkpoint_url="s3://platform/store",
        data=tmp_path / "agent",
        name="node",
        address="127.0.0.1",
        **changes,
    )


def write(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "archive"
    path.write_bytes(content)
    return path


class TestBundles:
    def test_a_single_file_becomes_the_module_of_its_entry(self, tmp_path: Path) -> None:
        unpack_bundle(write(tmp_path, b"x = 1"), "model:Function", tmp_path / "out")
        assert (tmp_path / "out/model.py").read_bytes() == b"x = 1"

    def test_a_zip_is_unpacked_with_its_folders(self, tmp_path: Path) -> None:
        bundle = write(tmp_path, zip_bundle({"package/__init__.py": b"", "package/net.py": b"y"}))
        unpack_bundle(bundle, "package.net:Function", tmp_path / "out")
        assert (tmp_path / "out/package/net.py").read_bytes() == b"y"

    @pytest.mark.parametrize(
        "name", ["../escaped.py", "/tmp/escaped.py", "a/../../escaped.py", "..\\escaped.py"]
    )
    def test_a_path_that_leads_out_is_refused(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(UnpackingError, match="leads out"):
            unpack_bundle(write(tmp_path, zip_bundle({name: b"evil"})), "a:B", tmp_path / "out")
        assert not list(tmp_path.rglob("escaped.py"))

    def test_a_link_in_a_zip_is_refused(self, tmp_path: Path) -> None:
        link = zipfile.ZipInfo("link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr(link, "/etc/passwd")
        with pytest.raises(UnpackingError, match="link"):
            unpack_bundle(write(tmp_path, buffer.getvalue()), "a:B", tmp_path / "out")

    def test_unpacking_a_zip_bomb_stops_at_its_size_limit(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("workers.agent.storage.unpacking.BUNDLE_LIMIT_BYTES", 1 << 20)
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("zeros", bytes(8 << 20))
        with pytest.raises(UnpackingError, match="more than"):
            unpack_bundle(write(tmp_path, buffer.getvalue()), "a:B", tmp_path / "out")

    def test_a_damaged_zip_is_an_error_with_a_reason(self, tmp_path: Path) -> None:
        content = zip_bundle({"a.py": b"x" * 500})
        with pytest.raises(UnpackingError, match="cannot be unpacked"):
            unpack_bundle(write(tmp_path, content[:40] + b"#" * 30 + content[70:]), "a:B", tmp_path / "out")


class TestEnvironments:
    def archive(self, tmp_path: Path, member: tarfile.TarInfo, content: bytes = b"") -> Path:
        member.size = len(content)
        with tarfile.open(tmp_path / "archive", "w:gz") as archive:
            archive.addfile(member, io.BytesIO(content))
        return tmp_path / "archive"

    def test_packages_are_unpacked(self, tmp_path: Path) -> None:
        unpack_environment(self.archive(tmp_path, tarfile.TarInfo("package/x.py"), b"z"), tmp_path / "out")
        assert (tmp_path / "out/package/x.py").read_bytes() == b"z"

    def test_every_supported_python_unpacks_packages(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Filters of tarfile came with Python 3.11.4; Debian 12 has 3.11.2."""
        member = tarfile.TarInfo("package/tool")
        member.mode = 0o4755
        archive = self.archive(tmp_path, member, b"z")

        def extract(self: tarfile.TarFile, member: tarfile.TarInfo, path: str = "") -> None:
            raise AssertionError("without a filter nothing is checked")

        monkeypatch.setattr(tarfile.TarFile, "extract", extract)
        unpack_environment(archive, tmp_path / "out")
        assert (tmp_path / "out/package/tool").stat().st_mode & 0o7777 == 0o755, "no set-user-id program"

    def test_paths_and_links_that_lead_out_are_refused(self, tmp_path: Path) -> None:
        outside = tarfile.TarInfo("../outside")
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        device = tarfile.TarInfo("device")
        device.type = tarfile.CHRTYPE
        for number, member in enumerate((outside, link, device)):
            with pytest.raises(UnpackingError):
                unpack_environment(self.archive(tmp_path, member), tmp_path / f"out{number}")


class TestDeclaredData:
    @pytest.mark.parametrize(
        "url",
        [
            "file:///etc/passwd",
            "simplecache::file:///etc/passwd",
            "https::file:///etc/passwd",
            "local:///etc/passwd",
            "/etc/passwd",
        ],
    )
    def test_urls_cannot_read_the_servers_own_files(self, tmp_path: Path, url: str) -> None:
        with pytest.raises(DataError, match="must be one of|is no http"):
            fetch_url(url, tmp_path / "out", configuration(tmp_path))

    @pytest.mark.parametrize(
        "host",
        ["127.0.0.1", "localhost", "169.254.169.254", "10.0.0.1", "[::1]", "0.0.0.0", "[::ffff:10.0.0.1]"],
    )
    def test_urls_cannot_reach_private_networks(self, tmp_path: Path, host: str) -> None:
        with pytest.raises(DataError, match="private address"):
            fetch_url(f"http://{host}/data", tmp_path / "out", configuration(tmp_path))

    def test_a_name_with_one_private_address_among_public_ones_is_refused(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        addresses = [(socket.AF_INET, 1, 6, "", (address, 0)) for address in ("8.8.8.8", "192.168.0.1")]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **options: addresses)
        with pytest.raises(DataError, match=r"192\.168\.0\.1"):
            public_address("rebinding.example")

    def test_the_platforms_own_store_is_not_data(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="own store"):
            fetch_url(
                "s3://platform/store/jobs/other/artifacts/1/weights.pt",
                tmp_path / "out",
                configuration(tmp_path, data_schemes=("s3",)),
            )

    def test_a_path_must_lie_below_a_data_root_even_through_links(self, tmp_path: Path) -> None:
        root = tmp_path / "datasets"
        (root / "images").mkdir(parents=True)
        (root / "sneaky").symlink_to("/etc")
        settings = configuration(tmp_path, data_roots=(root,))
        assert allowed_path(str(root / "images"), settings) == (root / "images").resolve()
        for path in ("/etc", str(root / "sneaky"), str(root / "images/../../agent"), f"{root}-other"):
            with pytest.raises(DataError, match="not below any"):
                allowed_path(path, settings)


class TestWhatWorkersWrite:
    def test_links_and_pipes_are_not_followed(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        out.mkdir()
        (out / "link").symlink_to("/etc/passwd")
        os.mkfifo(out / "pipe")
        (out / "folder").mkdir()
        (out / "folder/link").symlink_to("/etc/passwd")
        (out / "folder/away").symlink_to("/etc")
        (out / "folder/real").write_text("mine")
        with box_files.open_output_folder(tmp_path) as folder:
            for name in ("link", "pipe", "folder", "missing"):
                with pytest.raises(box_files.BoxFileError):
                    box_files.open_file(folder, name)
            assert box_files.list_files(folder, "folder") == ["real"]
            with (
                pytest.raises(box_files.BoxFileError),
                box_files.open_nested_file(folder, "folder/away/passwd"),
            ):
                pass

    def test_an_output_folder_replaced_by_a_link_is_not_entered(self, tmp_path: Path) -> None:
        (tmp_path / "out").symlink_to("/etc")
        with pytest.raises(OSError, match="out"), box_files.open_output_folder(tmp_path):
            pass

    def test_deleting_a_link_keeps_its_target(self, tmp_path: Path) -> None:
        precious = tmp_path / "precious"
        precious.mkdir()
        (tmp_path / "out").mkdir()
        (tmp_path / "out/final").symlink_to(precious)
        box_files.delete(tmp_path, "final")
        assert precious.is_dir()
        assert not (tmp_path / "out/final").is_symlink()


class TestMessages:
    @given(line=st.binary(max_size=200))
    def test_any_bytes_parse_or_are_refused_precisely(self, line: bytes) -> None:
        with contextlib.suppress(MessageError):
            parse_message(line)

    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    )
    names = st.sampled_from(
        ["id", "kind", "iteration", "values", "path", "reason", "metrics", "job", "rank", "warm", "message"]
    )
    kinds = st.sampled_from(["hello", "phase", "metrics", "event", "file", "iteration"])

    @given(message=st.dictionaries(kinds, values | st.dictionaries(names, values, max_size=6), max_size=2))
    def test_any_structure_parses_or_is_refused_precisely(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(MessageError):
            parse_message(json.dumps(message).encode())

    def test_deep_nesting_is_refused(self) -> None:
        with pytest.raises(MessageError, match="not JSON"):
            parse_message(b"[" * 100_000)

    def test_a_worker_cannot_report_a_checkpoint_or_a_completion_itself(self) -> None:
        for kind in ("shard_stored", "completed"):
            with pytest.raises(MessageError, match="may not send"):
                parse_message(json.dumps({"event": {"id": "x", "kind": kind, "uri": "file:///etc"}}).encode())

    @pytest.mark.parametrize(
        "path", ["/etc/passwd", "../x", "out/../../x", "in/state.pt", "out/a/b", "out/.."]
    )
    def test_only_files_directly_in_out_can_be_announced(self, path: str) -> None:
        body = {"path": path, "kind": "checkpoint", "iteration": 1, "reason": "periodic"}
        with pytest.raises(MessageError, match="directly inside"):
            parse_message(json.dumps({"file": body}).encode())

    def test_numbers_that_json_cannot_carry_are_left_out(self) -> None:
        line = b'{"metrics": {"iteration": 3, "values": {"loss": NaN, "accuracy": 0.5, "x": Infinity}}}'
        assert parse_message(line) == Metrics(3, {"accuracy": 0.5}, None, None)

    def test_texts_are_cut_and_stripped_of_characters_databases_refuse(self) -> None:
        body = {"id": "1", "kind": "failed", "reason": "killed", "message": "a\0b\ud800" + "x" * 100_000}
        message = parse_message(json.dumps({"event": body}).encode())
        assert isinstance(message, WorkerEvent)
        assert "\0" not in message.body["message"]
        assert len(message.body["message"].encode()) < 50_000

    def test_a_final_folder_is_parsed(self) -> None:
        body = {
            "path": "out/final",
            "kind": "final",
            "iteration": 9,
            "reason": "target",
            "metrics": {"loss": 1.5},
        }
        assert parse_message(json.dumps({"file": body}).encode()) == FileWritten(
            "out/final", "final", 9, "target", {"loss": 1.5}, ""
        )


@given(text=st.text(max_size=20), cut=st.integers(0, 80))
def test_a_log_is_cut_between_characters_only(text: str, cut: int) -> None:
    content = (
        text.encode("utf-8", "surrogatepass") if not any("\ud800" <= c <= "\udfff" for c in text) else b"x"
    )
    whole = whole_characters(content[:cut])
    whole.decode()
    assert len(content[:cut]) - len(whole) <= 3
