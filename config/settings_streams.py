"""Settings of the stream process. It reads no cookies: pages bring a ticket (streams/tickets.py). It keeps no
database connection between requests, since they would accumulate under ASGI."""

from config.public_addresses import with_host_of
from config.settings import *  # noqa: F403
from config.settings import ALLOWED_HOSTS as HOSTS_OF_PAGES
from config.settings import DATABASES, STREAM_URL

ALLOWED_HOSTS = with_host_of(STREAM_URL, HOSTS_OF_PAGES)
ROOT_URLCONF = "config.urls_streams"
DATABASES["default"]["CONN_MAX_AGE"] = 0
MIDDLEWARE = [
    "projects.browser_security.BrowserSecurityMiddleware",
    "django.middleware.security.SecurityMiddleware",
]
