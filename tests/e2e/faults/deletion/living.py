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

from .world import keeping

DAYS = 5
# Two that a policy is for, one that is to be erased by a filter, one by a subject, one kept.
MODELS = ("expires", "loses-inputs", "asked", "subjects", "kept")
SUBJECT = "camera-1"
_OLD = START - timedelta(days=1, hours=12)
_OLD_TEXT = _OLD.isoformat().replace("+00:00", "Z")


def received(numbers: range, models: Sequence[str] = MODELS) -> list[Capture]:
    """Captures of the models, of three cameras, each from 0 to 4 days old."""
    made = [
        capture(
            number,
            model_id=MODELS[number % len(MODELS)],
            received_at=START - timedelta(days=age_days(number), milliseconds=-number),
        )
        for number in numbers
    ]
    return [one for one in made if one.model_id in models]


def age_days(number: int) -> int:
    return number // (3 * len(MODELS)) % DAYS


def camera(one: Capture) -> str:
    return f"camera-{one.number % 3}"


def held_by_id(one: Capture) -> bool:
    return one.model_id == "asked" and one.number % 7 == 0


def survives(one: Capture) -> bool:
    """What is there in the end, whatever happened meanwhile."""
    age = age_days(one.number)
    if one.model_id == "expires":
        return age <= 2 or camera(one) == "camera-2"
    if one.model_id == "asked":
        return age <= 1 or held_by_id(one)
    return one.model_id != "subjects" or camera(one) != SUBJECT


def input_is_gone(one: Capture) -> bool:
    return one.model_id == "loses-inputs" and age_days(one.number) >= 2


@dataclass
class Asking:
    """Who asks the api, again and again until it answers: Postgres is busy, others are faster."""

    client: httpx.AsyncClient
    placed: dict[str, dict[str, Any]] = field(default_factory=dict)
    erasures: list[str] = field(default_factory=list)

    async def said(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        """The answer's body."""

        async def ask() -> httpx.Response:
            return await self.client.request(method, path, timeout=60, **more)

        answer = await until(ask, lambda found: found.status_code not in {412, 503})
        assert answer.is_success, answer.text
        return dict(answer.json()) if answer.content else {}

    async def decide(self, model_id: str, body: dict[str, Any]) -> None:
        """Set a policy that begins at once."""
        path = f"/v1/models/{model_id}/retention-policy"
        seen = await self.said("POST", f"{path}/preview", json=body)
        await self.said("PUT", path, json=body | {"effective": "now", "token": seen["token"]})

    async def hold(self, name: str, model_id: str, **which: Any) -> None:
        body = {"name": name, "reason": "a file", "model_id": model_id, **which}
        self.placed[name] = await self.said("POST", "/v1/holds", json=body)

    async def release(self, name: str) -> None:
        path = f"/v1/holds/{self.placed[name]['id']}"
        await self.said("DELETE", path, params={"reason": "over"})

    async def erase(self, model_id: str, **which: Any) -> None:
        asked = await self.said("POST", f"/v1/models/{model_id}/erasures", json=which)
        self.erasures.append(asked["id"])

    async def begin(self, stored: Sequence[Capture]) -> None:
        """What is in force from the start, and what stays so."""
        ids = [f"inference-{one.number}" for one in stored if held_by_id(one)]
        await self.hold("by ids", "asked", inference_ids=ids)
        await self.hold("by a filter", "expires", filter="data_source = 'camera-2'")
        await self.hold("for a while", "asked", filter="data_source = 'camera-0'")
        await self.decide("expires", keeping("P2DT12H"))
        await self.decide("loses-inputs", keeping("P10000D", "P1DT12H"))

    @property
    def script(self) -> list[Callable[[], Awaitable[None]]]:
        """One after the other, while there are kills; what is in force at its end is as before."""
        return [
            lambda: self.erase("asked", filter=f"received_at < TIMESTAMP('{_OLD_TEXT}')"),
            lambda: self.decide("expires", keeping("P3DT12H")),
            lambda: self.hold("amid", "expires", filter="data_source = 'camera-0'"),
            lambda: self.erase(
                "subjects", subject={"key": "data_source", "type": "string", "value": SUBJECT}
            ),
            lambda: self.decide("expires", keeping("P2DT12H")),
            lambda: self.hold("of all", "loses-inputs", filter="frame_number >= 0"),
            lambda: self.release("for a while"),
            lambda: self.decide("loses-inputs", keeping("P10000D", "P2DT12H")),
            lambda: self.release("amid"),
            lambda: self.decide("loses-inputs", keeping("P10000D", "P1DT12H")),
            lambda: self.release("of all"),
        ]

    async def act(self, *, pause: float) -> None:
        """Carry the script out."""
        for step in self.script:
            await step()
            await asyncio.sleep(pause)
