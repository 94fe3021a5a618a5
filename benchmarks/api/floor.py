"""The floor: a bare Starlette route that sends one prepared statement by asyncpg and dumps its rows
with orjson. `python -m benchmarks.api.floor DSN PORT` serves it, for one model and without access.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Final
from uuid import UUID

import asyncpg
import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_COLUMNS: Final = "SELECT i.*, l.name FROM inference i LEFT JOIN label l ON l.label = i.top_label"
_PREDICTIONS: Final = """
    (SELECT json_agg(row_to_json(p)) FROM prediction p WHERE p.model = i.model AND p.uid = i.uid)
"""
_PAGE: Final = "WHERE i.model = $1 AND i.uid < $2 ORDER BY i.uid DESC LIMIT 50"
STATEMENTS: Final = {
    "by-id": f"{_COLUMNS} WHERE i.model = $1 AND i.uid = $2",
    "page": f"{_COLUMNS} {_PAGE}",
    "page-whole": _COLUMNS.replace("i.*,", f"i.*, {_PREDICTIONS},") + f" {_PAGE}",
    "count": """SELECT count(*) FROM metadata_number n JOIN metadata_key k USING (key)
        WHERE n.model = $1 AND k.name = 'zoom' AND n.value = 7 AND n.uid < $2""",
}
"""By route; each takes the model and a uid."""


def main(dsn: str, port: int) -> None:
    """Serve until killed."""
    app = Starlette(
        routes=[Route(f"/{name}/{{model:int}}/{{uid}}", _answer) for name in STATEMENTS],
        lifespan=lambda app: _pool(app, dsn),
    )
    uvicorn.run(app, port=port, log_level="warning", access_log=False)


@asynccontextmanager
async def _pool(app: Starlette, dsn: str) -> AsyncIterator[None]:
    async with asyncpg.create_pool(dsn, min_size=10, max_size=10) as app.state.pool:
        yield


async def _answer(request: Request) -> Response:
    name, model, uid = request.url.path[1:].split("/")
    async with request.app.state.pool.acquire() as connection:
        rows = await connection.fetch(STATEMENTS[name], int(model), UUID(uid))
    body = orjson.dumps(
        [dict(row) for row in rows],
        default=lambda value: float(value) if isinstance(value, Decimal) else str(value),
    )
    return Response(body, media_type="application/json")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
