"""A living store whose every way of deleting is at work: who is what, what is asked for over HTTP
meanwhile, and a plain reading of what must be there in the end."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx

from tests.polling import until
from tests.producer import START, Capture, capture

DAYS = 5
# Two that a policy is for, one that is to be erased by a filter, one by a subject, one kept.
MODELS = ("expires", "loses-inputs", "asked", "subjects", "kept")
SUBJECT = "camera-1"
_OLD = START - timedelta(days=1, hours=12)
_OLD_TEXT = _OLD.isoformat().replace("+00:00", "Z")


def make_policy(inference: str, input: str = "") -> dict[str, Any]:
    """The body of a policy with one rule."""
    rule = {"name": "all", "keep_input": input or inference, "keep_inference": inference}
    return {"rules": [rule]}


def make_captures(numbers: range, models: Sequence[str] = MODELS) -> list[Capture]:
    """Captures of the models, of three cameras, each from 0 to 4 days old."""
    captures = [
        capture(
            number,
            model_id=MODELS[number % len(MODELS)],
            received_at=START - timedelta(days=find_age_days(number), milliseconds=-number),
        )
        for number in numbers
    ]
    return [item for item in captures if item.model_id in models]


def find_age_days(number: int) -> int:
    return number // (3 * len(MODELS)) % DAYS


def find_camera(item: Capture) -> str:
    return f"camera-{item.number % 3}"


def is_held_by_id(item: Capture) -> bool:
    return item.model_id == "asked" and item.number % 7 == 0


def survives(item: Capture) -> bool:
    """Check whether a capture is there in the end, whatever happened meanwhile."""
    age = find_age_days(item.number)
    if item.model_id == "expires":
        return age <= 2 or find_camera(item) == "camera-2"
    if item.model_id == "asked":
        return age <= 1 or is_held_by_id(item)
    return item.model_id != "subjects" or find_camera(item) != SUBJECT


def is_input_gone(item: Capture) -> bool:
    return item.model_id == "loses-inputs" and find_age_days(item.number) >= 2


@dataclass
class Asking:
    """A caller who repeats a call until the api answers: Postgres is busy, others are faster."""

    client: httpx.AsyncClient
    placed: dict[str, dict[str, Any]] = field(default_factory=dict)
    erasures: list[str] = field(default_factory=list)

    async def call_api(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        """The answer's body."""

        async def ask() -> httpx.Response:
            return await self.client.request(method, path, timeout=600, **more)

        answer = await until(ask, lambda response: response.status_code not in {412, 503})
        assert answer.is_success, answer.text
        return dict(answer.json()) if answer.content else {}

    async def decide(self, model_id: str, body: dict[str, Any]) -> None:
        """Set a policy that begins at once."""
        path = f"/v1/models/{model_id}/retention-policy"
        preview = await self.call_api("POST", f"{path}/preview", json=body)
        await self.call_api(
            "PUT", path, json=body | {"effective": "now", "token": preview["token"]}
        )

    async def hold(self, name: str, model_id: str, **which: Any) -> dict[str, Any]:
        body = {"name": name, "reason": "a file", "model_id": model_id, **which}
        self.placed[name] = await self.call_api("POST", "/v1/holds", json=body)
        return self.placed[name]

    async def release(self, name: str) -> None:
        path = f"/v1/holds/{self.placed[name]['id']}"
        await self.call_api("DELETE", path, params={"reason": "over"})

    async def erase(self, model_id: str, **which: Any) -> None:
        erasure = await self.call_api("POST", f"/v1/models/{model_id}/erasures", json=which)
        self.erasures.append(erasure["id"])

    async def begin(self, stored: Sequence[Capture]) -> None:
        """Set what is in force from the start, and what stays so."""
        ids = [f"inference-{item.number}" for item in stored if is_held_by_id(item)]
        await self.hold("by ids", "asked", inference_ids=ids)
        await self.hold("by a filter", "expires", filter="data_source = 'camera-2'")
        await self.hold("for a while", "asked", filter="data_source = 'camera-0'")
        await self.decide("expires", make_policy("P2DT12H"))
        await self.decide("loses-inputs", make_policy("P10000D", "P1DT12H"))

    @property
    def script(self) -> list[Callable[[], Awaitable[object]]]:
        """The steps to carry out during kills; at the end the same is in force as before."""
        return [
            lambda: self.erase("asked", filter=f"received_at < TIMESTAMP('{_OLD_TEXT}')"),
            lambda: self.decide("expires", make_policy("P3DT12H")),
            lambda: self.hold("amid", "expires", filter="data_source = 'camera-0'"),
            lambda: self.erase(
                "subjects", subject={"key": "data_source", "type": "string", "value": SUBJECT}
            ),
            lambda: self.decide("expires", make_policy("P2DT12H")),
            lambda: self.hold("of all", "loses-inputs", filter="frame_number >= 0"),
            lambda: self.release("for a while"),
            lambda: self.decide("loses-inputs", make_policy("P10000D", "P2DT12H")),
            lambda: self.release("amid"),
            lambda: self.decide("loses-inputs", make_policy("P10000D", "P1DT12H")),
            lambda: self.release("of all"),
        ]

    async def act(self, *, pause: float) -> None:
        """Carry the script out."""
        for step in self.script:
            await step()
            await asyncio.sleep(pause)
