"""The platform's requests to the HTTP server of a real serving worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deployments.models import Replica
from deployments.services import predicting
from deployments.services.predicting import FunctionFailed, predict, replica_health
from deployments.services.tokens import deployment_token_issue
from projects.errors import InvalidRequest, Unavailable
from projects.models import Membership
from tests.deployments.conftest import Agents, Deploy, settle
from tests.serving.test_http import TOKEN, Served

pytestmark = pytest.mark.django_db


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    predicting._client().close()
    predicting._client.cache_clear()
    made.close()


def test_a_serving_worker_answers_the_platform_and_tokens(
    agents: Agents, deploy: Deploy, member: Membership, served: Served
) -> None:
    made = deploy()
    settle(*agents)
    Replica.objects.update(port=served.address[1], secret=TOKEN)
    assert predict(made, [1, 2]) == {"outputs": [2, 4], "generation": 1, "server": "serving-1"}
    with pytest.raises(InvalidRequest, match="whole number"):
        predict(made, ["one"])
    with pytest.raises(FunctionFailed):
        predict(made, ["defect"])
    assert replica_health(made) == [{"server": "serving-1", "state": "serving"}]
    _, token = deployment_token_issue(deployment=made, actor=member.user, name="shop")
    settle(*agents)
    (key,) = agents[0].serving()
    served.digests[:] = agents[0].workers[key, 1, 0].entry["start"]["tokens"]
    served.client.headers["Authorization"] = f"Bearer {token}"
    assert served.predict(3).json() == {"outputs": [6], "generation": 3}
    assert predict(made, [4])["outputs"] == [8]
    served.digests.clear()
    assert served.predict(3).status_code == 401
    with pytest.raises(Unavailable):
        predict(made, [4])
