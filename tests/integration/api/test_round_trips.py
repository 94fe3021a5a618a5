"""How often a request asks Postgres: each time costs more than most of what it is answered from."""

from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.integration.api.conftest import MakeApp, client_of
from tests.integration.sent import statements_of
from tests.integration.stored import Made, at, store

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
        # the model with its extent, the page, which is read as it is found
        (("POST", _QUERY, {}), 2),
        (("POST", _QUERY, _ALL), 2),
    ],
)
async def test_round_trips(
    make_app: MakeApp, engine: AsyncEngine, ask: tuple[str, str, Any], most: int
) -> None:
    await store(engine, *(Made(f"id-{n}", at(n), [("n", "int", str(n))]) for n in range(3)))
    async with client_of(make_app(auth="on", api_token=TOKEN)) as client:
        method, path, body = ask
        head = {"Authorization": f"Bearer {TOKEN}"}
        for _ in range(2):  # at first the key is looked up, and whether this is Citus
            with statements_of(engine) as sent:
                answer = await client.request(method, path, json=body, headers=head)
            assert answer.status_code == 200
    assert len(sent) <= most, sent
    assert not any("COMMIT" in each.text for each in sent)
