"""Exports and erasures that are asked for through the api, and carried out by a real process."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from inference_store.export.part_formats import PART_FORMATS
from tests.polling import until

Shown = dict[str, Any]


@dataclass(frozen=True)
class Exporting:
    """A caller of the api."""

    client: httpx.AsyncClient

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """Return what the api answers. Raises AssertionError if it refuses."""
        answer = await self.client.request(method, f"/v1{path}", json=body)
        assert answer.is_success, answer.text
        return answer.json()

    async def request_all(self) -> dict[str, str]:
        """Request an export of all in each format, with copies of blobs in those that can have
        them; return the id of each by its format."""
        path = "/models/model/exports"
        exports: dict[str, str] = {}
        for name, format in PART_FORMATS.items():
            body = {"format": name, "blobs": "copy" if format.copied else "links"}
            exports[name] = (await self.call("POST", path, body))["id"]
        return exports

    async def follow(self, exports: Mapping[str, str]) -> list[Shown]:
        """Return exports as they are now."""
        return [await self.call("GET", f"/exports/{export}") for export in exports.values()]

    async def wait_until_done(self, exports: Mapping[str, str], seconds: float = 180) -> None:
        """Wait until every part is written, and the manifests."""

        def are_done(shown: list[Shown]) -> bool:
            return {export["state"] for export in shown} == {"done"}

        await until(lambda: self.follow(exports), are_done, seconds=seconds)

    async def list_parts(self, export: str) -> list[Shown]:
        """Return the parts of an export. Who asks counts as having downloaded them."""
        parts = (await self.call("GET", f"/exports/{export}/parts?limit=1000"))["items"]
        return [part for part in parts if part["state"] != "removed"]

    async def erase(self, inference_ids: list[str]) -> str:
        """Request an erasure; return its id."""
        path, body = "/models/model/erasures", {"inference_ids": inference_ids}
        return str((await self.call("POST", path, body))["id"])

    async def wait_until_certified(self, erasure: str, seconds: float = 180) -> Shown:
        """Wait until an erasure has its certificate, and return the certificate's document."""

        async def list_certificates() -> list[Shown]:
            return list((await self.call("GET", f"/certificates?erasure={erasure}"))["items"])

        [item] = await until(list_certificates, bool, seconds=seconds)
        return dict((await self.call("GET", f"/certificates/{item['number']}"))["document"])

    async def list_erased(self, export: str) -> list[Shown]:
        """Return what erasures took of an export."""
        page = await self.call("GET", f"/exports/{export}/erased?limit=1000")
        assert page["next"] is None
        return list(page["items"])
