"""Fields that take the JSON type they name and no other: `"5"` is not 5, `1` is not true."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive
from rest_framework import serializers

from punctual.names import name_problem, normalised


class Text(serializers.CharField):
    """A string."""

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


class Locator(Text):
    """An address or a path, as it was written, that looks like what it is (:mod:`punctual.names`)."""

    line_breaks = False

    def to_internal_value(self, data: Any) -> str:
        text = self.spelled(super().to_internal_value(data))
        problem = name_problem(text, line_breaks=self.line_breaks)
        if problem is not None:
            raise serializers.ValidationError(
                f"Letters, digits and symbols that can be seen only: {problem}."
            )
        return text

    def spelled(self, text: str) -> str:
        """The text as it is stored."""
        return text


class Name(Locator):
    """A name that people see, in one spelling."""

    def spelled(self, text: str) -> str:
        return normalised(text)


class Words(Name):
    """A text that people see beside names; it may have several lines."""

    line_breaks = True


class Integer(serializers.IntegerField):
    """A whole number."""

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int):
            self.fail("invalid")
        return super().to_internal_value(data)


class Number(serializers.FloatField):
    """A finite number."""

    def to_internal_value(self, data: Any) -> float:
        if isinstance(data, bool) or not isinstance(data, int | float):
            self.fail("invalid")
        try:
            return super().to_internal_value(data)
        except OverflowError:
            self.fail("invalid")


class Truth(serializers.BooleanField):
    """true or false."""

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid", input=data)
        return data


class Moment(serializers.DateTimeField):
    """An RFC 3339 time with its offset: a time without one would mean different moments to different
    people."""

    def to_internal_value(self, value: Any) -> datetime:
        if isinstance(value, str):
            value = value.upper()  # RFC 3339 knows `t` and `z` too
        try:
            parsed = parse_datetime(value) if isinstance(value, str) else None
        except ValueError:
            parsed = None
        if parsed is None:
            raise serializers.ValidationError("Write an RFC 3339 time such as 2030-01-31T14:00:00Z.")
        if is_naive(parsed):
            raise serializers.ValidationError("The time needs an offset, such as Z for UTC.")
        return super().to_internal_value(value)
