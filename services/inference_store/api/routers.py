"""The common part of every route under /v1.

A router has all of it when its routes are declared. FastAPI builds a route again whenever a router
with a prefix or dependencies of its own includes it, which would take a tenth of a second for each
app.
"""

from typing import Final

from fastapi import APIRouter, Depends
from fastapi.routing import APIRoute

from .access import GuardedRoute, finished
from .dependencies import ledger_agrees

PREFIX: Final = "/v1"


def make_router(tag: str) -> APIRouter:
    """Make a router of guarded routes under /v1, which the OpenAPI shows under this tag."""
    return APIRouter(
        prefix=PREFIX,
        route_class=GuardedRoute,
        tags=[tag],
        # The first dependency ends last: after it nothing of a request is open.
        dependencies=[Depends(finished, scope="function"), Depends(ledger_agrees)],
        generate_unique_id_function=_operation_id,
    )


def _operation_id(route: APIRoute) -> str:
    return route.name
