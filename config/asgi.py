"""ASGI entry point of the event streams (dashboard, agents' wake-ups, log following)."""

import os

os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings_streams"

from django.core.asgi import get_asgi_application

application = get_asgi_application()
