"""Databases of the peers, beside ours in the server of the data set: filled once, then kept."""

from collections.abc import Awaitable, Callable

from tests.servers.postgres import Postgres

from benchmarks.query.population import VERSION


async def fill_database(
    server: Postgres, name: str, what: str, fill: Callable[[str], Awaitable[None]]
) -> str:
    """Fill the database with `fill` unless it is there; return its address.

    `what`: the version that is needed; a database of another version is filled again. Its comment
    is written last, so a database without one was not loaded to the end.
    """
    stamp = f"population {VERSION}, {what}"
    comment = (
        f"SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = '{name}'"
    )
    if server.ask(comment) != stamp:
        print(f"filling {name}: {stamp} …", flush=True)
        server.drop_database(name)
        await fill(server.create_database(name))
        server.execute(f"COMMENT ON DATABASE {name} IS '{stamp}'", "CHECKPOINT")
    return server.dsn_of(name)
