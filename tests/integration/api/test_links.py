"""Links to the blobs of an inference expire; without links, the api's own routes serve blobs."""

from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from inference_store.inference.errors import Unauthorized
from inference_store.inference.events.event import Extras
from inference_store.objects.links import RouteLinks
from inference_store.platform.settings import BlobSettings
from tests.integration.stored_inferences import NewInference
from tests.polling import until
from tests.producer import capture, pack
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


async def test_a_link_to_a_member_of_a_segment_opens_that_member(
    api: Api, make_app: MakeApp
) -> None:
    segment = pack(capture(1, model_id="packed", data=b"plain text"), capture(2, model_id="packed"))
    api.put_blob(segment.key, segment.tar)
    extras = Extras(data_content_type="image/x-odd")
    for number, members in enumerate(segment.members):
        data, response, metadata = (
            f"{api.bucket}/{members[kind]}" for kind in ("data", "response", "metadata")
        )
        keys = (data, None if number else data, metadata)
        await api.store(
            NewInference(f"n/{number}", model_id="packed", keys=keys, extras=extras),
            NewInference(f"m/{number}", model_id="packed", keys=(data, response, metadata)),
        )
    path = "/v1/models/packed/inferences/n%2F0"
    on = {"auth": "on", "api_token": TOKEN}
    async with make_client(make_app(**on)) as client:
        inference = await client.call("GET", path, headers=OWNER)
        urls = inference["urls"]
        blob = f"/v1/models/packed/inferences/uid:{inference['uid']}/data"
        assert urls["data"].startswith(f"{blob}?expires=")
        answer = await client.get(urls["data"])
        assert (answer.status_code, answer.content) == (200, b"plain text")
        assert answer.headers["content-type"] == "image/x-odd"
        assert answer.headers["content-length"] == "10"
        assert answer.headers["content-security-policy"] == "sandbox"
        # of a response and of metadata the type is found as the proxy finds it
        types = [
            (await client.get(link)).headers["content-type"]
            for link in (urls["response"], urls["metadata"])
        ]
        assert types == ["text/plain; charset=utf-8", "application/json"]
        other = await client.call("GET", f"{path.replace('n%2F', 'm%2F')}/response", headers=OWNER)
        assert set(other) == {"outputs"}
        # nothing else, no other verb, not longer, and not with a signature that is made up
        end, signature = parse_qs(urlsplit(urls["data"]).query).values()
        signed = f"?expires={end[0]}&signature={signature[0]}"
        for moved in (f"{blob[:-5]}/metadata", blob[:-5], f"{blob[:-5]}/thumbnail", "/v1/me"):
            await client.read(f"{moved}{signed}", status=401)
        await client.read(f"{blob}?expires=9{end[0]}&signature={signature[0]}", status=401)
        await client.read(f"{blob}?expires={end[0]}&signature=%C3%A9", status=401)
        assert (await client.delete(f"{blob}{signed}")).status_code == 405
        # a key that comes with a link counts, and a link is no key
        wrong = {"Authorization": "Bearer made-up"}
        await client.call("GET", urls["data"], status=401, headers=wrong)
        reads = await client.call("GET", "/v1/audit?action=data_read&actor=link", headers=OWNER)
        assert [entry["uid"] for entry in reads["items"]] == [
            inference["uid"]
        ] * 2  # the response too
    async with make_client(make_app(presigned_url_seconds=1, **on)) as client:
        brief = (await client.call("GET", path, headers=OWNER))["urls"]["data"]

        async def refuse() -> str:
            answer = await client.get(brief)
            return "" if answer.is_success else str(answer.json()["detail"])

        assert "The link worked until" in await until(refuse, bool)
    # without a secret that all replicas share a link needs the caller's own key
    bare = RouteLinks(BlobSettings())
    assert bare.sign(blob, 60) == blob
    with pytest.raises(Unauthorized, match="signs no links"):
        bare.verify(blob, end[0], signature[0])
