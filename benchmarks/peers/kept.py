"""Databases of the peers, beside ours in the server of the data set: filled once, then kept."""

from collections.abc import Awaitable, Callable

from tests.servers.postgres import Postgres

from benchmarks.query.population import VERSION


async def kept(
    server: Postgres, name: str, what: str, fill: Callable[[str], Awaitable[None]]
) -> str:
    """Its address, with what `fill` put there. `what`: of which version; another is filled anew.

    Its comment is written last: a database without it is one whose loading was ended.
    """
    stamp = f"population {VERSION}, {what}"
    said = f"SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = '{name}'"
    if server.ask(said) != stamp:
        print(f"filling {name}: {stamp} …", flush=True)
        server.drop_database(name)
        await fill(server.create_database(name))
        server.execute(f"COMMENT ON DATABASE {name} IS '{stamp}'", "CHECKPOINT")
    return server.dsn_of(name)
