"""Links to blobs: of this inference's objects, for a while; or none, and the api's own routes."""

from urllib.parse import parse_qs, urlsplit

import httpx
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from tests.integration.stored import Made, store
from tests.polling import until
from tests.settings import TOKEN

from .conftest import MakeApp, client_of

PATH = "/v1/models/model/inferences/one"


async def _store(engine: AsyncEngine, blobs: Blobs, bucket: str) -> None:
    for name in ("d", "secret"):
        blobs.put(StorageKey(bucket, name), b"<script>", content_type="text/html")
    await store(engine, Made("one", keys=(f"{bucket}/d", None, "strangers/m")))


async def test_a_link_is_for_one_object_and_a_while(
    make_app: MakeApp, engine: AsyncEngine, blobs: Blobs, bucket: str
) -> None:
    await _store(engine, blobs, bucket)
    async with client_of(make_app(presigned_url_seconds=600)) as client:
        urls = (await client.get(PATH)).json()["urls"]
    async with client_of(make_app(presigned_url_seconds=1)) as client:
        brief = (await client.get(PATH)).json()["urls"]["data"]
    link = urlsplit(urls["data"])
    assert link.path == f"/{bucket}/d"
    assert parse_qs(link.query)["X-Amz-Expires"] == ["600"]
    # nothing was stored of the second, and the third's bucket is not on the list of today
    assert (urls["response"], urls["metadata"]) == (None, None)
    async with httpx.AsyncClient(timeout=120) as anyone:
        assert (await anyone.get(urls["data"])).content == b"<script>"
        for other in ("secret", "", "d%2f..%2fsecret"):
            moved = link._replace(path=f"/{bucket}/{other}").geturl()
            assert (await anyone.get(moved)).status_code in {400, 403}
        longer = urls["data"].replace("X-Amz-Expires=600", "X-Amz-Expires=6000")
        assert (await anyone.get(longer)).status_code == 403
        assert (await anyone.delete(urls["data"])).status_code in {400, 403}

        async def status() -> int:
            return (await anyone.get(brief)).status_code

        assert await until(status, lambda found: found != 200) == 403


async def test_without_links_blobs_are_read_through_the_api(
    make_app: MakeApp, engine: AsyncEngine, blobs: Blobs, bucket: str
) -> None:
    await _store(engine, blobs, bucket)
    async with client_of(make_app(presigned_urls="off", auth="on", api_token=TOKEN)) as client:
        right = {"Authorization": f"Bearer {TOKEN}"}
        one = (await client.get(PATH, headers=right)).json()
        page = await client.post(
            "/v1/models/model/inferences/query", json={"include": ["urls"]}, headers=right
        )
        assert page.json()["items"][0]["urls"] == one["urls"]
        assert one["urls"]["data"] == f"/v1/models/model/inferences/uid:{one['uid']}/data"
        assert one["urls"]["response"] is None
        answer = await client.get(one["urls"]["data"], headers=right)
        assert answer.content == b"<script>"
        # a page that a stranger stored is never run as one of ours
        assert answer.headers["content-security-policy"] == "sandbox"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert (await client.get(one["urls"]["data"])).status_code == 401
