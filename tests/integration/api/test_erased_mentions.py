"""An erasure of a subject redacts what mentions it about its own models; of all models, the rest.

Else a key that may erase from one model could change records about others, and learn from the
counts whether a word stands in them.
"""

from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.integration.api.test_erasures import (
    RunRetention,
    read_erasure,
    request_erasure,
    run_retention,
    stored,
)

__all__ = ["run_retention", "stored"]
FILTER = "person = 'ann'"
SUBJECT = {"subject": {"key": "person", "value": "ann"}}
KEPT = {"keep_input": "P9Y", "keep_inference": "P9Y"}
OWNERS = {"model": "model", "other": "other", None: "everything"}
# Tables that have a mention, with a query for the owners of the rows that still have one.
QUERIES = {
    "saved_view": "SELECT name FROM saved_view WHERE filter LIKE '%ann%'",
    "hold": "SELECT name FROM hold WHERE filter LIKE '%ann%'",
    "erasure": "SELECT array_to_string(array_agg(m.model_id ORDER BY m.model_id), '+')"
    " FROM erasure JOIN erasure_model e ON e.erasure = erasure.id JOIN registration m"
    " ON m.model = e.model WHERE asked::text LIKE '%ann%' GROUP BY erasure.id",
    "policy_version": "SELECT subject FROM policy_version WHERE document LIKE '%ann%'",
    "export_job": "SELECT model_id FROM export_job JOIN registration USING (model)"
    " WHERE document::text LIKE '%ann%'",
    "audit": "SELECT coalesce(model_id, 'everything') FROM audit WHERE detail::text LIKE '%ann%'",
}
LEFT = {
    "saved_view": {"other"},
    "hold": {"other", "everything"},
    "erasure": {"other", "model+other"},
    "policy_version": {"other", ""},
    "export_job": {"other"},
    "audit": {"other", "everything"},
}


async def send(client: httpx.AsyncClient, method: str, path: str, **body: Any) -> Any:
    answer = await client.request(method, path, json=body or None)
    assert answer.status_code < 300, answer.text
    return answer.json() if answer.content else None


@pytest.fixture(autouse=True)
async def mentions(client: httpx.AsyncClient, stored: None) -> None:  # noqa: ARG001
    """Mention ann in each kind of record, about each model and about everything."""
    for model, name in OWNERS.items():
        prefix = "/v1" if model is None else f"/v1/models/{model}"
        owner = {} if model is None else {"model_id": model}
        for rules in ([{"filter": FILTER, **KEPT}, KEPT], [KEPT]):
            await send(client, "PUT", f"{prefix}/retention-policy", rules=rules)
        hold = await send(
            client, "POST", "/v1/holds", name=name, reason="a case", filter=FILTER, **owner
        )
        await send(client, "DELETE", f"/v1/holds/{hold['id']}?reason=over")
        erasure = await request_erasure(client, {"filter": FILTER}, f"{prefix}/erasures")
        await send(client, "POST", f"/v1/erasures/{erasure['id']}/cancel")
        if model is not None:
            view = {"name": name, "filter": FILTER, "shared": "project"}
            await send(client, "POST", "/v1/views", **view, **owner)
            await send(client, "POST", f"{prefix}/exports", filter=FILTER)


async def find_mentions(engine: AsyncEngine) -> dict[str, set[str]]:
    """Return the owners of the records that mention ann, by table."""
    async with engine.connect() as connection:
        return {
            table: set((await connection.execute(text(query))).scalars())
            for table, query in QUERIES.items()
        }


async def test_mentions_about_other_models_stay(
    client: httpx.AsyncClient, engine: AsyncEngine, run_retention: RunRetention
) -> None:
    before = await find_mentions(engine)
    assert {table: owners - LEFT[table] for table, owners in before.items()} == {
        table: {"model"} for table in QUERIES
    }
    erasure = await request_erasure(client, SUBJECT, "/v1/models/model/erasures")
    await run_retention()
    assert (await read_erasure(client, erasure))["state"] == "deleted"
    assert await find_mentions(engine) == LEFT
    exports = (await send(client, "GET", "/v1/exports"))["items"]
    states = {export["model_id"]: (export["state"], export["erased_by"]) for export in exports}
    # it was still to search by its filter
    assert states == {"model": ("failed", erasure["id"]), "other": ("done", None)}
    [failed] = [export for export in exports if export["model_id"] == "model"]
    assert failed["filter"] is None
    assert "request it again" in failed["error"]


async def test_an_erasure_of_all_models_redacts_every_mention(
    client: httpx.AsyncClient, engine: AsyncEngine, run_retention: RunRetention
) -> None:
    erasure = await request_erasure(client, SUBJECT, "/v1/erasures")
    await run_retention()
    assert (await read_erasure(client, erasure))["state"] == "deleted"
    assert await find_mentions(engine) == {table: set() for table in QUERIES}
