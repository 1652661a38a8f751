"""WSGI entry point of the agent API: a separate process, so that requests of people do not starve agents."""

import os

os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings_agents"

from django.core.wsgi import get_wsgi_application

from config.preloading import import_views

application = get_wsgi_application()
import_views()
