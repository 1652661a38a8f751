"""Static files from installed packages: plotly.js, which is not copied into the repository."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import plotly
from django.contrib.staticfiles.finders import BaseFinder
from django.core.checks import CheckMessage, Error
from django.core.files.storage import FileSystemStorage, Storage

PLOTLY_PATH = "plotly/plotly.min.js"


class PlotlyFinder(BaseFinder):
    """Finds plotly.min.js of the installed plotly package, so that page and figures have the same version."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.folder = Path(plotly.__file__).parent / "package_data"
        self.storage = FileSystemStorage(location=self.folder)
        # Files of storages with a prefix are collected below it.
        self.storage.prefix = "plotly"  # type: ignore[attr-defined]

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        if (self.folder / "plotly.min.js").is_file():
            return []
        return [Error("the plotly package holds no plotly.min.js", id="dashboard.E001")]

    def find(self, path: str, find_all: bool = False, **kwargs: Any) -> Any:
        if path != PLOTLY_PATH:
            return []
        found = str(self.folder / "plotly.min.js")
        return [found] if find_all else found

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterator[tuple[str, Storage]]:
        yield "plotly.min.js", self.storage
