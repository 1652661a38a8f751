"""What all views of the API share: throttles per method, idempotent requests, unknown fields."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar, cast

from django.db import transaction
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.generics import GenericAPIView
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle

from projects.access import require_scope
from projects.api.problems import problem_response
from projects.api.throttling import Throttle
from projects.errors import NotAllowed
from projects.models import ApiToken, IdempotencyRecord, Scope, User
from projects.services.idempotency import (
    idempotency_amend,
    idempotency_claim,
    idempotency_finish,
    idempotency_held,
    idempotency_release,
)
from punctual.protocol.problems import MEDIA_TYPE

#: Answers that say "not now": the same request may succeed later, so they are not remembered.
NOT_REMEMBERED = (409, 429, 503)
#: In ``token_scopes``: whatever the token's scopes are.
ANY_TOKEN = None
#: For views that none but operators use.
OPERATORS_ALONE = dict.fromkeys(("GET", "HEAD", "POST", "PATCH", "DELETE"), Scope.OPERATE)
_READING = {"GET": Scope.READ, "HEAD": Scope.READ, "OPTIONS": Scope.READ}
_KEY = re.compile(r"[\x21-\x7e]{1,200}")
_Serializer = TypeVar("_Serializer", bound=serializers.BaseSerializer)


class StrictSerializer(serializers.Serializer):
    """A request body. Unknown fields are rejected, so that a mistyped name does not go unnoticed."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            unknown = sorted(str(name) for name in set(data) - set(self.fields))
            if unknown:
                known = ", ".join(name for name, field in self.fields.items() if not field.read_only)
                raise ValidationError({name: [f"Unknown field. Known: {known}."] for name in unknown[:20]})
        return super().to_internal_value(data)


class ApiView(GenericAPIView):
    """Base of all views. ``throttle_scopes`` names the rate that applies to each method."""

    throttle_scopes: ClassVar[Mapping[str, str]] = {}
    #: The scope that each method asks of a token (:data:`ANY_TOKEN`: none). Reading asks for ``read`` by
    #: default; a method that changes something and is not named here is refused to every token.
    token_scopes: ClassVar[Mapping[str, Scope | None]] = {}
    #: False where an answer holds a secret that must not be stored.
    remembers_answers: ClassVar[bool] = True
    filter_backends: Any = ()
    _record: IdempotencyRecord | None = None

    def get_throttles(self) -> list[BaseThrottle]:
        scope = self.throttle_scopes.get(self.request.method or "")
        if scope is None:
            return []
        self.throttle_scope = scope
        return [Throttle()]

    def check_permissions(self, request: Request) -> None:
        """Also: a token opens what its scopes name. Sessions and inference schedulers have no scopes."""
        super().check_permissions(request)
        method = request.method or ""
        if isinstance(request.auth, ApiToken) and hasattr(self, method.lower()):
            if method not in (scopes := self.scopes_by_method()):
                raise NotAllowed("This cannot be done with a token.")
            scope = scopes[method]
            if scope is not ANY_TOKEN:
                require_scope(self.user, scope)

    @classmethod
    def scopes_by_method(cls) -> Mapping[str, Scope | None]:
        """What each method asks of a token."""
        return {**_READING, **cls.token_scopes}

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        answer = super().finalize_response(request, response, *args, **kwargs)
        answer.headers.setdefault("Cache-Control", "private, no-store")
        return answer

    @property
    def user(self) -> User:
        """Return the caller; views with other permissions than the default do not use this."""
        return cast(User, self.request.user)

    def read(self, serializer_class: type[_Serializer], **options: Any) -> dict[str, Any]:
        """The validated body."""
        serializer = serializer_class(
            data=self.request.data, context=self.get_serializer_context(), **options
        )
        serializer.is_valid(raise_exception=True)
        return cast(dict[str, Any], serializer.validated_data)

    def page(self, rows: Any, serializer_class: type[serializers.BaseSerializer]) -> Response:
        """One page of rows."""
        found = self.paginate_queryset(rows)
        data = serializer_class(found, many=True, context=self.get_serializer_context()).data
        return self.get_paginated_response(data)

    # --- Idempotency-Key ------------------------------------------------------------------------------------

    def idempotently(self, action: Callable[[], Response]) -> Response:
        """Run ``action``; with an ``Idempotency-Key`` at most once, giving its first answer again afterwards.

        The action's writes and its remembered answer commit together.
        """
        key = self.request.headers.get("Idempotency-Key")
        if key is None:
            return action()
        if not _KEY.fullmatch(key):
            raise ValidationError(
                {"Idempotency-Key": ["1 to 200 visible ASCII characters, for example a UUID."]}
            )
        record = idempotency_claim(user=self.user, key=key, request_digest=self._request_digest())
        if record.finished_at is not None:
            return _replay(record)
        with idempotency_held(record):
            try:
                with transaction.atomic():
                    response = action()
                    answer = _plain(response.data)
                    idempotency_finish(
                        record=record, status_code=response.status_code, body=answer, headers={}
                    )
            except Exception as error:
                self._remember_error(record, error)
                raise
        self._record = record
        return response

    def amend_answer(self, response: Response) -> None:
        """Remember a later answer to the same request instead."""
        if self._record is not None:
            idempotency_amend(record=self._record, body=_plain(response.data))

    def _remember_error(self, record: IdempotencyRecord, error: Exception) -> None:
        answer = problem_response(error)
        if answer is None or answer.status_code in NOT_REMEMBERED or answer.status_code >= 500:
            idempotency_release(record=record)
        else:
            idempotency_finish(
                record=record, status_code=answer.status_code, body=_plain(answer.data), headers={}
            )

    def _request_digest(self) -> str:
        """Binds a key to method, address, content and the token's projects; not to a multipart boundary,
        which varies."""
        request = self.request
        token = self.user.acting_token
        limits = "" if token is None or token.project_ids is None else f" for {sorted(token.project_ids)}"
        digest = hashlib.sha256(f"{request.method} {request.path}{limits}\n".encode())
        files = getattr(request, "FILES", None) or {}
        data = request.data
        plain = (
            {name: data[name] for name in data if name not in files} if isinstance(data, Mapping) else data
        )
        digest.update(json.dumps(plain, sort_keys=True, default=str).encode())
        for name in sorted(files):
            upload = files[name]
            digest.update(f"\n{name}\n{upload.name}\n".encode())
            for chunk in upload.chunks():
                digest.update(chunk)
            upload.seek(0)
        return digest.hexdigest()


def _plain(data: Any) -> Any:
    return json.loads(JSONRenderer().render(data)) if data is not None else None


def _replay(record: IdempotencyRecord) -> Response:
    status = record.status_code or 200
    return Response(
        record.body,
        status=status,
        headers={"Idempotency-Replayed": "true"},
        content_type=MEDIA_TYPE if status >= 400 else None,
    )
