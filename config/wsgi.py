"""WSGI entry point of the REST API and the dashboard."""

import os

from django.core.wsgi import get_wsgi_application

from config.preloading import import_views

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
application = get_wsgi_application()
import_views()
