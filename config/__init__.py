"""Settings, URLs and entry points of the Django project."""

from config.celery import app as celery_app

__all__ = ["celery_app"]
