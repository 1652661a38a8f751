"""Makes the environment in `.venv`: the first step of `make run` and `make test`.

Run as `python3 -I launch/environment.py` before anything is installed. It therefore uses only the standard
library and syntax that an older Python can parse, so that it can report the required version.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
VIRTUAL_ENVIRONMENT = PROJECT / ".venv"
TOOLS = PROJECT / ".tool"
INTERPRETER = VIRTUAL_ENVIRONMENT / "bin" / "python"
LEAST_VERSION = (3, 11)
NEWER_INTERPRETERS = ("python3.13", "python3.12", "python3.11")
#: Names under which distributions install Chromium.
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
UV = "uv==0.13.8"
#: Two thirds of the installed files. A process imports at most a few of these modules, which are compiled
#: then.
SELDOM_IMPORTED = (
    r"/(tests?|testing|faker/providers|graphql|mypy|mypyc|networkx|numba/cuda|plotly/graph_objs|pyarrow|pygments"
    r"|prompt_toolkit|scipy/(integrate|interpolate|io|ndimage|signal|stats)|setuptools|sympy/physics"
    r"|torch/(_inductor|_vendor|onnx)|torchgen|wcwidth)/"
)


class SetupError(Exception):
    """The environment cannot be made; the message says why and what helps."""


def main() -> int:
    """Make or refresh the environment. Arguments: `--dev` adds what tests need, `--browser` adds Chromium."""
    use_newer_interpreter()
    TOOLS.mkdir(exist_ok=True)
    try:
        with one_at_a_time():
            install("requirements-dev.txt" if "--dev" in sys.argv else "requirements.txt")
            make_command()
            make_importable()
            if "--browser" in sys.argv:
                install_browser()
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"error: this step failed: {' '.join(map(str, error.cmd))}", file=sys.stderr)
        return 1
    return 0


def use_newer_interpreter() -> None:
    """Require Python 3.11; if `python3` is older but a newer one is installed, re-execute with that."""
    if sys.version_info[:2] >= LEAST_VERSION:
        return
    for name in NEWER_INTERPRETERS:
        found = shutil.which(name)
        if found:
            os.execv(found, [found, "-I", __file__, *sys.argv[1:]])
    print(
        f"error: Python {version_text(sys.version_info)} is too old, {version_text(LEAST_VERSION)} or newer "
        "is needed: install it, or name it with `make PYTHON=...`",
        file=sys.stderr,
    )
    raise SystemExit(1)


def version_text(version: Sequence[object]) -> str:
    return f"{version[0]}.{version[1]}"


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold a lock so that two set-ups in one checkout run one after the other."""
    with (TOOLS / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up is running here: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def install(requirements: str) -> None:
    """Install the packages of the file, unless exactly these are installed already."""
    stamp = VIRTUAL_ENVIRONMENT / (".installed-" + requirements)
    wanted = fingerprint(requirements)
    if INTERPRETER.exists() and stamp.exists() and stamp.read_text() == wanted:
        return
    begun = time.monotonic()
    make_virtual_environment()
    environment = dict(os.environ)
    # Run, not imported: importing the package would need packages that are not installed yet.
    configuration = runpy.run_path(str(PROJECT / "launch" / "pip_configuration.py"))
    environment.update(configuration["uv_environment"]())
    if "UV_CACHE_DIR" not in environment and not home_is_writable():
        environment["UV_CACHE_DIR"] = str(TOOLS / "cache")
    environment.pop("VIRTUAL_ENV", None)
    say(f"installing {requirements} into .venv (the first time takes a minute or two)")
    command = [find_uv(), "pip", "install", "--python", str(INTERPRETER)]
    command += ["-r", requirements, "-c", "constraints.txt"]
    subprocess.run(command, cwd=PROJECT, env=environment, check=True)
    compile_bytecode()
    stamp.write_text(wanted)
    say("environment ready after %.0f s" % (time.monotonic() - begun))


def compile_bytecode() -> None:
    """Compile modules that most processes import, on all cores. Otherwise processes that start together would
    each compile them.

    A package may contain a file for another version of Python, so a file that cannot be compiled is not an
    error.
    """
    command = [str(INTERPRETER), "-m", "compileall", "-qq", "-j", "0", "-x", SELDOM_IMPORTED]
    folders = VIRTUAL_ENVIRONMENT.glob("lib/python3*/site-packages")
    subprocess.run([*command, *map(str, folders)], check=False)


def fingerprint(requirements: str) -> str:
    """Return a digest that changes with the required packages or the interpreter."""
    digest = hashlib.sha256(repr(sys.version_info[:2]).encode())
    for name in sorted({requirements, "requirements.txt", "constraints.txt"}):
        digest.update((PROJECT / name).read_bytes())
    return digest.hexdigest()


def make_virtual_environment() -> None:
    """Make a new `.venv` unless one with Python 3.11 or newer exists."""
    if INTERPRETER.exists():
        asked = subprocess.run(
            [str(INTERPRETER), "-c", "import sys; print(sys.version_info[:2] >= (3, 11))"],
            stdout=subprocess.PIPE,
            check=False,
        )
        if asked.stdout.strip() == b"True":
            return
        say("the environment in .venv does not work any more: making a new one")
        shutil.rmtree(VIRTUAL_ENVIRONMENT)
    say(f"making the environment in .venv with Python {version_text(sys.version_info)}")
    # Without pip, since uv installs: this also works without ensurepip (Debian without python3-venv).
    done = subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(VIRTUAL_ENVIRONMENT)], check=False
    )
    if done.returncode != 0:
        raise SetupError("Python cannot make a virtual environment (on Debian: apt-get install python3-venv)")


