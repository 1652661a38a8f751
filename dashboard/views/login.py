"""Logging in and out with a session. Guessing passwords is slowed down per address and per name."""

from __future__ import annotations

import hashlib
import logging
from typing import Any

from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView as DjangoLoginView
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import method_decorator
from redis.exceptions import RedisError

from dashboard.views.access import secure

log = logging.getLogger(__name__)

#: Failures within the window after which the next attempt waits: of one name from one address, and of either
#: alone. The latter are generous, for behind a proxy everybody may come from one address.
MAXIMUM_ATTEMPTS = {"both": 20, "address": 200, "name": 200}
WINDOW_SECONDS = 300


@method_decorator(secure, name="dispatch")
class LoginView(DjangoLoginView):
    """Django's own login with this dashboard's page. After too many failures it answers 429 for a while."""

    template_name = "dashboard/login.html"
    redirect_authenticated_user = True

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if any(_failures(key) >= MAXIMUM_ATTEMPTS[kind] for kind, key in _keys(request).items()):
            form = self.get_form()
            response = self.render_to_response(self.get_context_data(form=form, too_many_attempts=True))
            response.status_code = 429
            response["Retry-After"] = str(WINDOW_SECONDS)
            return response
        return super().post(request, *args, **kwargs)

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        for key in _keys(self.request).values():
            _count_failure(key)
        return super().form_invalid(form)


def _keys(request: HttpRequest) -> dict[str, str]:
    address = request.META.get("REMOTE_ADDR", "")
    # A digest: names may hold characters that a cache refuses in keys.
    name = hashlib.sha256(request.POST.get("username", "").casefold().encode()).hexdigest()
    return {
        "both": f"login-failures:{address}:{name}",
        "address": f"login-failures:address:{address}",
        "name": f"login-failures:name:{name}",
    }


def _failures(key: str) -> int:
    try:
        return int(cache.get(key, 0))
    except RedisError:
        # The cache may be away at any time; nobody is locked out for that.
        log.warning("login failures cannot be counted: the cache is away")
        return 0


def _count_failure(key: str) -> None:
    try:
        cache.add(key, 0, WINDOW_SECONDS)
        cache.incr(key)
    except (RedisError, ValueError):
        # ValueError: the key expired in between.
        log.warning("a login failure was not counted: the cache is away")
