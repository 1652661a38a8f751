"""Login with a session. The authentication backend throttles password guesses."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth.views import LoginView as DjangoLoginView
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.decorators import method_decorator
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache

from dashboard.views.access import secure
from projects.login_attempts import WINDOW_SECONDS, TooManyAttempts


@method_decorator(secure, name="dispatch")
class LoginView(DjangoLoginView):
    """Django's own login with this dashboard's page. After too many failures it answers 429 for a while."""

    template_name = "dashboard/login.html"
    redirect_authenticated_user = True

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return super().post(request, *args, **kwargs)
        except TooManyAttempts:
            # An unbound form: rendering a bound one would check the password again.
            form = self.get_form_class()(request)
            response = self.render_to_response(self.get_context_data(form=form, too_many_attempts=True))
            response.status_code = 429
            response["Retry-After"] = str(WINDOW_SECONDS)
            return response


@never_cache
def admin_login(request: HttpRequest) -> HttpResponse:
    """Redirect to the dashboard's login page, since the admin has none of its own. Logged-in users without
    access get a 403."""
    user = request.user
    if user.is_authenticated and not admin.site.has_permission(request):
        raise PermissionDenied("The admin is for operators.")
    wanted = request.GET.get("next", "")
    safe = url_has_allowed_host_and_scheme(wanted, {request.get_host()}, request.is_secure())
    target = wanted if safe else "/admin/"
    return redirect(target) if user.is_authenticated else redirect_to_login(target)
