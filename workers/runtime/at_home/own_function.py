"""A function on this machine, read as the platform would read it: its files, its class, and its data."""

from __future__ import annotations

from pathlib import Path

from punctual.bundles.archive import BundleLimits, read_files
from punctual.bundles.layout import read_function
from punctual.errors import PunctualError

#: The platform's default limits.
_LIMITS = BundleLimits(unpacked_bytes=100 * 1024 * 1024)


def read_source(source: Path, entry: str | None = None) -> tuple[dict[str, bytes], str]:
    """Return the files of a `.py`, a zip or a folder by path, as workers get them, and `module:Class`.

    Raises:
        ValueError: the source is invalid; the message says why in one sentence.
        OSError: the file cannot be read.
    """
    files, found, _ = read_function_source(source, entry)
    return files, found


def read_function_source(source: Path, entry: str | None = None) -> tuple[dict[str, bytes], str, str]:
    """Return files and `module:Class`, as `read_source`, and why the class cannot be deployed ("": it can).

    Raises:
        ValueError: the source is invalid; the message says why in one sentence.
        OSError: the file cannot be read.
    """
    if source.is_dir():
        # Leaves out the same files as the command line. Imported here, as workers lack httpx.
        from punctual.client.bundles import pack

        try:
            packed = pack(source)
        except PunctualError as error:
            raise ValueError(str(error)) from error
        content, filename = packed.content, packed.filename
    else:
        content, filename = source.read_bytes(), source.name
    files = read_files(content, filename, _LIMITS)
    root, function = read_function(files, entry)
    return (
        {path.removeprefix(root): data for path, data in files.items()},
        function.entry,
        function.predict_problem,
    )


def write_files(files: dict[str, bytes], target: Path) -> Path:
    """Write the files below `target` and return it."""
    for path, content in files.items():
        place = target / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    return target


def find_data(source: Path) -> dict[str, Path]:
    """Return the files for `data_path(name)`: in `data` of the current folder, then beside the script."""
    folders = (Path("data"), (source if source.is_dir() else source.parent) / "data")
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            found.setdefault(path.name, path.resolve())
    return found
