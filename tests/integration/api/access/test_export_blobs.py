"""Exports with links or copies need the right to see inputs: to request them, and to read them."""

import pytest

from .conftest import OPEN, Keys

_PATH = f"/v1/models/{OPEN}/exports"
pytestmark = pytest.mark.usefixtures("two_models")


@pytest.mark.parametrize(
    "body",
    [{"blobs": "links"}, {"blobs": "copy"}, {"format": "webdataset"}],
    ids=["links", "copy", "webdataset"],
)
async def test_blobs_need_the_right_to_see_inputs(keys: Keys, body: dict[str, str]) -> None:
    exporter = await keys.make({"rights": ["read", "export"], "model_id": OPEN})
    refused = await keys.ask(exporter, "POST", _PATH, body)
    assert refused.status_code == 403
    assert "`read_inputs`" in refused.json()["detail"]
    assert (await keys.ask(exporter, "POST", _PATH, {**body, "blobs": "none"})).status_code == 202
    analyst = await keys.make({"role": "analyst", "model_id": OPEN})
    export = await keys.ask(analyst, "POST", _PATH, body)
    assert export.status_code == 202
    path = f"/v1/exports/{export.json()['id']}"
    for route in ("/parts", "/parts/1"):
        assert (await keys.ask(exporter, "GET", path + route)).status_code == 403
    assert (await keys.ask(exporter, "GET", path)).status_code == 200
    assert (await keys.ask(analyst, "GET", f"{path}/parts")).status_code == 200
