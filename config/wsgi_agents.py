"""WSGI entry point of the agent API: a process of its own, so that nothing a person does starves agents."""

import os

os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings_agents"

from django.core.wsgi import get_wsgi_application

from config.preloading import import_views

application = get_wsgi_application()
import_views()
