"""Exports of the model `model`: requested, followed, downloaded."""

import json
from typing import Any

import httpx

from inference_store.inference.events import StorageKey

from .api_client import Api

EXPORTS = "/v1/models/model/exports"


async def request_export(api: Api, **body: Any) -> dict[str, Any]:
    answer = await api.post(EXPORTS, json=body)
    assert answer.status_code == 202, answer.text
    export: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/v1/exports/{export['id']}"
    return export


async def read_export(api: Api, export: dict[str, Any]) -> dict[str, Any]:
    """Return an export as it is now."""
    return dict(await api.read(f"/v1/exports/{export['id']}"))


async def list_parts(api: Api, export: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of an export, with links."""
    return list((await api.read(f"/v1/exports/{export['id']}/parts"))["items"])


async def download(part: dict[str, Any]) -> bytes:
    """Return what a part's presigned link leads to."""
    async with httpx.AsyncClient(timeout=120) as client:
        return (await client.get(part["url"])).content


def read_object(api: Api, export: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a JSON object of an export in the bucket."""
    key = StorageKey(api.bucket, f"exports/{export['id']}/{name}")
    return dict(json.loads(api.blobs.get(key, limit=1_000_000)))


def list_keys(api: Api) -> list[str]:
    """Return the keys of all exports in the bucket."""
    listed = api.blobs.page(api.bucket, "exports/", after="", limit=1000)
    return [item.place.key for item in listed]
