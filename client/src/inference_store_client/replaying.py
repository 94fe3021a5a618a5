"""Replays that the store carries out: requested, waited for, read."""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from inference_store_client import reading
from inference_store_client.errors import ReplayFailed
from inference_store_client.json_text import Json
from inference_store_client.requests import make_path, make_request
from inference_store_client.transport import Asking, Transport, asks, yields
from inference_store_client.values.answers import Listing
from inference_store_client.values.replays import OVER, ReplayDifference, ReplayFields

ReplayT = TypeVar("ReplayT", bound=ReplayFields)
_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayMethods(ReplayFields, Asking, Generic[ReplayT]):
    """A replay, and what can be done with it."""

    _transport: Transport = field(repr=False, compare=False)

    @asks
    async def refresh(self) -> ReplayT:
        """Return the replay as it is now."""
        return await self._ask("GET")

    @asks
    async def wait(self, progress: Callable[[ReplayT], object] | None = None) -> ReplayT:
        """Return the replay once all answers are compared; `progress` gets it every second until
        then. Raises ReplayFailed if it fails or is cancelled."""
        while (replay := await self._ask("GET")).state not in OVER:
            if progress is not None:
                progress(replay)
            await self._transport.sleep(_SECONDS)
        if replay.state != "done":
            raise ReplayFailed(f"the replay {self.id} is {replay.state}: {replay.error or ''}")
        return replay

    @yields
    def differences(self, *states: str) -> AsyncIterator[ReplayDifference]:
        """Yield what was compared, what disagrees most first; or what is in these states, such as
        `skipped` and `missing`."""
        params = {"state": states} if states else None
        kind = Listing[ReplayDifference]
        return reading.read_list(self._transport, self._path("differences"), kind, params)

    @asks
    async def cancel(self) -> ReplayT:
        """Send nothing more."""
        return await self._ask("POST", "cancel")

    @asks
    async def restart(self) -> ReplayT:
        """Send the same question again: return another replay."""
        return await self._ask("POST", "restart")

    def _path(self, *more: str) -> str:
        return make_path("models", self.model_id, "replays", str(self.id), *more)

    async def _ask(self, method: str, *more: str) -> ReplayT:
        request = make_request(method, self._path(*more))
        members = await reading.request_any(self._transport, request)
        replay: ReplayT = self._maker(type(self))(members)  # type: ignore[assignment]
        return replay


async def request_replay(transport: Transport, model_id: str, body: Mapping[str, Any]) -> Json:
    """Request a replay; what is None is left out."""
    given = {name: value for name, value in body.items() if value is not None}
    request = make_request("POST", make_path("models", model_id, "replays"), body=given)
    return await reading.request_any(transport, request)
