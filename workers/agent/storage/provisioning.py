"""Provisioning of a worker's box: its function, its requirements, its data, and its initial state."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from workers.agent.machine.configuration import Configuration
from workers.agent.storage import data_sources
from workers.agent.storage.durable_store import fetch
from workers.agent.storage.link_copies import Carry, at_once
from workers.agent.storage.node_cache import NodeCache, link_tree
from workers.agent.storage.unpacking import (
    ENVIRONMENT_LIMIT_BYTES,
    UnpackingError,
    unpack_bundle,
    unpack_environment,
)
from workers.agent.talking.control_plane import (
    BUNDLE_LIMIT_BYTES,
    ControlPlane,
    CredentialRevoked,
    Fenced,
    RequestRefused,
    Unreachable,
)

logger = logging.getLogger(__name__)

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_NAME = re.compile(r"[\w][\w.-]{0,99}\Z", re.ASCII)


class ProvisioningError(Exception):
    """The worker can never start; `reason` is one of those of a `failed` event."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class NotYet(Exception):
    """Something is unavailable at the moment; retry later."""


class Provisioner:
    """Fills boxes, in the calling thread."""

    def __init__(
        self,
        configuration: Configuration,
        control_plane: ControlPlane,
        cache: NodeCache,
        *,
        copy: bool,
        carry: Carry = at_once,
    ) -> None:
        """`carry` waits for emulated links while a state is fetched."""
        self._carry = carry
        self._configuration = configuration
        self._control_plane = control_plane
        self._cache = cache
        self._copy = copy

    def data_paths(self, specification: Mapping[str, Any]) -> dict[str, Path]:
        """Return the declared data that is a path on this server, by name. Raises ProvisioningError."""
        try:
            return {
                _checked_name(item): data_sources.allowed_path(item["path"], self._configuration)
                for item in specification.get("data") or []
                if item.get("path")
            }
        except data_sources.DataError as error:
            raise ProvisioningError("data_unavailable", str(error)) from error

    def fill(self, box: Path, specification: Mapping[str, Any], *, show_paths: bool) -> None:
        """Bring function, requirements and data into the box.

        `show_paths`: link to declared paths, for workers without a sandbox that shows them. Raises
        ProvisioningError and NotYet.
        """
        function = specification["function"]
        bundle = self._cache.get(
            "bundles", str(function["digest"]), lambda path: self._fetch_bundle(function["digest"], path)
        )
        try:
            unpacked = self._cache.get(
                "functions",
                f"{function['digest']} {function['entry']}",
                lambda path: unpack_bundle(bundle, function["entry"], path),
            )
        except UnpackingError as error:
            raise ProvisioningError("function_load_error", str(error)) from error
        link_tree(unpacked, box / "bundle", copy=self._copy)
        requirements = function.get("requirements_digest")
        if requirements:
            overlay = self._cache.get(
                "overlays", str(requirements), lambda path: self._fetch_overlay(requirements, path)
            )
            link_tree(overlay, box / "overlay", copy=self._copy)
        for item in specification.get("data") or []:
            if item.get("url"):
                fetched = self._cache.get(
                    "data", str(item["url"]), partial(self._fetch_data, str(item["url"]))
                )
                link_tree(fetched, box / "data" / _checked_name(item), copy=self._copy)
        for item in specification.get("files") or []:
            self._fill_file(box, item)
        if show_paths:
            for name, path in self.data_paths(specification).items():
                link = box / "data" / name
                if not link.is_symlink():
                    link.symlink_to(path)

    def _fill_file(self, box: Path, item: Mapping[str, Any]) -> None:
        """Bring a file from an earlier job into the box. Raises ProvisioningError and NotYet."""
        target = box / "in" / _checked_name(item)
        uri, size_bytes, sha256 = str(item["uri"]), int(item["bytes"]), str(item["sha256"])
        try:
            stored = self._cache.get(
                "states", f"{uri} {sha256}", partial(_fetch_checked, uri, size_bytes, sha256, self._carry)
            )
        except Exception as error:
            raise NotYet(f"{uri}: {error}") from error
        link_tree(stored, target, copy=self._copy)

    def fetch_shards(self, box: Path, start: Mapping[str, Any], rank: int) -> dict[str, str]:
        """Bring the shards that a rank reads into the box; return their paths there by id.

        Raises NotYet if no holder has a shard unaltered.
        """
        files = {}
        for shard in start["shards"]:
            if shard["reader"] != rank:
                continue
            number = int(shard["id"])
            path = f"in/state-{int(start['generation'])}-{int(start['iteration'])}-{number}.pt"
            link_tree(self._fetch_shard(shard), box / path, copy=self._copy)
            files[str(number)] = path
        return files

    def _fetch_shard(self, shard: Mapping[str, Any]) -> Path:
        """Fetch a shard from the nearest holder that has it complete and unaltered."""
        problems = []
        for holder in shard["holders"]:
            uri = str(holder["uri"])
            try:
                return self._cache.get(
                    "states",
                    f"{uri} {shard['sha256']}",
                    partial(_fetch_checked, uri, int(shard["bytes"]), shard["sha256"], self._carry),
                )
            except Exception as error:  # noqa: BLE001 - each storage library has its own
                logger.warning("shard %s cannot be had from %s: %s", shard["id"], uri, error)
                problems.append(f"{uri}: {error}")
        raise NotYet("; ".join(problems) or f"nobody holds shard {shard['id']}")

    def _fetch_bundle(self, digest: str, target: Path) -> None:
        if not _DIGEST.match(digest):
            raise ProvisioningError("function_load_error", f"{digest!r} is not a SHA-256 digest")
        self._download(f"functions/{digest}", target, BUNDLE_LIMIT_BYTES, "function_load_error")
        with target.open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
        if actual != digest:
            raise NotYet(f"the bundle that came for {digest} has the digest {actual}")

    def _fetch_overlay(self, digest: str, target: Path) -> None:
        if not _NAME.match(digest):
            raise ProvisioningError("environment_failed", f"{digest!r} is no digest of requirements")
        archive = target.with_name(target.name + ".tar.gz")
        try:
            self._download(f"environments/{digest}", archive, ENVIRONMENT_LIMIT_BYTES, "environment_failed")
            unpack_environment(archive, target)
        except UnpackingError as error:
            raise ProvisioningError("environment_failed", str(error)) from error
        finally:
            archive.unlink(missing_ok=True)

    def _fetch_data(self, url: str, target: Path) -> None:
        try:
            data_sources.fetch_url(url, target, self._configuration)
        except data_sources.DataError as error:
            raise ProvisioningError("data_unavailable", str(error)) from error
        except data_sources.DataNotNow as error:
            raise NotYet(str(error)) from error

    def _download(self, path: str, target: Path, limit_bytes: int, reason: str) -> None:
        try:
            size = 0
            with self._control_plane.download(path) as pieces, target.open("xb") as file:
                for piece in pieces:
                    size += len(piece)
                    if size > limit_bytes:
                        raise ProvisioningError(reason, f"{path} is larger than {limit_bytes} bytes")
                    file.write(piece)
        except RequestRefused as error:
            # An environment that is still being built gives 404 for a while.
            if error.status == 404 and reason == "environment_failed":
                raise NotYet(str(error)) from error
            raise ProvisioningError(reason, str(error)) from error
        except (Unreachable, Fenced, CredentialRevoked) as error:
            raise NotYet(str(error)) from error


def _fetch_checked(uri: str, size_bytes: int, sha256: str | None, carry: Carry, target: Path) -> None:
    """Copy a shard. Raises ValueError if its digest differs, and the errors of storage libraries."""
    actual = fetch(uri, target, size_bytes, carry)
    # States of earlier versions have no digest.
    if sha256 is not None and actual != sha256:
        raise ValueError(f"it has the digest {actual}, not {sha256}")


def _checked_name(item: Mapping[str, Any]) -> str:
    name = str(item.get("name"))
    if not _NAME.match(name):
        raise ProvisioningError("data_unavailable", f"{name!r} is no name for declared data")
    return name
