"""The matches before and after an inference, and the cursors of items."""

from typing import Any
from uuid import UUID

from tests.integration.stored_inferences import NewInference, at

from .conftest import Api

_PATH = "/v1/models/model/inferences"
_INFERENCES = [NewInference(f"id-{n}", at(n * 40_000), [("n", "int", str(n))]) for n in range(8)]


async def _find_neighbours(api: Api, uid: UUID, **question: Any) -> tuple[Any, Any]:
    neighbours = await api.ask(f"{_PATH}/neighbours", {"uid": str(uid), **question})
    assert neighbours["complete"]
    before, after = (
        side and side["inference_id"] for side in (neighbours["before"], neighbours["after"])
    )
    return before, after


async def test_before_and_after_inside_a_filter_or_none(api: Api) -> None:
    """The inference itself need not match, and may be erased."""
    await api.store(*_INFERENCES)
    window = {"from": at(80_000).isoformat()}
    cases: list[tuple[int, dict[str, Any], tuple[Any, Any]]] = [
        (3, {}, ("id-4", "id-2")),
        (0, {}, ("id-1", None)),
        (7, {}, (None, "id-6")),
        (3, {"sort": "received_at"}, ("id-2", "id-4")),
        (3, {"filter": "n IN (1, 5)"}, ("id-5", "id-1")),
        (2, {"received_at": window}, ("id-3", None)),
    ]
    for number, question, expected in cases:
        found = await _find_neighbours(api, _INFERENCES[number].uid, **question)
        assert found == expected, (number, question)
    answer = await api.ask(f"{_PATH}/neighbours", {"uid": str(_INFERENCES[3].uid)})
    assert answer["before"] == {
        "uid": str(_INFERENCES[4].uid),
        "inference_id": "id-4",
        "received_at": at(160_000).isoformat(timespec="microseconds").replace("+00:00", "Z"),
    }
    for erased in ("id-3", "id-4"):
        await api.call("DELETE", f"{_PATH}/{erased}", status=202)
    assert await _find_neighbours(api, _INFERENCES[3].uid) == ("id-5", "id-2")


_POINT = "distance(location, POINT(13 52))"
_SORTS = ("n", "frame", "tags[]", "top_label", "model_ms", "inference_id", "inference_ids", _POINT)


def _make_irregular(number: int) -> NewInference:
    """Return an inference whose values are equal to others, multiple, or missing."""
    items = [("n", "int", str(number // 2)), ("tags", "json", f'["b{number % 3}", "a{number}"]')]
    if number % 4:
        items += [("frame", "int", str(7 - number)), ("latitude", "float", str(52 + number % 5))]
        items += [("longitude", "float", "13")]
    labels = [(f"label-{number % 3}", 0.5)] if number % 2 else []
    aliases = (f"alias-{9 - number}",)
    return NewInference(f"id-{number}", at(number * 40_000), items, labels, aliases)


async def test_neighbours_match_the_page_in_any_order(api: Api) -> None:
    """Check each inference of the page, with and without a value to sort by."""
    await api.store(*(_make_irregular(index) for index in range(10)))
    sorts = [f"{descending}{sort}" for descending in ("", "-") for sort in _SORTS]
    for question in [{"sort": sort, "filter": f} for sort in sorts for f in (None, "n > 0")]:
        page = (await api.ask(f"{_PATH}/query", question))["items"]
        ids = [None, *(item["inference_id"] for item in page), None]
        assert len(ids) == (12 if question["filter"] is None else 10), question
        for index, item in enumerate(page, 1):
            neighbours = await _find_neighbours(api, UUID(item["uid"]), **question)
            assert neighbours == (ids[index - 1], ids[index + 1]), (question, ids[index])


async def test_pages_continue_after_any_item_and_other_orders_require_it(api: Api) -> None:
    await api.store(*_INFERENCES)
    for sort in ("-received_at", "received_at", "n", "-n"):
        question = {"sort": sort, "limit": 8}
        items = (await api.ask(f"{_PATH}/query", {**question, "cursors": True}))["items"]
        cursors = [{"uid": item["uid"], "cursor": item["cursor"]} for item in items]
        for index, item in enumerate(items):
            body = {**question, "cursor": item["cursor"], "fields": ["uid"], "cursors": True}
            rest = (await api.ask(f"{_PATH}/query", body))["items"]
            assert rest == cursors[index + 1 :], (sort, index)
        plain = (await api.ask(f"{_PATH}/query", question))["items"]
        assert not any("cursor" in other for other in plain), sort
    uid = {"uid": str(UUID(int=1))}
    for wrong in ({}, {"uid": "id-3"}, uid | {"filter": "n <"}, uid | {"sort": "m"}):
        await api.ask(f"{_PATH}/neighbours", wrong, status=422)
    # An inference that does not match has a position in the order; an erased one has none.
    other = {"sort": "-n", "filter": "n <> 3"}
    assert await _find_neighbours(api, _INFERENCES[3].uid, **other) == ("id-4", "id-2")
    window = {"received_at": {"from": at(160_000).isoformat()}}
    assert await _find_neighbours(api, _INFERENCES[3].uid, sort="n", **window) == (None, "id-4")
    await api.call("DELETE", f"{_PATH}/id-3", status=202)
    await api.ask(f"{_PATH}/neighbours", {"uid": str(_INFERENCES[3].uid), **other}, status=404)
    assert await _find_neighbours(api, _INFERENCES[2].uid, **other) == ("id-4", "id-1")
