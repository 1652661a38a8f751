"""Django settings. Values that differ between installations come from the environment.

docs/configuration.md lists the variables and their defaults.
"""

from __future__ import annotations

from pathlib import Path

import environ

from config.celery_settings import *  # noqa: F403
from config.logging_settings import LOGGING  # noqa: F401
from projects.api.path_patterns import OPENAPI_PATHS

BASE_DIR = Path(__file__).resolve().parent.parent
env = environ.Env()

DATA_DIR = Path(env.str("PUNCTUAL_DATA", str(BASE_DIR / "data")))
DEBUG = env.bool("DEBUG", False)
SECRET_KEY = env.str("SECRET_KEY", "")
if not SECRET_KEY:
    # Commands that do not serve requests (checks, the OpenAPI document, simulation) need no real key.
    SECRET_KEY = "not-for-serving" if not env.bool("PUNCTUAL_SERVING", False) else ""
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])

INSTALLED_APPS = [
    "projects.admin_config.OperatorsAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "rest_framework",
    "django_filters",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "projects",
    "cluster",
    "scheduling",
    "lending",
    "deployments",
    "simulation",
    "research",
    "dashboard",
    "workers.tasks",
    "faults",
]

MIDDLEWARE = [
    "projects.browser_security.BrowserSecurityMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
ASGI_APPLICATION = "config.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

DATABASES = {"default": env.db_url("DATABASE_URL", "postgres://punctual@localhost/punctual")}
DATABASES["default"]["ENGINE"] = "projects.postgresql"
DATABASES["default"]["CONN_MAX_AGE"] = env.int("DATABASE_CONN_MAX_AGE", 60)
DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
DATABASES["default"]["TEST"] = {"NAME": env.str("TEST_DATABASE_NAME", "test_punctual")}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = env.str("REDIS_URL", "redis://localhost:6379/0")

AUTH_USER_MODEL = "projects.User"
AUTHENTICATION_BACKENDS = ["projects.login_attempts.ThrottledBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "/login/"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/login/"

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False

STATIC_URL = "/static/"
STATIC_ROOT = env.path("STATIC_ROOT", default=DATA_DIR / "static")()
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
WHITENOISE_USE_FINDERS = True
STATICFILES_FINDERS = [
    "django.contrib.staticfiles.finders.AppDirectoriesFinder",
    "dashboard.finders.PlotlyFinder",
]

# HTTPS switches these on together; plain HTTP on a local machine works without configuration.
_https = env.bool("HTTPS", False)
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _https
SECURE_SSL_REDIRECT = _https
SECURE_HSTS_SECONDS = 31_536_000 if _https else 0
SECURE_PROXY_SSL_HEADER = (
    ("HTTP_X_FORWARDED_PROTO", "https") if env.bool("TRUST_FORWARDED_PROTO", False) else None
)
# Number of proxies whose X-Forwarded-For is trusted (projects/client_address.py); 0: the peer is the caller.
TRUSTED_PROXIES = env.int("TRUSTED_PROXIES", 0)
SESSION_ENGINE = "projects.sessions"
# A cookie belongs to a host name regardless of port, so a job that serves on another port of this host
# receives it too. Under HTTPS the prefix binds it to this host and to TLS. Under plain HTTP, Strict also
# keeps links from other sites from sending it.
if _https:
    SESSION_COOKIE_NAME, CSRF_COOKIE_NAME = "__Host-sessionid", "__Host-csrftoken"
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax" if _https else "Strict"
# Pages pass the token to their scripts themselves.
CSRF_COOKIE_HTTPONLY = True
SECURE_CONTENT_TYPE_NOSNIFF = True
X_FRAME_OPTIONS = "DENY"

DATA_UPLOAD_MAX_MEMORY_SIZE = env.int("MAX_REQUEST_BYTES", 5 * 1024 * 1024)
FILE_UPLOAD_HANDLERS = ["projects.api.parsing.LimitedUploadHandler"]

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "projects.api.authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["projects.api.parsing.LimitedJSONParser"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "projects.api.parsing.OneRepresentation",
    # Only the OpenAPI document describes request formats.
    "DEFAULT_METADATA_CLASS": None,
    "DEFAULT_SCHEMA_CLASS": "projects.api.schema.PunctualAutoSchema",
    "DEFAULT_PAGINATION_CLASS": "projects.api.pagination.NewestFirstCursorPagination",
    "PAGE_SIZE": 50,
    "EXCEPTION_HANDLER": "projects.api.problems.problem_exception_handler",
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
    "DEFAULT_THROTTLE_RATES": {
        "submissions": env.str("THROTTLE_SUBMISSIONS", "600/min"),
        "what_if": env.str("THROTTLE_SUBMISSIONS", "600/min"),
        "login": "30/min",
        "invitations": "60/hour",
    },
}

SPECTACULAR_SETTINGS = {
    "TITLE": "Punctual",
    "DESCRIPTION": (
        "Submit a training function with a deadline; Punctual says whether it can promise it, and keeps the "
        "promise. Errors are RFC 9457 problem documents; lists are paged by cursor; times are RFC 3339 in "
        "UTC."
    ),
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "SWAGGER_UI_SETTINGS": {"deepLinking": True, "persistAuthorization": False, "validatorUrl": None},
    "COMPONENT_SPLIT_REQUEST": True,
    "COMPONENT_SPLIT_PATCH": False,
    "PATH_CONVERTER_OVERRIDES": OPENAPI_PATHS,
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "projects.api.schema.refuse_unknown_fields",
    ],
    "ENUM_NAME_OVERRIDES": {
        "JobState": "scheduling.choices.JobState",
        "ServiceClass": "scheduling.choices.ServiceClass",
        "PromiseOutcome": "scheduling.choices.PromiseOutcome",
        "Role": "projects.models.Role",
        "KindEnum": "scheduling.models.Decision.Kind",
        "WorkState": "cluster.choices.WorkState",
        "StudySource": "simulation.choices.StudySource",
        "TraceKind": "simulation.choices.TraceKind",
        "NewcomersRule": "cluster.choices.NewcomersRule",
        "ServerState": "cluster.choices.ServerState",
        "LendingState": "cluster.choices.LendingState",
        "Whitelist": "cluster.choices.Whitelist",
        "LoanState": "lending.choices.LoanState",
        "ReclaimState": "lending.choices.ReclaimState",
        "OrderSource": "lending.choices.OrderSource",
        "DeploymentState": "deployments.choices.DeploymentState",
        "RolloutState": "deployments.choices.RolloutState",
        "ReplicaState": "deployments.choices.ReplicaState",
        "EnvironmentState": "scheduling.choices.EnvironmentState",
        "StateSource": "scheduling.choices.StateSource",
        "ProtectionState": "scheduling.choices.ProtectionState",
        "RecoveryKind": "scheduling.choices.RecoveryKind",
        "RecoveryOutcome": "scheduling.choices.RecoveryOutcome",
        "RecoveryPhase": "scheduling.models.Recovery.PHASES",
    },
}

CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": REDIS_URL,
        "OPTIONS": {"socket_connect_timeout": 1, "socket_timeout": 2},
    },
}

# --- Punctual's own -----------------------------------------------------------------------------------------
#: Location of checkpoints, artifacts and environments (any fsspec URL).
CHECKPOINT_URL = env.str("CHECKPOINT_URL", f"file://{DATA_DIR}/checkpoints")
#: The stream server's address for browsers and agents; empty: same host, next port.
STREAM_URL = env.str("STREAM_URL", "")
#: Limits on open streams of one process: in total, and per person or agent.
STREAM_CONNECTIONS = env.int("STREAM_CONNECTIONS", 1000)
STREAM_CONNECTIONS_PER_CALLER = env.int("STREAM_CONNECTIONS_PER_CALLER", 40)
AGENT_URL = env.str("AGENT_URL", "")
#: Values of the cluster row when it is first created; afterwards operators change the row.
CLUSTER_DEFAULTS = {
    "policy": env.str("POLICY", "punctual"),
    "slot_seconds": env.float("SLOT_SECONDS", 5.0),
    "suspect_seconds": env.float("SUSPECT_SECONDS", 10.0),
    "fence_seconds": env.float("FENCE_SECONDS", 60.0),
    "fence_margin_seconds": env.float("FENCE_MARGIN_SECONDS", 2.0),
    "report_seconds": env.float("REPORT_SECONDS", 1.0),
    "reserve_servers": env.int("RESERVE_SERVERS", 0),
    "standby_servers": env.int("STANDBY_SERVERS", 0),
    "accepted_fallbacks_a_month": env.float("ACCEPTED_FALLBACKS_A_MONTH", 0.0),
    "failures_per_rack_day": env.float("FAILURES_PER_RACK_DAY", 0.0),
    "failures_per_power_domain_day": env.float("FAILURES_PER_POWER_DOMAIN_DAY", 0.0),
    "newcomers": env.str("NEWCOMERS", "open"),
    "ageing_weight": env.float("AGEING_WEIGHT", 0.5),
    "offer_hold_seconds": env.float("OFFER_HOLD_SECONDS", 120.0),
    "profile_seconds_per_level": env.float("PROFILE_SECONDS_PER_LEVEL", 2.0),
    "profile_maximum_seconds": env.float("PROFILE_MAXIMUM_SECONDS", 60.0),
}
MAXIMUM_BUNDLE_BYTES = env.int("MAXIMUM_BUNDLE_BYTES", 20 * 1024 * 1024)
MAXIMUM_UNPACKED_BUNDLE_BYTES = env.int("MAXIMUM_UNPACKED_BUNDLE_BYTES", 100 * 1024 * 1024)
#: Limit on the address space of the process that reads an uploaded bundle.
BUNDLE_READING_BYTES = env.int("BUNDLE_READING_BYTES", 512 * 1024 * 1024)
SNAPSHOT_RETENTION_DAYS = env.int("SNAPSHOT_RETENTION_DAYS", 14)
#: Limits of simulations: runs per study, jobs and GPUs per run, unfinished runs in total, and seconds per
#: run.
SIMULATION_LIMITS = {
    "runs": env.int("SIMULATION_MAXIMUM_RUNS", 24),
    "jobs": env.int("SIMULATION_MAXIMUM_JOBS", 50_000),
    "gpus": env.int("SIMULATION_MAXIMUM_GPUS", 131_072),
    "waiting_runs": env.int("SIMULATION_MAXIMUM_WAITING", 200),
    "run_seconds": SIMULATION_RUN_SECONDS,  # noqa: F405
}
