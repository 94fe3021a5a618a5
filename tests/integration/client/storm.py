"""An api that refuses most requests, for a while, as a busy one does."""

import json
from collections import Counter
from random import Random
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

_STATUSES: Final = (429, 503)


class Storm:
    """ASGI: answers 429 or 503 instead of the app, with a probability, up to `most` in a row of the
    same address: so many a client bears, whatever else it asks meanwhile."""

    def __init__(self, app: ASGIApp, *, share: float, seed: int, most: int = 4) -> None:
        self._app, self._share, self._most = app, share, most
        self._chance, self._rows = Random(seed), Counter[str]()
        self.refused = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if self._chance.random() > self._share or self._rows[path] >= self._most:
            self._rows[path] = 0
            await self._app(scope, receive, send)
            return
        self._rows[path] += 1
        self.refused += 1
        status = self._chance.choice(_STATUSES)
        problem = {
            "type": "/docs/errors#busy",
            "title": "Busy",
            "status": status,
            "detail": "Later.",
        }
        body = json.dumps(problem | {"errors": []}).encode()
        headers = [(b"retry-after", b"0"), (b"content-type", b"application/problem+json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
