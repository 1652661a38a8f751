"""Django's admin with our own site."""

from __future__ import annotations

from django.contrib.admin.apps import AdminConfig


class OperatorsAdminConfig(AdminConfig):
    default_site = "projects.admin_site.OperatorsSite"
