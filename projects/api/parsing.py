"""Reading request bodies within limits."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import IO, Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.core.files.uploadhandler import MemoryFileUploadHandler
from rest_framework.exceptions import ParseError
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import JSONParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

#: Set on a request whose upload was larger than is taken; see :class:`LimitedUploadHandler`.
TOO_LARGE_KEY = "punctual.upload_too_large"
#: Lists and objects within each other. No request needs ten; what stores and shows them must not recurse
#: without end.
MAXIMUM_DEPTH = 64
#: Names, commas and brackets in one body: an empty list takes two bytes of a body and fifty of memory.
MAXIMUM_MARKS = 500_000
_MARKS = re.compile(r'"(?:[^"\\]++|\\.)*+"|[\[\]{},]', re.DOTALL)


class MalformedJson(ValueError):
    """A body that is no JSON that is taken; the message says why, and where that is known."""


def read_json(content: bytes) -> Any:
    """What a body says, if PostgreSQL can hold it: no NUL, no half surrogates, no infinities.

    Raises:
        MalformedJson: as :func:`parse_json`, or for what cannot be stored.
    """
    data = parse_json(content, _refuse_constant)
    try:
        _check(data)
    except ValueError as error:
        raise MalformedJson(str(error)) from error
    return data


def parse_json(
    content: bytes,
    parse_constant: Callable[[str], Any] | None = None,
    parse_int: Callable[[str], Any] | None = None,
) -> Any:
    """What a body says; constants and whole numbers by functions, as ``json.loads`` has them. Its depth and
    size are checked on the text, before anything is built of it.

    Raises:
        MalformedJson: with a message for the caller.
    """
    try:
        text = content.decode("utf-8-sig")
        _check_shape(text)
        return json.loads(text, parse_constant=parse_constant, parse_int=parse_int)
    except MalformedJson:
        raise
    except ValueError as error:
        raise MalformedJson(str(error)) from error


def _check_shape(text: str) -> None:
    depth = 0
    for number, mark in enumerate(_MARKS.finditer(text), start=1):
        if number > MAXIMUM_MARKS:
            raise MalformedJson(f"it has more than {MAXIMUM_MARKS} names, commas and brackets")
        character = text[mark.start()]
        if character in "[{":
            depth += 1
            if depth > MAXIMUM_DEPTH:
                raise MalformedJson(f"it is nested more than {MAXIMUM_DEPTH} levels deep")
        elif character in "]}":
            depth -= 1


class LimitedJSONParser(JSONParser):
    """JSON of bounded size that PostgreSQL can hold; see :func:`read_json`.

    Django's own limit guards ``request.body`` alone, which the framework's parser bypasses.
    """

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        content = stream.read(limit + 1)
        if len(content) > limit:
            raise RequestDataTooBig(f"The body is larger than {limit} bytes.")
        try:
            return read_json(content)
        except MalformedJson as error:
            raise ParseError(f"The body is not valid JSON: {error}.") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _check(value: Any) -> None:
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError("strings must not contain NUL characters")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("strings must not contain lone surrogates") from None
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("numbers must be finite")
    elif isinstance(value, list):
        for inner in value:
            _check(inner)
    elif isinstance(value, dict):
        for key, inner in value.items():
            _check(key)
            _check(inner)


class LimitedUploadHandler(MemoryFileUploadHandler):
    """Keeps at most ``MAXIMUM_BUNDLE_BYTES`` of an upload in memory, and nothing on disk.

    What is beyond is read and thrown away, so that the client gets its answer instead of a broken connection;
    an absurd length is refused before the first byte.
    """

    #: Declared lengths from here on are not even drained.
    drained_bytes = 512 * 1024 * 1024

    def handle_raw_input(
        self,
        input_data: Any,
        META: dict[str, Any],
        content_length: int,
        boundary: Any,
        encoding: str | None = None,
    ) -> None:
        if content_length > self.drained_bytes:
            raise RequestDataTooBig(f"An upload has at most {settings.MAXIMUM_BUNDLE_BYTES} bytes.")
        self.activated = True
        self.received = 0

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        self.received += len(raw_data)
        if self.received <= settings.MAXIMUM_BUNDLE_BYTES:
            self.file.write(raw_data)
        elif self.request is not None:
            self.request.META[TOO_LARGE_KEY] = True
            self.file.seek(0)
            self.file.truncate()

    def file_complete(self, file_size: int) -> Any:
        if self.received > settings.MAXIMUM_BUNDLE_BYTES:
            return None
        return super().file_complete(file_size)


class OneRepresentation(BaseContentNegotiation):
    """Every address has one representation, whatever ``Accept`` says (downloads are bytes, the rest is
    JSON)."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        from rest_framework.negotiation import DefaultContentNegotiation

        return DefaultContentNegotiation().select_parser(request, parsers)

    def select_renderer(
        self, request: Request, renderers: Any, format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        return renderers[0], renderers[0].media_type
