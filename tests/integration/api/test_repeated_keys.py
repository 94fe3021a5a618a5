"""A key that one inference has several times: every value is found, shown, held and erased."""

from typing import Any

from tests.integration.stored_inferences import NewInference, at

from .conftest import Api
from .people import erase, place_hold, read_erasure, release_hold, request_erasure

_M = "/v1/models/model"
_P1, _P2 = ("person_id", "string", "p-1044"), ("person_id", "string", "p-2000")
_JSON = ("person_id.of", "string", "flat"), ("person_id", "json", '{"of": "path"}')
_STORED = (
    NewInference("both", at(1), [_P1, ("n", "int", "1"), _P2, ("n", "int", "9")]),
    NewInference("one", at(2), [_P2, ("n", "int", "5")]),
    NewInference("alike", at(3), _JSON),
)


async def store_repeated(api: Api) -> None:
    """Store the inference with one value first, so that the key is known with one."""
    for inference in reversed(_STORED):
        await api.store(inference)


async def test_each_value_is_found_counted_and_shown(api: Api) -> None:
    await store_repeated(api)
    found: list[tuple[str, set[str]]] = [
        ("person_id = 'p-1044'", {"both"}),
        ("person_id = 'p-2000'", {"both", "one"}),
        ("person_id <> 'p-2000'", {"both"}),
        ("NOT (person_id = 'p-1044')", {"one"}),
        ("n BETWEEN 4 AND 6", {"one"}),
        ("n > 0", {"both", "one"}),
        ("\"person_id.of\" = 'flat'", {"alike"}),
        ("\"person_id.of\" = 'path'", {"alike"}),
        ("sent(person_id)", {"both", "one", "alike"}),
    ]
    for filter_text, expected in found:
        body = {"filter": filter_text}
        assert sorted(await api.find_ids(**body)) == sorted(expected), filter_text
        count = await api.ask(f"{_M}/inferences/count", body)
        assert count["count"] == len(expected), filter_text
    for sort, expected_order in (("n", ["both", "one"]), ("-n", ["both", "one"])):
        assert (await api.find_ids(sort=sort, filter="n > 0")) == expected_order
    [item] = (
        await api.ask(f"{_M}/inferences/query", {"filter": "n = 9", "include": ["metadata"]})
    )["items"]
    values = [(entry["key"], entry["value"]) for entry in item["metadata"]]
    assert values == [("person_id", "p-1044"), ("n", "1"), ("person_id", "p-2000"), ("n", "9")]
    shown = await api.read(f"{_M}/inferences/both", metadata_as="object")
    assert shown["metadata"] == {"person_id": ["p-1044", "p-2000"], "n": [1, 9]}


async def test_each_value_is_held_and_erased(api: Api) -> None:
    await store_repeated(api)
    subject: dict[str, Any] = {"subject": {"key": "person_id", "value": "p-1044"}}
    estimate = await api.ask(f"{_M}/erasures", {**subject, "dry_run": True})
    assert estimate["inferences"] == 1
    hold = await place_hold(api, filter="person_id = 'p-2000'")
    requested = await request_erasure(api, subject)
    await api.run_retention()
    assert (await read_erasure(api, requested))["state"] == "partly_held"
    assert "both" in await api.find_ids()
    await release_hold(api, hold)
    await api.run_retention()
    erased = await read_erasure(api, requested)
    assert (erased["state"], erased["inferences"]) == ("deleted", 1)
    assert sorted(await api.find_ids()) == ["alike", "one"]
    by_path = await erase(api, {"subject": {"key": "person_id.of", "value": "path"}})
    assert by_path["inferences"] == 1
