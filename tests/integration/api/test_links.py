"""Links to the blobs of an inference expire; without links, the api's own routes serve blobs."""

from urllib.parse import parse_qs, urlsplit

import httpx
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from tests.integration.stored_inferences import NewInference, store
from tests.polling import until
from tests.settings import TOKEN

from .conftest import MakeApp, make_client

PATH = "/v1/models/model/inferences/one"


async def _store_inference(engine: AsyncEngine, blobs: Blobs, bucket: str) -> None:
    for name in ("d", "secret"):
        blobs.put(StorageKey(bucket, name), b"<script>", content_type="text/html")
    await store(engine, NewInference("one", keys=(f"{bucket}/d", None, "strangers/m")))


async def test_link_opens_one_object_until_it_expires(
    make_app: MakeApp, engine: AsyncEngine, blobs: Blobs, bucket: str
) -> None:
    await _store_inference(engine, blobs, bucket)
    async with make_client(make_app(presigned_url_seconds=600)) as client:
        urls = (await client.get(PATH)).json()["urls"]
    async with make_client(make_app(presigned_url_seconds=1)) as client:
        brief = (await client.get(PATH)).json()["urls"]["data"]
    link = urlsplit(urls["data"])
    assert link.path == f"/{bucket}/d"
    assert parse_qs(link.query)["X-Amz-Expires"] == ["600"]
    # there is no response, and the bucket of the metadata is not an allowed one
    assert (urls["response"], urls["metadata"]) == (None, None)
    async with httpx.AsyncClient(timeout=120) as anyone:
        assert (await anyone.get(urls["data"])).content == b"<script>"
        for other in ("secret", "", "d%2f..%2fsecret"):
            moved = link._replace(path=f"/{bucket}/{other}").geturl()
            assert (await anyone.get(moved)).status_code in {400, 403}
        longer = urls["data"].replace("X-Amz-Expires=600", "X-Amz-Expires=6000")
        assert (await anyone.get(longer)).status_code == 403
        assert (await anyone.delete(urls["data"])).status_code in {400, 403}

        async def read_status() -> int:
            return (await anyone.get(brief)).status_code

        assert await until(read_status, lambda status: status != 200) == 403


async def test_serves_blobs_through_the_api_without_links(
    make_app: MakeApp, engine: AsyncEngine, blobs: Blobs, bucket: str
) -> None:
    await _store_inference(engine, blobs, bucket)
    async with make_client(make_app(presigned_urls="off", auth="on", api_token=TOKEN)) as client:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        inference = (await client.get(PATH, headers=headers)).json()
        page = await client.post(
            "/v1/models/model/inferences/query", json={"include": ["urls"]}, headers=headers
        )
        assert page.json()["items"][0]["urls"] == inference["urls"]
        assert (
            inference["urls"]["data"] == f"/v1/models/model/inferences/uid:{inference['uid']}/data"
        )
        assert inference["urls"]["response"] is None
        answer = await client.get(inference["urls"]["data"], headers=headers)
        assert answer.content == b"<script>"
        # a stored page must not run as a page of the api
        assert answer.headers["content-security-policy"] == "sandbox"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert (await client.get(inference["urls"]["data"])).status_code == 401
