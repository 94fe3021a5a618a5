"""Postgres over TLS, with a separate password; errors are named, and are transient."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from inference_store.index.database import PostgresUnavailable, create_engine, is_transient
from inference_store.index.migration import MigrationBusy, upgrade
from inference_store.platform.settings import PostgresSettings
from tests.servers.certificates import Authority, Pair
from tests.servers.fixtures import migrate, unique
from tests.servers.secured import CERTIFIED_USER, PASSWORD, USER, SecuredPostgres
from tests.transactions import scalar

_ENCRYPTED = text("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")


@pytest.fixture
def database(secured_postgres: SecuredPostgres) -> str:
    """Create a database that the user `alice` owns; return its name."""
    return secured_postgres.create_users_database(unique())


def make_postgres_settings(
    server: SecuredPostgres, database: str, **changes: Any
) -> PostgresSettings:
    host = changes.pop("host", "localhost")
    settings = {"postgres_dsn": server.dsn_of_user(database, host), "postgres_password": PASSWORD}
    return PostgresSettings.model_validate(settings | changes)


async def is_encrypted(settings: PostgresSettings) -> bool:
    engine = create_engine(settings, application="test")
    try:
        return bool(await scalar(engine, _ENCRYPTED))
    finally:
        await engine.dispose()


async def connect_and_fail(settings: PostgresSettings) -> str:
    with pytest.raises(PostgresUnavailable) as error:
        await is_encrypted(settings)
    assert is_transient(error.value)
    await asyncio.sleep(0)  # the transport of asyncpg closes in the next turn of the loop
    return str(error.value)


async def test_connection_is_encrypted_and_a_checked_certificate_accepted(
    secured_postgres: SecuredPostgres, database: str, authority: Authority
) -> None:
    for mode in ("prefer", "require"):
        settings = make_postgres_settings(secured_postgres, database, postgres_tls=mode)
        assert await is_encrypted(settings), mode
    dsn = f"{secured_postgres.dsn_of_user(database)}?sslmode=require"
    dsn = dsn.replace(f"{USER}@", f"{USER}:{PASSWORD}@")
    assert await is_encrypted(PostgresSettings.model_validate({"postgres_dsn": dsn}))
    checked = {"postgres_tls": "verify-full", "postgres_ca_file": authority.ca_file}
    settings = make_postgres_settings(secured_postgres, database, **checked)
    assert await is_encrypted(settings)
    migrate(settings)


async def test_presents_a_certificate_and_reads_a_renewed_one(
    secured_postgres: SecuredPostgres, authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    secured_postgres.execute(f"DROP ROLE IF EXISTS {CERTIFIED_USER}")
    secured_postgres.execute(f"CREATE ROLE {CERTIFIED_USER} LOGIN")
    ours = Pair(tmp_path / "tls.crt", tmp_path / "tls.key")

    def write(authority: Authority) -> None:
        pair = authority.issue(CERTIFIED_USER)
        shutil.copyfile(pair.certificate, ours.certificate)
        shutil.copyfile(pair.key, ours.key)

    write(stranger)
    dsn = f"postgresql://{CERTIFIED_USER}@localhost:{secured_postgres.port}/postgres"
    files = {"postgres_certificate_file": ours.certificate, "postgres_key_file": ours.key}
    checked = {"postgres_tls": "verify-full", "postgres_ca_file": authority.ca_file}
    for how in (checked, {"postgres_tls": "require"}):
        settings = PostgresSettings.model_validate({"postgres_dsn": dsn, **how, **files})
        engine = create_engine(settings, application="test")
        with pytest.raises((PostgresUnavailable, DBAPIError)):
            await engine.connect()
        write(authority)
        assert await scalar(engine, "SELECT current_user") == CERTIFIED_USER
        await engine.dispose()
        write(stranger)


async def test_a_strange_certificate_is_named(
    secured_postgres: SecuredPostgres, database: str, stranger: Authority
) -> None:
    settings = make_postgres_settings(
        secured_postgres, database, postgres_tls="verify-full", postgres_ca_file=stranger.ca_file
    )
    assert "certificate verify failed" in await connect_and_fail(settings)
    # By default the authorities of the system are trusted, and ours is none of them.
    unnamed = make_postgres_settings(secured_postgres, database, postgres_tls="verify-full")
    assert "certificate verify failed" in await connect_and_fail(unnamed)
    with pytest.raises(MigrationBusy, match="certificate verify failed"):
        await asyncio.to_thread(upgrade, settings, wait_seconds=0.0)


async def test_the_name_is_checked(
    secured_postgres: SecuredPostgres, database: str, authority: Authority
) -> None:
    elsewhere = authority.issue("elsewhere", host="db.elsewhere")
    secured_postgres.present(elsewhere)
    secured_postgres.restart()
    try:
        checked = {"postgres_tls": "verify-full", "postgres_ca_file": authority.ca_file}
        assert "localhost" in await connect_and_fail(
            make_postgres_settings(secured_postgres, database, **checked)
        )
        assert await is_encrypted(
            make_postgres_settings(secured_postgres, database, postgres_tls="require")
        )
    finally:
        secured_postgres.present(authority.issue("postgres"))
        secured_postgres.restart()


async def test_refused_logins_are_transient(
    secured_postgres: SecuredPostgres, database: str
) -> None:
    settings = make_postgres_settings(secured_postgres, database, postgres_tls="disable")
    assert "no encryption" in await connect_and_fail(settings)
    settings = make_postgres_settings(secured_postgres, database, postgres_password="wrong")
    message = await connect_and_fail(settings)
    assert "password authentication failed" in message
    assert "localhost" in message
    assert "wrong" not in message
