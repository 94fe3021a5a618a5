"""A change that is based on a stale revision, or a stale backup, changes nothing."""

from typing import Any

from inference_store.erasure.ledger import Ledger
from tests.integration.stored_inferences import NewInference, at

from .conftest import Api

MODEL = "/v1/models/model"
HOLD = {"name": "hallway", "reason": "file 47", "model_id": "model", "inference_ids": ["a"]}
POLICY = {"rules": [{"keep_input": "forever", "keep_inference": "forever"}]}
VIEW = {"name": "hallway", "model_id": "model", "filter": "camera = 'a'"}
METADATA = [{"key": "camera", "type": "string", "value": "b"}]


async def test_the_slower_of_two_is_told(api: Api) -> None:
    await api.store(NewInference("a", at(0), [("camera", "string", "a")]))
    for path, body in ((MODEL, {}), (f"{MODEL}/retention-policy", POLICY)):
        await api.call("PUT", path, body)
    holds = [(await api.ask("/v1/holds", HOLD, status=201))["id"] for _ in range(2)]
    views = [(await api.ask("/v1/views", VIEW | {"name": name}, status=201))["id"] for name in "ab"]
    edit: tuple[str, Any] = ("POST", {"metadata": METADATA})
    hold_change: tuple[str, Any] = ("PUT", HOLD | {"reason": "file 48"})
    view_change: tuple[str, Any] = ("PATCH", {"name": "yard"})
    # what is read, the path of its changes, a change, and one that comes later
    cases: list[tuple[str, str, tuple[str, Any], tuple[str, Any]]] = [
        (MODEL, "", ("PUT", {"name": "other"}), ("PUT", {"name": "other"})),
        (f"{MODEL}/retention-policy", "", ("PUT", POLICY), ("PUT", POLICY)),
        (f"{MODEL}/inferences/a", "/metadata", edit, edit),
        (f"/v1/holds/{holds[0]}", "", hold_change, hold_change),
        (f"/v1/holds/{holds[1]}", "?reason=closed", hold_change, ("DELETE", None)),
        (f"/v1/views/{views[0]}", "", view_change, view_change),
        (f"/v1/views/{views[1]}", "", ("PATCH", {"shared": "project"}), ("DELETE", None)),
    ]
    for read, suffix, (method, body), (late, late_body) in cases:
        revision = (await api.read(read))["revision"]
        headers = {"If-Match": f'"{revision}"'}
        await api.call(method, read + suffix.partition("?")[0], body, status=200, headers=headers)
        refused = await api.call(late, read + suffix, late_body, status=412, headers=headers)
        assert refused["errors"][0]["path"] == "header.if-match", late
        assert (await api.read(read))["revision"] == revision + 1, (read, late)


async def test_running_api_refuses_writes_to_a_rolled_back_database(api: Api) -> None:
    """The writer notices, since the number that it would write is taken."""
    await api.call("PUT", MODEL, {})
    await api.call("PUT", f"{MODEL}/retention-policy", POLICY)
    await api.execute("UPDATE ledger_head SET number = 0, hash = ''")
    refused = await api.ask("/v1/holds", HOLD, status=503)
    assert refused["type"] == "/docs/errors#ledger-apart"
    assert (await api.read("/v1/holds"))["items"] == []
    assert await Ledger(api.engine, api.blobs, prefix="ledger/").replay() == 1
    await api.ask("/v1/holds", HOLD, status=201)
