"""A webhook of an export, from the request to the message, and what is refused."""

from typing import Any

import pytest

from tests.integration.stored_inferences import NewInference, at
from tests.polling import until
from tests.receiver import SECRET, start_receiver

from .api_client import make_worker
from .conftest import Api, MakeApp, make_client
from .people import ERASURES, EXPORTS, erase, read_export, request_export

INFERENCES = [NewInference(str(n), at(n), [("n", "int", str(n))]) for n in range(6)]
SECRET_PART = "s3cret-5f2b"
ORIGIN = {"export_webhook_origins": "https://hooks.example"}
SENDING_NOTHING = {"export_webhook_origins": ""}


@pytest.fixture(autouse=True)
async def stored(api: Api) -> None:
    """Store six inferences."""
    await api.store(*INFERENCES)


async def test_from_the_request_to_the_list_of_what_was_erased(make_app: MakeApp) -> None:
    async with start_receiver() as receiver:
        own: dict[str, Any] = {"export_webhook_origins": receiver.origin}
        async with make_client(make_app(**own)) as api:
            worker = make_worker(
                api.engine,
                api.blobs,
                api.app.state.settings,
                **own,
                export_webhook_secret=SECRET,
            )
            url = f"{receiver.origin}/hook?token={SECRET_PART}"
            shown = await request_export(api, webhook=url)
            times = ("waiting_since", "delivered_at", "delivered_until", "error", "retry_at")
            idle = {"origin": receiver.origin, "state": "idle", "attempts": 0}
            assert shown["webhook"] == idle | dict.fromkeys(times)
            await worker.run_turn()
            await api.ask(ERASURES, {"filter": "n < 2"}, status=202)
            await worker.run_turn()

            async def look() -> Any:
                await worker.run_turn()
                return (await read_export(api, shown))["webhook"]

            told = await until(look, lambda webhook: webhook["delivered_at"] is not None)
            [message] = receiver.messages
            assert message.path == f"/hook?token={SECRET_PART}"
            erased = await api.read(message.data["erased"])
            uids = [item["uid"] for item in erased["items"]]
            assert uids == [str(inference.uid) for inference in INFERENCES[:2]]
            assert not any(uid.encode() in message.body for uid in uids)
            newest = erased["items"][-1]
            assert (told["delivered_until"], told["error"]) == (newest["erased_at"], None)
            cursor = message.data["erased"].split("=")[1]
            assert message.data == {
                "export": shown["id"],
                "model_id": "model",
                "erasure": newest["erasure"],
                "inferences": 2,
                "erased": f"/v1/exports/{shown['id']}/erased?cursor={cursor}",
            }
            listed = await api.read("/v1/exports")
            audit = await api.read("/v1/audit?action=export_requested")
            detail = audit["items"][0]["detail"]
            assert (detail["export"], detail["webhook"]) == (shown["id"], receiver.origin)
            assert SECRET_PART not in f"{shown}{listed}{audit}"
        await worker.aclose()


async def test_what_is_not_listed_is_refused(api: Api, make_app: MakeApp) -> None:
    unlisted = "is not in INFERENCE_STORE_EXPORT_WEBHOOK_ORIGINS"
    async with make_client(make_app(**ORIGIN)) as listing:
        for url, reason in (
            ("https://hooks.example.evil/", unlisted),
            ("http://hooks.example/", unlisted),
            ("https://hooks.example:8443/", unlisted),
            ("https://a:b@hooks.example/", "it holds no user and no password"),
            ("https://hooks.example#@evil.example/", "it holds no fragment"),
            ("ftp://hooks.example/", "it is a URL such as"),
            ("", "it is a URL such as"),
            ("https://hooks.example/" + "a" * 2000, "2000 characters"),
            ("https://höoks.example/", "punycode"),
        ):
            problem = await listing.ask(EXPORTS, {"webhook": url}, status=422)
            [fault] = problem["errors"]
            assert fault["path"] in {"webhook", "body.webhook"}, url
            assert reason in fault["message"], url
    without_a_setting = await api.ask(EXPORTS, {"webhook": "https://hooks.example/"}, status=422)
    assert "EXPORT_WEBHOOK_ORIGINS" in str(without_a_setting)
    assert (await api.read("/v1/exports"))["items"] == []


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE export_job SET finished_at = now() - interval '500 days',"
        " expires_at = now() - interval '500 days'",
        "DELETE FROM registration",
    ],
    ids=["it ended long ago", "its model was removed"],
)
async def test_it_goes_with_its_export(make_app: MakeApp, change: str) -> None:
    async with make_client(make_app(**ORIGIN)) as api:
        api.retention = SENDING_NOTHING
        export = await request_export(api, webhook="https://hooks.example/x")
        await api.execute("UPDATE export_job SET state = 'cancelled'", change)
        await api.run_retention(is_due=True)
        left = await api.fetch("SELECT export FROM export_webhook")
    assert export["id"] not in map(str, left)


async def test_an_erasure_of_a_subject_takes_a_url_that_mentions_it(make_app: MakeApp) -> None:
    item = ("who", "string", "ada+x@ex.com")
    mentions = ("who=ada%2Bx%40ex.com", "q=%22ada+x%40ex.com%22+who", "q=ada%252Bx%2540ex.com")
    async with make_client(make_app(**ORIGIN)) as api:
        api.retention = SENDING_NOTHING
        await api.store(NewInference("a", at(7), [item]))
        *ended, other = [
            await request_export(api, webhook=f"https://hooks.example/?{query}")
            for query in (*mentions, "q=other")
        ]
        erasure = await erase(api, {"subject": {"key": item[0], "value": item[2]}})
        for query, export in zip(mentions, ended, strict=True):
            webhook = (await read_export(api, export))["webhook"]
            reason = f"erased by the erasure {erasure['id']}"
            assert (webhook["state"], webhook["error"]) == ("ended", reason), query
        assert (await read_export(api, other))["webhook"]["state"] == "idle"
        urls = await api.fetch("SELECT url FROM export_webhook")
        assert sorted(urls, key=str) == [None, None, None, "https://hooks.example/?q=other"]
