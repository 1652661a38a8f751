"""Authentication by ``Authorization: Bearer <token>``."""

from __future__ import annotations

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from projects.models import ApiToken, User
from projects.selectors import token_bearer
from projects.services.tokens import token_note_use


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
        token_note_use(token=found)
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
