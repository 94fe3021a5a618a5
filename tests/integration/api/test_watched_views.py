"""Watched views: the numbers of saved questions on the metrics page of retention."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from inference_store.index import saved_views
from inference_store.platform.metrics import SHOWN
from inference_store.platform.settings import RetentionSettings
from inference_store.retention import watched_views
from inference_store.retention.run import set_gauges
from tests.integration.stored_inferences import NewInference, at
from tests.polling import until

from .conftest import Api
from .people import SUBJECT, erase, store_people

VIEWS = "/v1/views"
VIEW = {"name": "of bob", "model_id": "model", "filter": "person = 'bob'", "shared": "project"}
COUNTED = {"every": "PT1M", "of": {"function": "count"}}


@pytest.fixture
async def leading(api: Api, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """A retention service that leads, and looks for watched views all the time."""
    monkeypatch.setattr(watched_views, "_LOOK_SECONDS", 0.05)
    await store_people(api)
    async with set_gauges(api.engine, RetentionSettings.model_construct()):
        yield
    assert read_series("") == {}


def read_series(kind: str) -> dict[str, float]:
    """Return the series of a metric of watched views, by the name of the view."""
    page = generate_latest(SHOWN["retention"]).decode()
    return {
        sample.labels["name"]: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == f"inference_store_saved_query{kind}"
    }


async def until_series(wanted: dict[str, float], kind: str = "") -> None:
    async def read() -> dict[str, float]:
        return read_series(kind)

    await until(read, lambda series: series == wanted)


async def save_view(api: Api, watch: Any = COUNTED, *, status: int = 201, **more: Any) -> Any:
    return await api.ask(VIEWS, VIEW | {"watch": watch} | more, status=status)


@pytest.mark.usefixtures("leading")
async def test_shows_number_until_view_is_changed_deleted_or_erased(api: Api) -> None:
    saved = await save_view(api)
    assert saved["watch"] == COUNTED
    await until_series({"of bob": 3})
    counted = {"filter": VIEW["filter"]}
    assert (await api.ask("/v1/models/model/inferences/count", counted))["count"] == 3
    assert read_series("_timestamp_seconds")["of bob"] > 0
    path = f"{VIEWS}/{saved['id']}"
    await api.call("PATCH", path, {"filter": "n > 3", "name": "late"})
    await until_series({"late": 2})
    await api.call("PATCH", path, {"watch": COUNTED | {"of": {"function": "mean", "of": "n"}}})
    await until_series({"late": 4.5})
    most = {"function": "percentiles", "of": {"name": "n"}, "at": [99.5]}
    assert (await api.call("PATCH", path, {"watch": COUNTED | {"of": most}}))["watch"]["of"] == most
    await until_series({"late": 5})
    await save_view(api, name="of ann", filter="person = 'ann'")
    await until_series({"late": 5, "of ann": 3})
    await erase(api, SUBJECT)
    await until_series({"late": 5})
    erased = [view for view in (await api.read(VIEWS))["items"] if view["erased_by"]]
    assert [view["watch"] for view in erased] == [None]
    await api.call("PATCH", path, {"watch": None})
    await until_series({})
    await api.call("PATCH", path, {"watch": {"every": COUNTED["every"]}})
    await until_series({"late": 1})
    await api.call("DELETE", path)
    await until_series({})


@pytest.mark.usefixtures("leading")
async def test_failing_view_has_no_number_and_does_not_hold_up_others(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = NewInference("odd", at(9), [("fresh", "int", "1")])
    await api.store(odd)
    await save_view(api, name="of a key", filter="fresh = 1")
    await until_series({"of a key": 1})
    await erase(api, {"filter": "fresh = 1"})
    [view] = (await api.read(VIEWS))["items"]
    # read again at once, as it would be in a minute
    await api.call("PATCH", f"{VIEWS}/{view['id']}", {"time": "1h"}, status=200)
    await until_series({"of a key": 1}, "_failed")
    assert read_series("") == {}
    none = {"every": "PT1M", "of": {"function": "mean", "of": "n"}}
    await save_view(api, none, name="of none", filter="n > 100")
    await until_series({"of a key": 1, "of none": 0}, "_failed")
    assert str(read_series("")["of none"]) == "nan"
    monkeypatch.setattr(watched_views, "_QUERY_SECONDS", 0.0)
    await save_view(api, name="slow", filter=None)
    await until_series({"of a key": 1, "of none": 0, "slow": 1}, "_failed")


async def test_refuses_what_cannot_be_watched(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await store_people(api)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"watch": COUNTED | {"every": "PT30S"}}, "watch.every"),
        ({"watch": COUNTED | {"every": "P1M"}}, "watch.every"),
        ({"watch": COUNTED | {"of": {"function": "top", "of": "person"}}}, "watch.of.function"),
        ({"watch": COUNTED | {"of": {"function": "percentiles", "of": "n"}}}, "watch.of.at"),
        ({"watch": COUNTED | {"of": {"function": "mean", "of": "nn"}}}, "watch.of.of"),
        ({"watch": COUNTED | {"of": {"function": "max", "of": "person"}}}, "watch.of.of"),
        ({"watch": COUNTED, "shared": "private"}, "watch"),
    ]
    for wrong, field in cases:
        [fault] = (await save_view(api, status=422, **wrong))["errors"]
        assert fault["path"] == field, (wrong, fault)
    monkeypatch.setattr(saved_views, "MOST_WATCHED", 1)
    path = f"{VIEWS}/{(await save_view(api))['id']}"
    await api.call("PATCH", path, {"shared": "private"}, status=422)
    await save_view(api, name="second", status=409)
    other = await save_view(api, None, name="second")
    await api.call("PATCH", f"{VIEWS}/{other['id']}", {"watch": COUNTED}, status=409)
    await api.call("PATCH", path, {"watch": None, "shared": "private"})
    await api.call("PATCH", f"{VIEWS}/{other['id']}", {"watch": COUNTED})
