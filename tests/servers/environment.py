"""The environment of a real service process, for the servers that it uses."""

import os

from .kafka import Kafka
from .minio import S3

PREFIX = "INFERENCE_STORE_"

# Each of these variables names a running server for the tests.
TEST_POSTGRES_DSN = "INFERENCE_STORE_TEST_POSTGRES_DSN"
TEST_KAFKA = "INFERENCE_STORE_TEST_KAFKA"
TEST_S3 = "INFERENCE_STORE_TEST_S3"
# A database of a Citus coordinator: the tests run there, in distributed databases.
# "own": on three nodes of this run, with the Citus that is installed with Postgres.
TEST_CITUS = "INFERENCE_STORE_TEST_CITUS_DSN"
OWN_CITUS = "own"


def service_environment(
    dsn: str, kafka: Kafka, s3: S3, bucket: str, **changes: str
) -> dict[str, str]:
    """Return this process's environment, with the settings replaced by those of the servers.

    `changes` add to them and replace them; their names are without the prefix.
    """
    settings = {
        "POSTGRES_DSN": dsn,
        "KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "S3_ENDPOINT": s3.endpoint,
        "S3_ACCESS_KEY": s3.access_key,
        "S3_SECRET_KEY": s3.secret_key,
        "S3_REGION": s3.region,
        "S3_BUCKET": bucket,
        "AUTH": "off",
        "INGESTER_ADMIN_PORT": "0",
        "API_ADMIN_PORT": "0",
        "RETENTION_ADMIN_PORT": "0",
        "PROXY_ADMIN_PORT": "0",
        # beside other tests a query is slow, and still has to complete
        "QUERY_TIMEOUT_SECONDS": "300",
        **changes,
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return inherited | {PREFIX + name: value for name, value in settings.items()}
