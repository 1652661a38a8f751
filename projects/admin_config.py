"""Django's admin with a site of our own."""

from __future__ import annotations

from django.contrib.admin.apps import AdminConfig


class OperatorsAdminConfig(AdminConfig):
    default_site = "projects.admin_site.OperatorsSite"
