"""Access to pages, and the security headers of their responses."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import cast
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from projects.browser_security import HEADER, PAGE, policy_text
from projects.models import User

View = Callable[..., HttpResponseBase]
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def person(request: HttpRequest) -> User:
    """Return the logged-in user of a view that requires one."""
    return cast(User, request.user)


def stream_origin(request: HttpRequest) -> str:
    """Return scheme, host and port of the stream server as this browser reaches it, without a trailing slash.

    Cookies belong to a host name, so a page opened as `localhost` gets `localhost` even if the setting is
    127.0.0.1. Without a setting, the port is the one after the page's.
    """
    page = urlsplit(f"{request.scheme}://{request.get_host()}")
    if not settings.STREAM_URL:
        port = page.port or (443 if request.scheme == "https" else 80)
        return f"{request.scheme}://{_bracketed(page.hostname or 'localhost')}:{port + 1}"
    configured = urlsplit(settings.STREAM_URL)
    host = configured.hostname or ""
    if host in _LOOPBACK and page.hostname in _LOOPBACK:
        host = page.hostname or host
    port_text = f":{configured.port}" if configured.port else ""
    return f"{configured.scheme}://{_bracketed(host)}{port_text}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def secure(view: View) -> View:
    """Add the content security policy of pages that follow the stream server."""

    @wraps(view)
    def wrapped(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        response = view(request, *args, **kwargs)
        connect = f"{PAGE['connect-src']} {stream_origin(request)}"
        response[HEADER] = policy_text({**PAGE, "connect-src": connect})
        return response

    return wrapped


def page(view: View) -> View:
    """Make a view a page for logged-in people; others are sent to log in and come back."""
    shown = login_required(view)
    fetched = _refused_without_session(view)

    @wraps(view)
    def wrapped(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        # A script fetches fragments and cannot use a login page.
        return (fetched if "fragment" in request.GET else shown)(request, *args, **kwargs)

    return secure(never_cache(require_safe(wrapped)))


def data(view: View) -> View:
    """Make a view a data source of a page's script; callers without a session get a 401."""
    return secure(never_cache(require_safe(_refused_without_session(view))))


def _refused_without_session(view: View) -> View:
    @wraps(view)
    def wrapped(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        if not request.user.is_authenticated:
            return JsonResponse({"detail": "Your session has ended: log in again."}, status=401)
        return view(request, *args, **kwargs)

    return wrapped
