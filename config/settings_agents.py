"""Settings of the agent API process: the same platform behind other URLs, without sessions or pages."""

from config.settings import *  # noqa: F403

ROOT_URLCONF = "config.urls_agents"
MIDDLEWARE = [
    "projects.browser_security.BrowserSecurityMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.common.CommonMiddleware",
]
# A report may carry a log chunk per worker.
DATA_UPLOAD_MAX_MEMORY_SIZE = 32 * 1024 * 1024
