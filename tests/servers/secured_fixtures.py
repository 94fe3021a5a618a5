"""The secured servers, shared by a session. Mark their tests `real_kafka` and `real_minio`."""

from collections.abc import Iterator

import pytest

from .certificates import Authority
from .issuer import Issuer
from .kafka import find_kafka
from .minio import find_minio
from .missing import demand
from .postgres import find_postgres
from .secured import SecuredKafka, SecuredMinio, SecuredPostgres


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority that signs the certificates of the secured servers."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Another authority, which signed none of them."""
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


@pytest.fixture(scope="session")
def issuer() -> Iterator[Issuer]:
    with Issuer() as running:
        yield running


@pytest.fixture(scope="session")
def secured_postgres(authority: Authority) -> Iterator[SecuredPostgres]:
    """A Postgres with TLS and a user with a password."""
    demand("postgres", find_postgres)
    with SecuredPostgres(authority) as server:
        yield server


@pytest.fixture(scope="session")
def secured_kafka(authority: Authority, issuer: Issuer) -> Iterator[SecuredKafka]:
    """A Kafka with TLS and every way to log in."""
    demand("kafka", find_kafka)
    with SecuredKafka(authority, issuer) as server:
        yield server


@pytest.fixture(scope="session")
def secured_minio(authority: Authority, issuer: Issuer) -> Iterator[SecuredMinio]:
    """A MinIO with https, encryption, and roles by web identity."""
    demand("minio", find_minio)
    with SecuredMinio(authority, issuer) as server:
        yield server
