"""Who may not erase everything reaches no quarantined event that is of no registered model."""

from collections.abc import Callable

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import dead_letters
from inference_store.index.accounting import PartitionId, open_partition
from inference_store.index.records import Record, Rejection
from inference_store.index.tables import dead_letter
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from tests.builders import NOW
from tests.integration.api.test_erasures import make_run_retention
from tests.integration.stored_inferences import NewInference, at, store
from tests.settings import TOKEN

from .conftest import OPEN, Keys

_SUBJECT = {"subject": {"key": "person", "value": "ann"}}


@pytest.mark.usefixtures("two_models")
async def test_only_who_may_erase_everything_reaches_them(
    keys: Keys, engine: AsyncEngine, blobs: Blobs, settings: Callable[..., ApiSettings]
) -> None:
    await store(engine, NewInference("p", at(1), [("person", "string", "ann")], model_id=OPEN))
    partition = PartitionId("default", "inference-events", 0, 0)
    payload = f'{{"model_id":"{OPEN}","person":"ann","pet":"cat","broken'.encode()
    record = Record(partition, 0, NOW, None, payload, ())
    async with engine.begin() as connection:
        await open_partition(connection, partition, first=0, began="earliest")
        await dead_letters.add(connection, [(record, Rejection("not_json", "x", None, None))])
    narrow = await keys.make({"role": "owner", "model_id": OPEN})
    paths = (f"/v1/models/{OPEN}/erasures", "/v1/erasures")
    for path in paths:
        for key, counted in ((narrow, 0), (TOKEN, 1)):
            dry = await keys.ask(key, "POST", path, {**_SUBJECT, "dry_run": True})
            assert (dry.status_code, dry.json()["dead_letters"]) == (200, counted), dry.text
        # nor does the refusal of a key say whether such a letter has it
        unseen = {"subject": {"key": "pet", "value": "cat"}, "dry_run": True}
        statuses = [
            (await keys.ask(key, "POST", path, unseen)).status_code for key in (narrow, TOKEN)
        ]
        assert statuses == [422, 200]
    for key, state in ((narrow, "open"), (TOKEN, "discarded")):
        answer = await keys.ask(key, "POST", "/v1/erasures", _SUBJECT)
        assert answer.status_code == 202, answer.text
        await make_run_retention(engine, blobs, settings())()
        erasure = (await keys.ask(key, "GET", answer.headers["Location"])).json()
        assert erasure["state"] == "deleted", erasure
        async with engine.connect() as connection:
            assert await connection.scalar(select(dead_letter.c.state)) == state
