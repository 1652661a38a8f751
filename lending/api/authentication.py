"""Authentication of inference schedulers: a credential of their own that opens their inference cluster and
nothing else."""

from __future__ import annotations

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from lending.models import InferenceCluster
from lending.selectors.inference_clusters import scheduler_bearer
from projects.models import User

#: How a scheduler's credential begins; a person's token begins otherwise.
CREDENTIAL_PREFIX = "ps_"


class InferenceSchedulerAuthentication(BaseAuthentication):
    """Finds the inference cluster by its scheduler's credential: ``request.auth``. The user is the cluster's
    own account."""

    def authenticate(self, request: Request) -> tuple[User, InferenceCluster] | None:
        scheme, _, credential = get_authorization_header(request).decode("latin-1").partition(" ")
        if scheme.lower() != "bearer" or not credential.strip().startswith(CREDENTIAL_PREFIX):
            return None
        found = scheduler_bearer(credential.strip())
        if found is None:
            raise AuthenticationFailed("The credential is unknown or was replaced.")
        return found.account, found

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class InferenceSchedulerScheme(OpenApiAuthenticationExtension):
    """How the OpenAPI document describes the above."""

    target_class = InferenceSchedulerAuthentication
    name = "inferenceScheduler"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "A credential from `POST /api/v1/inference-clusters/{name}/credential/`.",
        }
