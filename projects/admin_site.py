"""Access to the admin: operators, and users with Django's column `is_staff`."""

from __future__ import annotations

from django.contrib.admin import AdminSite
from django.http import HttpRequest

from projects.models import User


class OperatorsSite(AdminSite):
    """The admin of the platform."""

    def has_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may enter the admin; `User.has_perm` decides what they may change there."""
        user = request.user
        return super().has_permission(request) or (isinstance(user, User) and user.operates())
