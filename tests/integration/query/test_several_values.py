"""An inference with several values that satisfy a comparison is found and counted once."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.query.across_models import build_queries, count_across, find_across
from inference_store.query.count import count
from inference_store.query.cql2 import parse_text
from inference_store.query.deadline import Deadline
from inference_store.query.page import find_page
from inference_store.query.preparation import QueryRequest, prepare
from tests.integration.stored_inferences import NewInference, at, store

_INFERENCES = [
    NewInference(
        str(n),
        at(n),
        [
            ("tags", "json", '["Cat", "cat", "CAT"]' if n % 2 else '["dog"]'),
            ("a", "json", '["x", "y", "z"]'),
            ("b", "json", '["x", "y"]' if n % 2 else '["w"]'),
        ],
    )
    for n in range(8)
]
_MATCHING_UIDS = [inference.uid for n, inference in enumerate(_INFERENCES) if n % 2]


@pytest.mark.parametrize(
    "filter",
    [
        "CASEI(\"tags[]\") = CASEI('cat')",
        '"a[]" = "b[]"',
        "\"tags[]\" = 'cat'",
        "\"tags[]\" <> 'dog'",
        'CASEI("tags[]") = CASEI(\'cat\') AND "a[]" = "b[]"',
    ],
)
async def test_inference_with_several_matches_is_found_once(
    engine: AsyncEngine, filter: str
) -> None:
    model = await store(engine, *_INFERENCES)
    async with engine.connect() as connection:
        query = (await prepare(connection, model, QueryRequest(filter=parse_text(filter)))).query
        assert await count(connection, query, deadline=Deadline.after(60)) == len(_MATCHING_UIDS)
        for scan in (1, 4_000):
            page = await find_page(
                connection, query, limit=100, deadline=Deadline.after(60), scan=scan
            )
            assert page.uids == _MATCHING_UIDS[::-1]
            full = await find_page(
                connection, query, limit=3, deadline=Deadline.after(60), scan=scan
            )
            assert full.uids == _MATCHING_UIDS[:0:-1]
        queries = await build_queries(connection, query, [model])
        assert await count_across(connection, queries, deadline=Deadline.after(60)) == len(
            _MATCHING_UIDS
        )
        across = await find_across(
            connection, queries, limit=100, deadline=Deadline.after(60), scan=1
        )
        assert [hit.uid for hit in across.hits] == _MATCHING_UIDS[::-1]
