"""Settings of the agent API process: the same platform with other URLs, without sessions or pages."""

from config.public_addresses import with_host_of
from config.settings import *  # noqa: F403
from config.settings import AGENT_URL
from config.settings import ALLOWED_HOSTS as HOSTS_OF_PAGES

# Agents connect to AGENT_URL, which may have its own host name.
ALLOWED_HOSTS = with_host_of(AGENT_URL, HOSTS_OF_PAGES)
ROOT_URLCONF = "config.urls_agents"
MIDDLEWARE = [
    "projects.browser_security.BrowserSecurityMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.common.CommonMiddleware",
]
# A report may carry a log chunk per worker.
DATA_UPLOAD_MAX_MEMORY_SIZE = 32 * 1024 * 1024
