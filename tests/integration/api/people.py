"""Inferences of two people, ann and bob; erasures of them, and holds that keep them."""

from typing import Any

from inference_store.erasure.progress.erasure import Erasure, find_erasures
from tests.integration.stored_inferences import NewInference, at

from .api_client import Api

ERASURES = "/v1/models/model/erasures"
ACROSS = "/v1/erasures"
SUBJECT = {"subject": {"key": "person", "value": "ann"}}
ANY_TIME = "received_at > TIMESTAMP('2000-01-01T00:00:00Z')"


def make_person(number: int, who: str, **more: Any) -> NewInference:
    items = [("person", "string", who), ("n", "int", number)]
    return NewInference(f"i{number}", at(number), items, **more)


async def store_people(api: Api, model_id: str = "model") -> None:
    """Store six inferences of a model, of ann and bob in turn, each with an object."""
    await api.store(
        *(
            make_person(
                n,
                ("ann", "bob")[n % 2],
                keys=(api.put_blob(f"{model_id}/d{n}", b"x"), None, None),
                model_id=model_id,
            )
            for n in range(6)
        )
    )


async def request_erasure(api: Api, body: Any, path: str = ERASURES) -> dict[str, Any]:
    answer = await api.post(path, json=body)
    assert answer.status_code == 202, answer.text
    erasure: dict[str, Any] = answer.json()
    assert answer.headers["Location"] == f"/v1/erasures/{erasure['id']}"
    return erasure


async def read_erasure(api: Api, requested: dict[str, Any]) -> dict[str, Any]:
    erasure: dict[str, Any] = await api.read(f"/v1/erasures/{requested['id']}")
    return erasure


async def erase(api: Api, body: Any, path: str = ERASURES) -> dict[str, Any]:
    """Request an erasure, run a turn of retention, and return what became of it."""
    requested = await request_erasure(api, body, path)
    await api.run_retention()
    return await read_erasure(api, requested)


async def find_only_erasure(api: Api) -> Erasure:
    """Return the only erasure as retention reads it."""
    async with api.engine.connect() as connection:
        [erasure] = await find_erasures(connection)
    return erasure


async def place_hold(api: Api, filter: str | None = None, **more: Any) -> str:
    """Place a hold on the model `model`, if `more` names no other; return its id."""
    values = {"name": "a case", "reason": "a file", "model_id": "model", "filter": filter}
    return str((await api.ask("/v1/holds", values | more, status=201))["id"])


async def release_hold(api: Api, hold: str, reason: str = "over") -> None:
    await api.call("DELETE", f"/v1/holds/{hold}", params={"reason": reason})