def make_command() -> None:
    """Write the command `punctual` into the environment.

    It is a short script that names this folder. An installed package could put the folder on the path of
    everything that runs in the environment, including training functions. `/bin/sh` starts it, since the path
    may contain spaces.
    """
    lines = [
        "#!/bin/sh",
        f'\'\'\'exec\' "{INTERPRETER}" -P "$0" "$@"',
        "' '''",
        "import sys",
        "",
        f"sys.path.insert(0, {str(PROJECT)!r})",
        "",
        "from punctual.cli import main",
        "",
        "sys.exit(main())",
        "",
    ]
    command = VIRTUAL_ENVIRONMENT / "bin" / "punctual"
    text = "\n".join(lines)
    if not command.exists() or command.read_text() != text:
        command.write_text(text)
        command.chmod(0o755)


def make_importable() -> None:
    """Make `import punctual` work in the environment from any folder.

    It links only the package that people import. Adding its parent folder would expose all packages of the
    platform.
    """
    for packages in VIRTUAL_ENVIRONMENT.glob("lib/python3*/site-packages"):
        link = packages / "punctual"
        if not (link.is_symlink() and os.readlink(link) == str(PROJECT / "punctual")):
            with contextlib.suppress(FileNotFoundError):
                link.unlink()
            link.symlink_to(PROJECT / "punctual")


def find_uv() -> str:
    """Return the path of uv: ours from an earlier run, else a new one by pip, else one installed on the
    machine."""
    own = TOOLS / "bin" / "uv"
    if own.exists():
        return str(own)
    if has_module("pip"):
        command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        if os.geteuid() == 0:
            command.append("--root-user-action=ignore")
        subprocess.run([*command, "--target", str(TOOLS), UV], check=True)
        return str(own)
    installed = shutil.which("uv")
    if installed:
        return installed
    if has_module("ensurepip"):
        bootstrap = TOOLS / "bootstrap"
        subprocess.run([sys.executable, "-m", "venv", str(bootstrap)], check=True)
        pip = [str(bootstrap / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, "--target", str(TOOLS), UV], check=True)
        shutil.rmtree(bootstrap)
        return str(own)
    raise SetupError(
        f"{sys.executable} has neither pip nor ensurepip (on Debian: apt-get install python3-pip)"
    )


def has_module(name: str) -> bool:
    asked = subprocess.run([sys.executable, "-c", "import " + name], stderr=subprocess.DEVNULL, check=False)
    return asked.returncode == 0


def home_is_writable() -> bool:
    home = Path(os.path.expanduser("~"))
    return home.is_dir() and os.access(str(home), os.W_OK)


def install_browser() -> None:
    """Install Chromium from Debian's packages for the browser tests, if run by root and apt-get exists.

    Without it, tests that need a browser skip, with a counted line (see tests/plugins/browser.py).
    """
    if any(shutil.which(name) for name in BROWSERS) or os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    say("installing Chromium from the distribution's packages for the browser tests")
    log = TOOLS / "browser.log"
    with log.open("wb") as output:
        for arguments in (
            ["update"],
            ["install", "-y", "--no-install-recommends", "chromium", "fonts-dejavu-core"],
        ):
            done = subprocess.run(
                ["apt-get", "-q", *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
            if done.returncode != 0 and arguments[0] == "install":
                say(f"Chromium cannot be installed here ({log})")


def say(text: str) -> None:
    """Print a line. If the reader is gone (`make run | head`), discard this and all further output."""
    try:
        print("  " + text, flush=True)
    except OSError:
        with open(os.devnull, "w", encoding="utf-8") as nobody:
            os.dup2(nobody.fileno(), sys.stdout.fileno())


if __name__ == "__main__":
    raise SystemExit(main())
