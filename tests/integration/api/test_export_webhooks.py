"""A webhook of an export, from the request to the message, and what is refused."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings, RetentionSettings
from inference_store.retention.worker import RetentionWorker
from tests.integration.stored_inferences import NewInference, at, store
from tests.polling import until
from tests.receiver import SECRET, start_receiver

from .conftest import MakeApp, make_client
from .test_erasures import AlwaysLeader, make_run_retention
from .test_exports_erased import call, run_housekeeping

INFERENCES = [NewInference(str(n), at(n), [("n", "int", str(n))]) for n in range(6)]
SECRET_PART = "s3cret-5f2b"


@pytest.fixture(autouse=True)
async def stored(engine: AsyncEngine) -> None:
    """Store six inferences."""
    await store(engine, *INFERENCES)


async def test_from_the_request_to_the_list_of_what_was_erased(
    make_app: MakeApp,
    engine: AsyncEngine,
    blobs: Blobs,
    settings: Callable[..., ApiSettings],
) -> None:
    async with start_receiver() as receiver:
        names = RetentionSettings.model_fields.keys()
        values = {name: value for name, value in settings() if name in names}
        own: dict[str, Any] = {"export_webhook_origins": receiver.origin}
        both = RetentionSettings.model_validate(values | own | {"export_webhook_secret": SECRET})
        worker = RetentionWorker(both, engine, blobs, AlwaysLeader(), asyncio.Event())
        async with make_client(make_app(**own)) as client:
            url = f"{receiver.origin}/hook?token={SECRET_PART}"
            shown = await call(client, "POST", "/models/model/exports", {"webhook": url})
            assert shown["webhook"] == {
                "origin": receiver.origin,
                "state": "idle",
                "attempts": 0,
                **dict.fromkeys(
                    ("waiting_since", "delivered_at", "delivered_until", "error", "retry_at"), None
                ),
            }
            path = f"/exports/{shown['id']}"
            await worker.run_turn()
            await call(client, "POST", "/models/model/erasures", {"filter": "n < 2"})
            await worker.run_turn()

            async def look() -> Any:
                await worker.run_turn()
                return (await call(client, "GET", path))["webhook"]

            told = await until(look, lambda webhook: webhook["delivered_at"] is not None)
            [message] = receiver.messages
            assert message.path == f"/hook?token={SECRET_PART}"
            erased = (await client.get(message.data["erased"])).json()
            uids = [item["uid"] for item in erased["items"]]
            assert uids == [str(inference.uid) for inference in INFERENCES[:2]]
            assert not any(uid.encode() in message.body for uid in uids)
            newest = erased["items"][-1]
            assert (told["delivered_until"], told["error"]) == (newest["erased_at"], None)
            assert message.data == {
                "export": shown["id"],
                "model_id": "model",
                "erasure": newest["erasure"],
                "inferences": 2,
                "erased": f"/v1{path}/erased?cursor={message.data['erased'].split('=')[1]}",
            }
            listed = await call(client, "GET", "/exports")
            audit = await call(client, "GET", "/audit?action=export_requested")
            detail = audit["items"][0]["detail"]
            assert (detail["export"], detail["webhook"]) == (shown["id"], receiver.origin)
            assert SECRET_PART not in f"{shown}{listed}{audit}"
        await worker.aclose()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://hooks.example.evil/", "is not in INFERENCE_STORE_EXPORT_WEBHOOK_ORIGINS"),
        ("http://hooks.example/", "is not in INFERENCE_STORE_EXPORT_WEBHOOK_ORIGINS"),
        ("https://hooks.example:8443/", "is not in INFERENCE_STORE_EXPORT_WEBHOOK_ORIGINS"),
        ("https://a:b@hooks.example/", "it holds no user and no password"),
        ("https://hooks.example#@evil.example/", "it holds no fragment"),
        ("ftp://hooks.example/", "it is a URL such as"),
        ("", "it is a URL such as"),
        ("https://hooks.example/" + "a" * 2000, "2000 characters"),
        ("https://höoks.example/", "punycode"),
    ],
)
async def test_what_is_not_listed_is_refused(make_app: MakeApp, url: str, reason: str) -> None:
    app = make_app(export_webhook_origins="https://hooks.example")
    async with make_client(app) as client:
        answer = await client.post("/v1/models/model/exports", json={"webhook": url})
        assert answer.status_code == 422, answer.text
        [fault] = answer.json()["errors"]
        assert fault["path"] in {"webhook", "body.webhook"}
        assert reason in fault["message"]
        assert (await call(client, "GET", "/exports"))["items"] == []


async def test_without_a_setting_there_are_none(client: httpx.AsyncClient) -> None:
    body = {"webhook": "https://hooks.example/"}
    answer = await client.post("/v1/models/model/exports", json=body)
    assert answer.status_code == 422
    assert "EXPORT_WEBHOOK_ORIGINS" in answer.text


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE export_job SET finished_at = now() - interval '500 days',"
        " expires_at = now() - interval '500 days'",
        "DELETE FROM registration",
    ],
    ids=["it ended long ago", "its model was removed"],
)
async def test_it_goes_with_its_export(
    make_app: MakeApp,
    engine: AsyncEngine,
    blobs: Blobs,
    settings: Callable[..., ApiSettings],
    change: str,
) -> None:
    async with make_client(make_app(export_webhook_origins="https://hooks.example")) as client:
        body = {"webhook": "https://hooks.example/x"}
        export = await call(client, "POST", "/models/model/exports", body)
    async with engine.begin() as connection:
        for statement in ("UPDATE export_job SET state = 'cancelled'", change):
            await connection.execute(text(statement))
    await run_housekeeping(engine, blobs, settings())
    async with engine.connect() as connection:
        left = await connection.scalars(text("SELECT export FROM export_webhook"))
        assert export["id"] not in map(str, left)


@pytest.mark.parametrize(
    "query", ["who=ada%2Bx%40ex.com", "q=%22ada+x%40ex.com%22+who", "q=ada%252Bx%2540ex.com"]
)
async def test_an_erasure_of_a_subject_takes_a_url_that_mentions_it(
    make_app: MakeApp,
    engine: AsyncEngine,
    blobs: Blobs,
    settings: Callable[..., ApiSettings],
    query: str,
) -> None:
    item = ("who", "string", "ada+x@ex.com")
    await store(engine, NewInference("a", at(7), [item], model_id="model"))
    async with make_client(make_app(export_webhook_origins="https://hooks.example")) as client:
        ids = [
            (await call(client, "POST", "/models/model/exports", {"webhook": url}))["id"]
            for url in (f"https://hooks.example/?{query}", "https://hooks.example/?q=other")
        ]
        body = {"subject": {"key": item[0], "value": item[2]}}
        erasure = (await call(client, "POST", "/models/model/erasures", body))["id"]
        await make_run_retention(engine, blobs, settings())()
        ended, other = [(await call(client, "GET", f"/exports/{id}"))["webhook"] for id in ids]
    assert (ended["state"], ended["error"]) == ("ended", f"erased by the erasure {erasure}")
    assert other["state"] == "idle"
    async with engine.connect() as connection:
        urls = await connection.scalars(text("SELECT url FROM export_webhook"))
        assert set(urls) == {None, "https://hooks.example/?q=other"}
