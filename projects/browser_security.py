"""Headers that bind browsers: on every answer of every process, errors and downloads included."""

from __future__ import annotations

from collections.abc import Mapping

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.deprecation import MiddlewareMixin

HEADER = "Content-Security-Policy"

#: Our own scripts and styles only, nothing inline that could run. Plotly, the admin and the API's page write
#: style attributes and sheets of their own, hence 'unsafe-inline' for styles alone.
PAGE: Mapping[str, str] = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data:",
    "font-src": "'self'",
    "connect-src": "'self'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
    "base-uri": "'none'",
}
#: Data and downloads run nothing and show nothing, also when somebody opens them as a page.
NOT_A_PAGE: Mapping[str, str] = {
    "default-src": "'none'",
    "frame-ancestors": "'none'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "sandbox": "",
}


def policy_text(policy: Mapping[str, str]) -> str:
    """The policy as its header spells it."""
    return "; ".join(f"{name} {value}".strip() for name, value in policy.items())


class BrowserSecurityMiddleware(MiddlewareMixin):
    """Outermost of all, so that answers to errors carry the headers too. A view's own policy stays."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        is_page = response.headers.get("Content-Type", "").startswith("text/html")
        response.headers.setdefault(HEADER, policy_text(PAGE if is_page else NOT_A_PAGE))
        response.headers.setdefault("Referrer-Policy", "same-origin")
        # An origin has a port: what listens on another port of this host may not embed what a session sees.
        response.headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
        return response
