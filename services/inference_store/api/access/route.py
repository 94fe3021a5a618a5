"""The route class of everything under /v1: a request is authenticated before it is read."""

from collections.abc import Callable, Coroutine
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from inference_store.api.requests import ExactRoute

from .needs import read_needs


class GuardedRoute(ExactRoute):
    """An ExactRoute that declares what it needs, and checks it first."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        needed = read_needs(self.openapi_extra)

        async def handle(request: Request) -> Response:
            request.state.access = await request.app.state.authenticator.authenticate(
                request, needed
            )
            return await handler(request)

        return handle

    def charge(self, request: Request, size: int) -> None:
        """See ExactRoute."""
        request.app.state.authenticator.charge_undeclared(
            request, request.state.access.caller, size
        )
