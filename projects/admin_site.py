"""Who may enter the admin: operators, and whom Django's own column `is_staff` lets in."""

from __future__ import annotations

from django.contrib.admin import AdminSite
from django.http import HttpRequest

from projects.models import User


class OperatorsSite(AdminSite):
    """The admin of the platform."""

    def has_permission(self, request: HttpRequest) -> bool:
        """Whether the person may enter; what they may change there is `User.has_perm`."""
        user = request.user
        return super().has_permission(request) or (isinstance(user, User) and user.operates())
