"""What the client asks the real api: filters, blobs, retention, erasure, rights."""

from contextlib import AsyncExitStack
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store_client import (
    Forbidden,
    InvalidRequest,
    NotFound,
    Unauthorized,
    field,
    meta,
    predicted,
    prediction,
)
from inference_store_client.values.answers import Caller
from tests.both_clients import Client
from tests.client_examples import EXAMPLES
from tests.integration.api.app_server import serve_app
from tests.integration.api.conftest import MakeApp
from tests.integration.api.hallway import MODEL, make_frames
from tests.integration.stored_inferences import NewInference, at
from tests.integration.stored_inferences import store as store_inferences
from tests.settings import TOKEN

from .conftest import open_api

_BIG = 123456789012345678901234567890


async def read_ids(both: Client, inferences: Any) -> list[str]:
    return [inference.inference_id for inference in await both.list(inferences.stream)]


@pytest.mark.long
@pytest.mark.usefixtures("frames")
async def test_an_expression_asks_for_the_same_as_its_text(make_app: MakeApp, both: Client) -> None:
    async with open_api(make_app(), both) as store:
        model = store.model(MODEL)
        answers = {}
        for text, expression in EXAMPLES.items():
            of_text = await read_ids(both, model.inferences(text))
            answers[text] = of_text, await read_ids(both, model.inferences(expression))
    assert [text for text, (of_text, others) in answers.items() if of_text != others] == []
    assert sum(0 < len(ids) < 100 for ids, _ in answers.values()) > 35


@pytest.mark.usefixtures("frames")
async def test_pages_streams_and_counts_agree(make_app: MakeApp, both: Client) -> None:
    async with open_api(make_app(), both) as store:
        wanted = (meta.frame_number > 9000) & prediction(predicted.score < 0.4, label="person")
        inferences = store.model(MODEL).inferences(wanted, since=at(0), sort="frame_number")
        streamed = await read_ids(both, inferences)
        pages = await both.list(lambda: inferences.pages(3))
        assert [item.inference_id for page in pages for item in page.items] == streamed
        assert await both.ask(inferences.count) == len(streamed) == 10
        assert (await both.ask(inferences.first)).inference_id == streamed[0]
        taken = await both.ask(lambda: inferences_of(store).sample(5, seed=7))
        assert taken == await both.ask(lambda: inferences_of(store).sample(5, seed=7))
        across = store.inferences(wanted, model_ids=[MODEL])
        assert sorted(await read_ids(both, across)) == sorted(streamed)
        assert await both.ask(across.count) == 10
        with pytest.raises(InvalidRequest, match="frame_number"):
            await both.ask(store.model(MODEL).inferences(meta.frame_numer > 1).count)
        models = await both.list(store.models)
        keys = await both.list(store.model(MODEL).metadata_keys)
    assert [model.model_id for model in models] == [MODEL]
    assert "frame_number" in {key.name for key in keys}


def inferences_of(store: Any) -> Any:
    return store.model(MODEL).inferences(field.ok)


async def test_metadata_is_typed(make_app: MakeApp, engine: AsyncEngine, both: Client) -> None:
    items = [
        ("n", "int", str(_BIG)),
        ("price", "float", "0.10"),
        ("at", "timestamp", "2026-11-01T06:00:00+02:00"),
        ("camera", "json", '{"angle": 10.25}'),
        ("day", "bool", "True"),
        ("bad", "int", "n/a"),
    ]
    await store_inferences(engine, NewInference("a/b c", at(1), items, [("person", 0.25)]))
    async with open_api(make_app(), both) as store:
        model = store.model("model")
        inference = await both.ask(model.inferences(meta.n == _BIG).first)
        by_id = await both.ask(lambda: model.inference("a/b c"))
    assert inference.metadata == by_id.metadata
    assert inference.metadata["n"] == _BIG
    assert inference.metadata["price"] == Decimal("0.10")
    assert inference.metadata["at"] == at(4 * 3600)
    assert inference.metadata["camera"] == {"angle": Decimal("10.25")}
    assert (inference.metadata["day"], inference.metadata["bad"]) == (True, "n/a")
    assert [(item.label, item.score) for item in inference.predictions] == [("person", 0.25)]


@pytest.mark.parametrize("links", ["on", "off"])
async def test_blobs_retention_and_erasure(
    make_app: MakeApp, engine: AsyncEngine, blobs: Blobs, bucket: str, both: Client, links: str
) -> None:
    names = [f"{bucket}/{name}" for name in ("data", "response", "metadata")]
    for name, content in zip(names, (b"jpeg", b'{"a": 0.1}', b"{}"), strict=True):
        blobs.put(StorageKey(*name.split("/", 1)), content, content_type="image/jpeg")
    await store_inferences(
        engine, NewInference("one", keys=(names[0], names[1], names[2])), NewInference("two", at(5))
    )
    app = make_app(auth="on", api_token=TOKEN, presigned_urls=links)
    async with open_api(app, both, TOKEN) as store:
        model = store.model("model")
        for include in (["metadata"], ["metadata", "urls"]):
            inference = await both.ask(
                model.inferences(inference_ids=["one"], include=include).first
            )
            assert (await both.ask(inference.image)).content == b"jpeg"
            assert (await both.ask(inference.response)).json() == {"a": Decimal("0.1")}
        assert (await both.ask(inference.retention)).uid == inference.uid
        erasure = await both.ask(inference.erase)
        assert (erasure.model_id, erasure.scope) == ("model", "inference")
        assert await read_ids(both, model.inferences()) == ["two"]
        with pytest.raises(NotFound):
            await both.ask(lambda: model.inference("one"))


async def test_rights(make_app: MakeApp, engine: AsyncEngine, both: Client) -> None:
    await store_inferences(engine, *make_frames()[:3])
    async with AsyncExitStack() as stack:
        app = make_app(auth="on", api_token=TOKEN)
        url = str((await stack.enter_async_context(serve_app(app))).base_url)
        owner = await stack.enter_async_context(both.open_store(url, TOKEN))
        body = {"name": "reader", "grants": [{"role": "reader"}]}
        key = await both.ask(lambda: owner.request("POST", "/v1/keys", body=body))
        reader = await stack.enter_async_context(both.open_store(url, key["key"]))
        caller: Caller = await both.ask(reader.me)
        assert "export" not in caller.rights
        assert caller == await both.ask(lambda: reader.request("GET", "/v1/me", into=Caller))
        pages = await both.list(reader.model(MODEL).inferences().pages)
        assert [len(page.items) for page in pages] == [3]
        with pytest.raises(Forbidden, match="export"):
            await read_ids(both, reader.model(MODEL).inferences())
        for no_key in ("no-such-key", None):
            nobody = await stack.enter_async_context(both.open_store(url, no_key))
            with pytest.raises(Unauthorized):
                await both.ask(nobody.me)
