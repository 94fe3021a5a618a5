"""Several lists that are long: joined by their hashes, as Postgres is told to."""

import pytest
from sqlalchemy import union_all
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.store.cql2 import parse_text
from inference_store.store.queries.ask import Question, prepare
from inference_store.store.queries.bounded import Deadline, fetch
from inference_store.store.queries.leading import chosen, looked_at, settings_for
from inference_store.store.queries.scope import pieces
from tests.integration.stored import Made, at, store

_DAY = 86_400


@pytest.mark.parametrize(("some", "joins"), [(1, 2), (100, 1)])
async def test_they_are_joined(engine: AsyncEngine, some: int, joins: int) -> None:
    """All of them; or two, where one is not so long, and the third is tested."""
    made = [
        Made(str(n), at(n * _DAY / 5), [("n", "int", str(n)), ("m", "int", str(n % 3))])
        for n in range(20)
    ]
    model = await store(engine, *made)
    question = Question(filter=parse_text("n >= 5 AND m <> 1 AND n < 18"))
    wanted = {each.uid for n, each in enumerate(made) if 5 <= n < 18 and n % 3 != 1}
    async with engine.connect() as connection:
        query = (await prepare(connection, model, question)).query
        parts = await pieces(connection, query.scope, newest_first=True)
        deadline = Deadline.after(60)
        # what is counted no further than this is taken to be long
        looked = await looked_at(connection, query, parts, deadline, most=1, some=some)
        assert [each.joins for each in looked] == [joins] * len(looked)
        assert all(each.pairs == (joins == 1) for each in looked)
        statement = union_all(*(chosen(query, each)[0] for each in looked))
        rows = await fetch(connection, statement, deadline, settings=settings_for(looked))
        assert sorted(row[0] for row in rows) == sorted(wanted)
