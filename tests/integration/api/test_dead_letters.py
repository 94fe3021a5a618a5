"""Dead letters and accounting over HTTP."""

import base64

import httpx
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import accounting, dead_letters
from inference_store.index.accounting import Outcome, PartitionId
from inference_store.index.records import Record, Rejection
from tests.integration.stored_inferences import at

_PARTITION = PartitionId("default", "inference-events", 1, 0)


async def _add_letters(engine: AsyncEngine, number: int) -> None:
    async with engine.begin() as connection:
        await accounting.open_partition(connection, _PARTITION, first=0, began="first")
        letters = [
            (
                Record(_PARTITION, n, at(n), b"key", b'{"n": "\xff"}' if n == 0 else b"{}"),
                Rejection("not_json" if n % 2 else "missing_field", "why", "m", "i"),
            )
            for n in range(number)
        ]
        await dead_letters.add(connection, letters)
        counts = {Outcome.DEAD: number}
        await accounting.move_offsets(
            connection, _PARTITION, lo=0, hi=number, outcomes=counts, last=None
        )


async def test_dead_letters(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await _add_letters(engine, 5)
    page = (await client.get("/v1/dead-letters", params={"limit": 3})).json()
    assert [item["offset"] for item in page["items"]] == [4, 3, 2]
    rest = await client.get("/v1/dead-letters", params={"limit": 3, "cursor": page["next"]})
    assert [item["offset"] for item in rest.json()["items"]] == [1, 0]
    filtered = (await client.get("/v1/dead-letters", params={"reason": "not_json"})).json()
    assert [item["offset"] for item in filtered["items"]] == [3, 1]
    first = rest.json()["items"][-1]
    path = f"/v1/dead-letters/{first['id']}"
    whole = (await client.get(path)).json()
    assert base64.b64decode(whole["payload_base64"]) == b'{"n": "\xff"}'
    assert whole["payload"] is None
    assert whole["detail"] == "why"

    discarded = await client.post(f"{path}/discard", json={"reason": "a test"})
    assert (discarded.status_code, discarded.json()["state"]) == (200, "discarded")
    assert (await client.post(f"{path}/redrive")).status_code == 409
    assert (await client.post(f"{path}/discard", json={"reason": ""})).status_code == 422
    other = f"/v1/dead-letters/{rest.json()['items'][0]['id']}"
    assert (await client.post(f"{other}/redrive")).json()["state"] == "redrive"
    redriven = await client.post("/v1/dead-letters/redrive", json={"reason": "not_json"})
    assert (redriven.status_code, redriven.json()) == (202, {"redriven": 1})


async def test_accounting(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await _add_letters(engine, 3)
    answer = (await client.get("/v1/accounting")).json()
    assert answer["closes"] is True
    [account] = answer["partitions"]
    assert (account["dead"], account["dead_open"], account["next"]) == (3, 3, 3)
