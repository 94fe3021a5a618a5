"""What a notebook shows: bounded, escaped, and asked for only when it is shown."""

import json
from typing import Any

import httpx

from inference_store_client.previewing import MOST_PICTURES
from tests.both_clients import Client, Recorded, make_item, make_problem

from .datasets.fake_pictures import make_prediction


def make_page(*items: dict[str, Any]) -> httpx.Response:
    body: dict[str, Any] = {"items": items, "next": None, "searched_back_to": None, "warnings": []}
    return httpx.Response(200, json=body)


def make_thumbnail(item: dict[str, Any], **changes: Any) -> dict[str, Any]:
    thumbnail = {"uid": item["uid"], "content_type": "image/jpeg", "width": 240, "height": 120}
    size = {"picture_width": 1920, "picture_height": 960}
    return {**thumbnail, **size, "data": "AAAA", "problem": None, **changes}


def make_shown(number: int, **changes: Any) -> dict[str, Any]:
    prediction = make_prediction(0, "<b>", (10.0, 20.0, 110.0, 60.0))
    return make_item(number, metadata=[], predictions=[prediction], **changes)


async def test_pictures_have_their_boxes_and_nothing_is_markup(client: Client) -> None:
    items = [make_shown(1, inference_id="<script>"), make_shown(2, flags=["box_in_shares"])]
    thumbnails = {"items": [make_thumbnail(items[0]), make_thumbnail(items[1], data=None)]}
    recorded = Recorded([make_page(*items), httpx.Response(200, json=thumbnails)])
    inferences = client.make_answered(recorded).model("m").inferences(include=[])
    html = await client.ask(inferences.html)
    assert json.loads(recorded.requests[0].content)["include"] == ["predictions"]
    assert '<rect x="10" y="20" width="100" height="40"' in html
    assert 'viewBox="0 0 1920 960"' in html
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    assert "<b>" not in html
    assert html.count("<image") == 1
    body = json.loads(recorded.requests[1].content)
    assert body == {"uids": [item["uid"] for item in items], "edge": 240}


async def test_it_is_bounded_and_says_that_there_are_more(client: Client) -> None:
    items = [make_shown(number) for number in range(MOST_PICTURES + 1)]
    recorded = Recorded([make_page(*items), make_problem(403)])
    html = await client.ask(client.make_answered(recorded).model("m").inferences().html)
    assert "and more" in html
    assert html.count("frame-") == MOST_PICTURES
    assert "<image" not in html
    assert json.loads(recorded.requests[0].content)["limit"] == MOST_PICTURES + 1
    assert len(json.loads(recorded.requests[1].content)["uids"]) == MOST_PICTURES


async def test_an_error_is_shown_in_its_place(client: Client) -> None:
    recorded = Recorded([make_problem(422), make_page()])
    inferences = client.make_answered(recorded).model("m").inferences()
    assert "InvalidRequest: 422" in await client.ask(inferences.html)
    assert "No inference matches" in await client.ask(inferences.html)


def test_a_repr_asks_nothing(client: Client) -> None:
    recorded = Recorded([])
    store = client.make_answered(recorded)
    model = store.model("m")
    assert all(map(repr, (store, model, model.inferences("n > 1"), store.inferences())))
    assert not recorded.requests
