"""Postgres over TLS, with the password apart; what is wrong is said, and is worth a wait."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import text

from inference_store.index.database import PostgresAway, engine_of, is_trouble
from inference_store.index.migration import MigrationBusy, upgrade
from inference_store.platform.settings import PostgresSettings
from tests.servers.certificates import Authority
from tests.servers.fixtures import migrate, unique
from tests.servers.secured import PASSWORD, USER, SecuredPostgres

_ENCRYPTED = text("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")


@pytest.fixture
def database(secured_postgres: SecuredPostgres) -> str:
    """The name of a database that the user `alice` owns."""
    secured_postgres.execute(
        f"DO $$ BEGIN CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}';"
        " EXCEPTION WHEN duplicate_object THEN NULL; END $$"
    )
    name = unique()
    secured_postgres.execute(f'CREATE DATABASE "{name}" OWNER {USER} TEMPLATE template0')
    return name


def settings_of(server: SecuredPostgres, database: str, **changes: Any) -> PostgresSettings:
    host = changes.pop("host", "localhost")
    given = {"postgres_dsn": server.dsn_of_user(database, host), "postgres_password": PASSWORD}
    return PostgresSettings.model_validate(given | changes)


async def encrypted(settings: PostgresSettings) -> bool:
    engine = engine_of(settings, application="test")
    try:
        async with engine.connect() as connection:
            return bool(await connection.scalar(_ENCRYPTED))
    finally:
        await engine.dispose()


async def refused(settings: PostgresSettings) -> str:
    with pytest.raises(PostgresAway) as said:
        await encrypted(settings)
    assert is_trouble(said.value)
    await asyncio.sleep(0)  # a turn of the loop: asyncpg's transport closes in the next one
    return str(said.value)


@pytest.mark.parametrize("mode", ["prefer", "require"])
async def test_it_is_encrypted(secured_postgres: SecuredPostgres, database: str, mode: str) -> None:
    assert await encrypted(settings_of(secured_postgres, database, postgres_tls=mode))


async def test_a_checked_certificate(
    secured_postgres: SecuredPostgres, database: str, authority: Authority
) -> None:
    checked = {"postgres_tls": "verify-full", "postgres_ca_file": authority.ca_file}
    settings = settings_of(secured_postgres, database, **checked)
    assert await encrypted(settings)
    migrate(settings)


async def test_a_strange_certificate_is_named(
    secured_postgres: SecuredPostgres, database: str, stranger: Authority
) -> None:
    settings = settings_of(
        secured_postgres, database, postgres_tls="verify-full", postgres_ca_file=stranger.ca_file
    )
    assert "certificate verify failed" in await refused(settings)
    with pytest.raises(MigrationBusy, match="certificate verify failed"):
        await asyncio.to_thread(upgrade, settings, wait_seconds=0.0)


async def test_without_an_authority_the_systems_count(
    secured_postgres: SecuredPostgres, database: str
) -> None:
    settings = settings_of(secured_postgres, database, postgres_tls="verify-full")
    assert "certificate verify failed" in await refused(settings)


async def test_the_name_is_checked(
    secured_postgres: SecuredPostgres, database: str, authority: Authority
) -> None:
    elsewhere = authority.issue("elsewhere", host="db.elsewhere")
    secured_postgres.present(elsewhere)
    secured_postgres.restart()
    try:
        checked = {"postgres_tls": "verify-full", "postgres_ca_file": authority.ca_file}
        assert "localhost" in await refused(settings_of(secured_postgres, database, **checked))
        assert await encrypted(settings_of(secured_postgres, database, postgres_tls="require"))
    finally:
        secured_postgres.present(authority.issue("postgres"))
        secured_postgres.restart()


async def test_an_unencrypted_login_is_refused_by_the_server(
    secured_postgres: SecuredPostgres, database: str
) -> None:
    settings = settings_of(secured_postgres, database, postgres_tls="disable")
    assert "no encryption" in await refused(settings)


async def test_a_wrong_password_is_worth_a_wait(
    secured_postgres: SecuredPostgres, database: str
) -> None:
    settings = settings_of(secured_postgres, database, postgres_password="wrong")
    said = await refused(settings)
    assert "password authentication failed" in said
    assert "localhost" in said
    assert "wrong" not in said


async def test_the_dsn_may_say_it_all(secured_postgres: SecuredPostgres, database: str) -> None:
    dsn = f"{secured_postgres.dsn_of_user(database)}?sslmode=require"
    dsn = dsn.replace(f"{USER}@", f"{USER}:{PASSWORD}@")
    assert await encrypted(PostgresSettings.model_validate({"postgres_dsn": dsn}))
