"""Setting up the environment: pip's configuration reaches uv, and old interpreters get an error that names
the needed one."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from launch import environment, pip_configuration


@pytest.fixture
def pip_says(monkeypatch):
    for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CERT", "PIP_DEFAULT_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("UV_FIND_LINKS", "UV_DEFAULT_INDEX", "UV_INDEX", "SSL_CERT_FILE", "UV_HTTP_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)

    def say(text: str) -> None:
        def run(*_arguments: object, **_options: object) -> subprocess.CompletedProcess[str]:
            return subprocess.CompletedProcess([], 0, text, "")

        monkeypatch.setattr(subprocess, "run", run)

    return say


def test_only_existing_wheel_folders_are_passed_on(pip_says, tmp_path):
    pip_says(f"global.find-links='{tmp_path} /no/such/folder'\n")
    assert pip_configuration.uv_environment()["UV_FIND_LINKS"] == str(tmp_path)


def test_wheel_folders_on_separate_lines_are_all_passed_on(pip_says, tmp_path):
    (tmp_path / "more").mkdir()
    pip_says(f"global.find-links='\\n{tmp_path}\\n{tmp_path}/more'\n")
    assert pip_configuration.uv_environment()["UV_FIND_LINKS"] == f"{tmp_path},{tmp_path}/more"


def test_a_configured_index_is_passed_on(pip_says):
    pip_says("global.index-url='https://index.example/simple'\nglobal.default-timeout='90'\n")
    variables = pip_configuration.uv_environment()
    assert variables["UV_DEFAULT_INDEX"] == "https://index.example/simple"
    assert variables["UV_HTTP_TIMEOUT"] == "90"


def test_uvs_variables_override_pips_which_override_pips_files(pip_says, monkeypatch):
    pip_says("global.index-url='https://file.example/simple'\n")
    monkeypatch.setenv("PIP_INDEX_URL", "https://variable.example/simple")
    assert pip_configuration.uv_environment()["UV_DEFAULT_INDEX"] == "https://variable.example/simple"
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://uv.example/simple")
    assert pip_configuration.uv_environment()["UV_DEFAULT_INDEX"] == "https://uv.example/simple"


def test_set_up_needs_only_the_standard_library():
    folder = Path(environment.__file__).parent
    for name in ("environment.py", "pip_configuration.py"):
        code = f"import runpy; runpy.run_path({str(folder / name)!r})"
        subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)


def test_an_old_python_gets_an_error_naming_the_needed_one(monkeypatch, capsys):
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    monkeypatch.setattr(environment, "NEWER_INTERPRETERS", ())
    with pytest.raises(SystemExit):
        environment.use_newer_interpreter()
    assert "Python 3.9 is too old, 3.11 or newer is needed" in capsys.readouterr().err


def test_set_up_is_repeated_only_when_something_changed(tmp_path, monkeypatch):
    for name in ("requirements.txt", "requirements-dev.txt", "constraints.txt"):
        (tmp_path / name).write_text("django==5.2.19\n")
    monkeypatch.setattr(environment, "PROJECT", tmp_path)
    before = environment.fingerprint("requirements-dev.txt")
    assert environment.fingerprint("requirements-dev.txt") == before
    (tmp_path / "requirements.txt").write_text("django==5.2.20\n")
    assert environment.fingerprint("requirements-dev.txt") != before


def test_the_uv_that_set_up_fetches_is_the_pinned_one():
    uv = runpy.run_path(environment.__file__, run_name="imported")["UV"]
    assert uv in (environment.PROJECT / "requirements.txt").read_text().split()


def test_only_the_package_can_be_imported_from_any_folder(tmp_path, monkeypatch):
    packages = tmp_path / "environment" / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    monkeypatch.setattr(environment, "VIRTUAL_ENVIRONMENT", tmp_path / "environment")
    for _ in range(2):
        environment.make_importable()
    code = (
        "import importlib.util as u, punctual; from punctual import Client, TrainingFunction;"
        "print(bool(u.find_spec('config')))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "False\n", done.stderr


def test_closing_the_output_does_not_end_the_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    with os.fdopen(write, "w") as output:
        os.close(read)
        monkeypatch.setattr("sys.stdout", output)
        environment.say("installing")
        environment.say("installed")
