"""Authentication by ``Authorization: Bearer <token>``."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from projects.models import ApiToken, User
from projects.selectors import token_bearer

#: ``last_used_at`` is for people who clean up: a write per minute says as much as a write per request.
USE_NOTED_EVERY = timedelta(minutes=1)


class TokenAuthentication(BaseAuthentication):
    """Finds the token by its digest; unknown, expired and revoked ones are refused alike."""

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        scheme, _, token = get_authorization_header(request).decode("latin-1").partition(" ")
        if not scheme:
            return None
        if scheme.lower() != "bearer" or not token.strip():
            raise AuthenticationFailed("Send the token as `Authorization: Bearer <token>`.")
        found = token_bearer(token.strip())
        if found is None:
            raise AuthenticationFailed("The token is unknown, expired or revoked.")
        now = timezone.now()
        if found.last_used_at is None or now - found.last_used_at > USE_NOTED_EVERY:
            ApiToken.objects.filter(pk=found.pk).update(last_used_at=now)
        return found.user, found

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class TokenAuthenticationScheme(OpenApiAuthenticationExtension):
    """How the OpenAPI document describes the above."""

    target_class = TokenAuthentication
    name = "token"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "A token from `POST /api/v1/login/` or `POST /api/v1/tokens/`.",
        }
