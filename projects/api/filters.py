"""Query parameters of lists, validated: a misspelt filter is an error, not everything."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request

from punctual.names import normalised

#: Understood by the pagination, not by the filters.
PAGING = {"cursor", "page_size"}


def read_filters(request: Request, serializer_class: type[serializers.Serializer]) -> dict[str, Any]:
    """The validated filters of a list; fields that are lists may be repeated.

    Raises:
        ValidationError: unknown or unusable filters, by name.
    """
    declared = serializer_class().fields
    given = {
        # Names are stored in one spelling; requests may use another.
        name: [*map(normalised, values)]
        if isinstance(declared.get(name), serializers.ListField)
        else normalised(values[-1])
        for name, values in request.query_params.lists()
        if name not in PAGING
    }
    serializer = serializer_class(data=given)
    serializer.is_valid(raise_exception=True)
    return dict(serializer.validated_data)
