"""Uploaded functions and their versions."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from punctual.client.bundles import pack
from punctual.client.models import FunctionVersion
from punctual.client.reading import read, unreadable
from punctual.client.requests import FunctionSource
from punctual.client.transport import Transport
from punctual.errors import InvalidInputError, NotFoundError


class Functions:
    """Upload, list and find functions."""

    def __init__(self, transport: Transport, project_name: Callable[[str | None], str]) -> None:
        self._transport = transport
        self._project_name = project_name

    def upload(
        self,
        function: FunctionSource,
        *,
        name: str | None = None,
        project: str | None = None,
        entry: str | None = None,
        requirements: str | os.PathLike[str] | None = None,
    ) -> FunctionVersion:
        """Upload a function's code. The same code under the same name always is the same version.

        Raises:
            BundleError: it cannot be packed. InvalidRequestError: the platform refuses the bundle; the
                message says why.
        """
        if isinstance(function, FunctionVersion):
            raise InvalidInputError("this function is uploaded already")
        bundle = pack(function, entry=entry, requirements=requirements)
        fields = {"project": self._project_name(project), "name": name or bundle.suggested_name}
        if bundle.entry:
            fields["entry"] = bundle.entry
        media_type = "application/zip" if bundle.filename.lower().endswith(".zip") else "text/x-python"
        response = self._transport.request(
            "POST", "functions/", data=fields, files={"bundle": (bundle.filename, bundle.content, media_type)}
        )
        return _read_version(response.json())

    def list(self, *, project: str | None = None, name: str | None = None) -> Sequence[FunctionVersion]:
        """Return the newest version of every visible function."""
        params = {key: value for key, value in {"project": project, "name": name}.items() if value}
        return [_read_version(item) for item in self._transport.pages("functions/", params)]

    def find(self, reference: str, *, project: str | None = None) -> FunctionVersion:
        """Return one function by name or `name@version`.

        Raises:
            NotFoundError: there is none.
        """
        name, _, number = reference.partition("@")
        found = [item for item in self.list(project=project, name=name) if item.name == name]
        if not found:
            raise NotFoundError(f"there is no function “{name}”", status=404, hint="see `punctual functions`")
        if not number:
            return found[0]
        for version in self.versions(found[0]):
            if str(version.version) == number:
                return version
        raise NotFoundError(
            f"“{name}” has no version {number}", status=404, hint=f"see `punctual functions {name}`"
        )

    def versions(self, function: FunctionVersion) -> Sequence[FunctionVersion]:
        """Return every version of a function, newest first."""
        path = f"functions/{quote(str(function.id), safe='')}/versions/"
        return [_read_version(item, function) for item in self._transport.pages(path)]

    def show(self, version: FunctionVersion) -> FunctionVersion:
        """Return the version's current state, with the output of its requirements' installer."""
        return _read_version(self._transport.request("GET", _path(version)).json())

    def build(self, version: FunctionVersion) -> FunctionVersion:
        """Install its requirements again, after a failed or cancelled installation.

        Raises:
            ConflictError: they are installed, being installed or queued; the message says which.
        """
        return _read_version(self._transport.request("POST", f"{_path(version)}environment/build/").json())

    def cancel_build(self, version: FunctionVersion) -> FunctionVersion:
        """Cancel the installation of its requirements; jobs that wait for it fail.

        Raises:
            ConflictError: none is queued or in progress, or other projects need it.
        """
        return _read_version(self._transport.request("POST", f"{_path(version)}environment/cancel/").json())


def _path(version: FunctionVersion) -> str:
    return f"functions/{quote(str(version.id), safe='')}/versions/{version.version}/"


def _read_version(document: Any, function: FunctionVersion | None = None) -> FunctionVersion:
    """Parse a version from the API, whose number is in `version` or `number`."""
    if not isinstance(document, dict):
        raise unreadable("a function")
    named = {"id": function.id, "name": function.name, "project": function.project} if function else {}
    number = document.get("version", document.get("number"))
    if isinstance(number, dict):
        document = {**number, **{key: value for key, value in document.items() if key != "version"}}
        number = number.get("number", number.get("version"))
    return read(FunctionVersion, {**document, **named, "version": number})
