"""The servers of the tests are real and private."""

from __future__ import annotations

import os

import pytest
import redis
from django.db import connection


@pytest.mark.django_db
def test_the_database_is_a_private_postgresql_with_btree_gist():
    with connection.cursor() as cursor:
        cursor.execute("SHOW listen_addresses")
        assert cursor.fetchone() == ("",)
        cursor.execute("SELECT count(*) FROM pg_available_extensions WHERE name = 'btree_gist'")
        assert cursor.fetchone() == (1,)


def test_the_broker_is_private_and_never_drops_messages():
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("port") == {"port": "0"}
