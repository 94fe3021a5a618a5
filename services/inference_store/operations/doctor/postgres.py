"""Checks Postgres, and whether its tables fit this version."""

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from inference_store.index.database import cause_of
from inference_store.index.schema import schema_of

from .finding import Finding, Subject, failed, ok, warning

_OLDEST, _NEWEST = 15, 18
_SERVER = text(
    "SELECT current_setting('server_version_num')::int / 10000, pg_is_in_recovery(),"
    " current_setting('default_transaction_read_only') = 'on',"
    " current_setting('max_connections')::int"
)
_SERVICES = 3


async def check_postgres(subject: Subject) -> list[Finding]:
    """Check that it answers, lets us in, is of a supported version, and accepts writes."""
    try:
        async with subject.engine.connect() as connection:
            version, standby, read_only, most = (await connection.execute(_SERVER)).one()
    except (DBAPIError, OSError) as error:
        return [_describe_failure(cause_of(error))]
    findings = [_check_version(version)]
    if standby or read_only:
        seen = "it is a standby" if standby else "its transactions are read-only"
        findings.append(
            failed(seen, "INFERENCE_STORE_POSTGRES_DSN must name the server that takes writes.")
        )
    return findings + _check_connections(subject, most)


def _describe_failure(cause: BaseException) -> Finding:
    """Describe why it is unavailable.

    A wrong password has its own remedy; the error names the user, never the password.
    """
    message = f"{cause}"[:300]
    if "password" in message or "authentication" in message or "no pg_hba.conf entry" in message:
        return failed(
            f"Postgres does not let us in: {message}",
            "Check the user and password in INFERENCE_STORE_POSTGRES_DSN or"
            " INFERENCE_STORE_POSTGRES_PASSWORD, and pg_hba.conf.",
        )
    if "does not exist" in message:
        remedy = "Create the database and the role that INFERENCE_STORE_POSTGRES_DSN names."
        return failed(message, remedy)
    return failed(
        f"Postgres does not answer: {message}",
        "Is it running, and is INFERENCE_STORE_POSTGRES_DSN its address as seen from here?",
    )


def _check_version(version: int) -> Finding:
    seen = f"Postgres {version}"
    if version < _OLDEST:
        return failed(seen, f"Upgrade it to {_OLDEST} or newer.")
    if version > _NEWEST:
        return warning(seen, f"Not tried yet: versions {_OLDEST} to {_NEWEST} are.")
    return ok(seen)


def _check_connections(subject: Subject, most: int) -> list[Finding]:
    connections = subject.settings.postgres_pool_size * _SERVICES
    if connections < most:
        return []
    return [
        warning(
            f"one process of each service may open {connections} connections, and Postgres takes"
            f" {most}",
            "Raise max_connections, or lower INFERENCE_STORE_POSTGRES_POOL_SIZE.",
        )
    ]


async def check_migrations(subject: Subject) -> list[Finding]:
    """Check that the tables have the newest revision of this version."""
    async with subject.engine.connect() as connection:
        schema = await schema_of(connection)
    if schema.ahead:
        remedy = "Finish the upgrade: run this version's successor everywhere."
        return [warning(str(schema), remedy)]
    if schema.behind:
        return [failed(str(schema), "Run `inference-store migrate` of this version.")]
    return [ok(f"revision {schema.revision}")]
