"""The number of Postgres statements for each request, which dominate its cost."""

from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.integration.api.conftest import MakeApp, make_client
from tests.integration.statements import record_statements
from tests.integration.stored_inferences import NewInference, at, store

TOKEN = "a-token-of-the-tests"
_ONE = "/v1/models/model/inferences/id-1"
_QUERY = "/v1/models/model/inferences/query"
_ALL = {"include": ["metadata", "predictions"]}


@pytest.mark.parametrize(
    ("ask", "most"),
    [
        # the model with its extent, the look-up, the row, the audit
        (("GET", _ONE, None), 4),
        (("GET", f"{_ONE}?include=predictions", None), 3),
        # the model with its extent, and the page
        (("POST", _QUERY, {}), 2),
        (("POST", _QUERY, _ALL), 2),
    ],
)
async def test_round_trips(
    make_app: MakeApp, engine: AsyncEngine, ask: tuple[str, str, Any], most: int
) -> None:
    await store(engine, *(NewInference(f"id-{n}", at(n), [("n", "int", str(n))]) for n in range(3)))
    async with make_client(make_app(auth="on", api_token=TOKEN)) as client:
        method, path, body = ask
        head = {"Authorization": f"Bearer {TOKEN}"}
        for _ in range(2):  # the first request also looks up the key, and whether this is Citus
            with record_statements(engine) as statements:
                answer = await client.request(method, path, json=body, headers=head)
            assert answer.status_code == 200
    assert len(statements) <= most, statements
    assert not any("COMMIT" in statement.text for statement in statements)
