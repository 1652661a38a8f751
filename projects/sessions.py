"""Django's database sessions, which can also be found by a digest of their key.

The key is the cookie: anyone who knows it is logged in. References to a session elsewhere (a stream ticket, a
note that the session has ended) use the digest, which cannot be used to log in.
"""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth import HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore as DatabaseStore
from django.utils import timezone
from django.utils.crypto import constant_time_compare

from projects.models import BrowserSession, User, token_digest


class SessionStore(DatabaseStore):
    """Django's sessions in the database, each with its digest."""

    @classmethod
    def get_model_class(cls) -> type[BrowserSession]:
        return BrowserSession

    def create_model_instance(self, data: dict[str, Any]) -> BrowserSession:
        made = cast(BrowserSession, super().create_model_instance(data))
        made.key_digest = token_digest(made.session_key)
        return made


def user_of_session(key_digest: str) -> User | None:
    """Return the user of this session; None once it has ended, or the user's password was changed."""
    session = BrowserSession.objects.filter(key_digest=key_digest, expire_date__gt=timezone.now()).first()
    if session is None:
        return None
    content = session.get_decoded()
    user = User.objects.filter(pk=content.get(SESSION_KEY) or 0, is_active=True).first()
    if user is None or not constant_time_compare(
        content.get(HASH_SESSION_KEY, ""), user.get_session_auth_hash()
    ):
        return None
    return user
