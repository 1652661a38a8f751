"""Who gets a page, and the headers under which a browser may show it."""

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
    """The logged-in user of a view that demands one."""
    return cast(User, request.user)


def stream_origin(request: HttpRequest) -> str:
    """Scheme, host and port of the stream server as this browser reaches it, without a slash at the end.

    Cookies belong to a host name: a page that was opened as `localhost` is given `localhost` also when the
    setting says 127.0.0.1. Without a setting it is the port after the page's own.
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
    """Adds the content security policy of pages that follow the stream server."""

    @wraps(view)
    def wrapped(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        response = view(request, *args, **kwargs)
        connect = f"{PAGE['connect-src']} {stream_origin(request)}"
        response[HEADER] = policy_text({**PAGE, "connect-src": connect})
        return response

    return wrapped


def page(view: View) -> View:
    """A page for people who are logged in; others are sent to log in and come back."""
    shown = login_required(view)
    fetched = _refused_without_session(view)

    @wraps(view)
    def wrapped(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        # A fragment is fetched by a script, to which a login page would mean nothing.
        return (fetched if "fragment" in request.GET else shown)(request, *args, **kwargs)

    return secure(never_cache(require_safe(wrapped)))


def data(view: View) -> View:
    """What a page's script fetches: a caller without a session gets a 401 that the script understands."""
    return secure(never_cache(require_safe(_refused_without_session(view))))


def _refused_without_session(view: View) -> View:
    @wraps(view)
    def wrapped(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        if not request.user.is_authenticated:
            return JsonResponse({"detail": "Your session has ended: log in again."}, status=401)
        return view(request, *args, **kwargs)

    return wrapped
