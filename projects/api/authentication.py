"""Authentication by ``Authorization: Bearer <token>``."""

from __future__ import annotations

from django.utils import timezone
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from projects.models import ApiToken, User, token_digest


class TokenAuthentication(BaseAuthentication):
    """Finds the token by its digest; expired and revoked ones are refused alike."""

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        scheme, _, token = get_authorization_header(request).decode("latin-1").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return None
        found = ApiToken.objects.select_related("user").filter(digest=token_digest(token.strip())).first()
        if found is None or not found.usable(timezone.now()) or not found.user.is_active:
            raise AuthenticationFailed("The token is unknown, expired or revoked.")
        return found.user, found

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"
