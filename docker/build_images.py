"""`python docker/build_images.py`: the images without a container engine and without a registry, for tests
and for sites that have neither.

Debian's `buildah` builds the same Dockerfile that `docker build` takes. Its base image is made by
`mmdebstrap` from Debian's packages. Where packages come from (index, wheel folders, certificates) is taken
from pip's configuration of this machine and stays out of the images.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from launch.pip_configuration import local_places, uv_environment  # noqa: E402 (after the path that it lies on)

TARGETS = ("control-plane", "environment-builder", "agent")
BASE = "localhost/punctual/debian-python:bookworm"
#: As few packages as Python needs; `python` is the command's name in the official image.
PACKAGES = "ca-certificates,python3,python3-venv,python3-pip,python-is-python3"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"


def main() -> int:
    """Build the requested images; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "targets", nargs="*", default=list(TARGETS), metavar="TARGET", help=", ".join(TARGETS)
    )
    parser.add_argument("--base", help="take this image instead of making one from Debian's packages")
    parser.add_argument(
        "--torch-backend", default="", help="PyTorch's build from its own index (cpu, auto, ...)"
    )
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.targets) - set(TARGETS))
    missing = [command for command in ("buildah", "mmdebstrap") if shutil.which(command) is None]
    if unknown:
        print(f"error: no such image: {', '.join(unknown)}; there are {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    if missing:
        print(
            f"error: {' and '.join(missing)} missing; on Debian: apt-get install buildah mmdebstrap",
            file=sys.stderr,
        )
        return 2
    try:
        base = arguments.base or _debian_with_python()
        for target in arguments.targets:
            _build(target, base, arguments.torch_backend)
    except subprocess.CalledProcessError as error:
        print(f"error: this step failed: {shlex.join(error.cmd)}", file=sys.stderr)
        return 1
    return 0


def _debian_with_python() -> str:
    """The base image, made once."""
    if (
        subprocess.run(
            ["buildah", "inspect", "--type", "image", BASE], capture_output=True, check=False
        ).returncode
        == 0
    ):
        return BASE
    with tempfile.TemporaryDirectory() as folder:
        archive = f"{folder}/root.tar"
        _run("mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", "bookworm", archive)
        container = _output("buildah", "from", "scratch")
        _run("buildah", "add", "--quiet", container, archive, "/")
        # As in the official image, packages may be installed beside the system's: there is nothing else in
        # it.
        _run("buildah", "run", container, "--", "sh", "-c", "rm -f /usr/lib/python3*/EXTERNALLY-MANAGED")
        _run("buildah", "commit", "--quiet", "--rm", container, BASE)
    return BASE


def _build(target: str, base: str, torch_backend: str) -> None:
    """One target of the Dockerfile, as ``punctual/TARGET``."""
    variables = {
        name: value for name, value in os.environ.items() if name.startswith("PIP_")
    } | uv_environment()
    command = ["buildah", "bud", "--layers", "--target", target, "--tag", f"punctual/{target}"]
    command += ["--build-arg", f"BASE={base}", "--file", str(PROJECT / "docker" / "Dockerfile")]
    command += ["--build-arg", f"UV_TORCH_BACKEND={torch_backend}"]
    for folder in sorted({CERTIFICATES, *local_places(variables)}):
        command += ["--volume", f"{folder}:{folder}:ro"]
    with tempfile.NamedTemporaryFile("w", prefix="installer-") as secret:
        secret.write("".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items()))
        secret.flush()
        _run(*command, "--secret", f"id=installer,src={secret.name}", str(PROJECT))


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    os.environ.setdefault("STORAGE_DRIVER", "vfs")  # works without a kernel's overlay file system
    os.environ.setdefault(
        "BUILDAH_ISOLATION", "chroot"
    )  # works inside a container or a small virtual machine
    sys.exit(main())
