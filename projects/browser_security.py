"""Security headers for browsers on every response of every process, including errors and downloads."""

from __future__ import annotations

from collections.abc import Mapping

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.deprecation import MiddlewareMixin

HEADER = "Content-Security-Policy"

#: Only our own scripts and styles, no inline scripts. Plotly, the admin and the API page write inline style
#: attributes and sheets, hence 'unsafe-inline' for styles only.
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
#: Data and downloads must not run or show anything when opened as a page.
NOT_A_PAGE: Mapping[str, str] = {
    "default-src": "'none'",
    "frame-ancestors": "'none'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "sandbox": "",
}


def policy_text(policy: Mapping[str, str]) -> str:
    """Return the policy as the value of its header."""
    return "; ".join(f"{name} {value}".strip() for name, value in policy.items())


class BrowserSecurityMiddleware(MiddlewareMixin):
    """Outermost middleware, so that error responses carry the headers too. A view's own policy stays."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        is_page = response.headers.get("Content-Type", "").startswith("text/html")
        response.headers.setdefault(HEADER, policy_text(PAGE if is_page else NOT_A_PAGE))
        response.headers.setdefault("Referrer-Policy", "same-origin")
        # An origin includes the port: servers on other ports of this host must not embed what a session sees.
        response.headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
        return response
