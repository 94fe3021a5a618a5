"""Links to the blobs of an inference expire; without links, the api's own routes serve blobs."""

from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tests.integration.stored_inferences import NewInference
from tests.polling import until
from tests.settings import TOKEN

from .conftest import OWNER, Api, MakeApp, make_client

PATH = "/v1/models/model/inferences/one"


@pytest.fixture(autouse=True)
async def stored(api: Api) -> None:
    data, _ = (api.put_blob(name, b"<script>", "text/html") for name in ("d", "secret"))
    await api.store(NewInference("one", keys=(data, None, "strangers/m")))


async def test_link_opens_one_object_until_it_expires(api: Api, make_app: MakeApp) -> None:
    async with make_client(make_app(presigned_url_seconds=600)) as client:
        urls = (await client.read(PATH))["urls"]
    async with make_client(make_app(presigned_url_seconds=1)) as client:
        brief = (await client.read(PATH))["urls"]["data"]
    link = urlsplit(urls["data"])
    assert link.path == f"/{api.bucket}/d"
    assert parse_qs(link.query)["X-Amz-Expires"] == ["600"]
    # there is no response, and the bucket of the metadata is not an allowed one
    assert (urls["response"], urls["metadata"]) == (None, None)
    async with httpx.AsyncClient(timeout=120) as anyone:
        assert (await anyone.get(urls["data"])).content == b"<script>"
        for other in ("secret", "", "d%2f..%2fsecret"):
            moved = link._replace(path=f"/{api.bucket}/{other}").geturl()
            assert (await anyone.get(moved)).status_code in {400, 403}
        longer = urls["data"].replace("X-Amz-Expires=600", "X-Amz-Expires=6000")
        assert (await anyone.get(longer)).status_code == 403
        assert (await anyone.delete(urls["data"])).status_code in {400, 403}

        async def read_status() -> int:
            return (await anyone.get(brief)).status_code

        assert await until(read_status, lambda status: status != 200) == 403


async def test_serves_blobs_through_the_api_without_links(make_app: MakeApp) -> None:
    async with make_client(make_app(presigned_urls="off", auth="on", api_token=TOKEN)) as client:
        inference = await client.call("GET", PATH, headers=OWNER)
        query = "/v1/models/model/inferences/query"
        page = await client.ask(query, {"include": ["urls"]}, headers=OWNER)
        urls = inference["urls"]
        assert page["items"][0]["urls"] == urls
        assert urls["data"] == f"/v1/models/model/inferences/uid:{inference['uid']}/data"
        assert urls["response"] is None
        answer = await client.get(urls["data"], headers=OWNER)
        assert answer.content == b"<script>"
        # a stored page must not run as a page of the api
        assert answer.headers["content-security-policy"] == "sandbox"
        assert answer.headers["x-content-type-options"] == "nosniff"
        await client.read(urls["data"], status=401)
