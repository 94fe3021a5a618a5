"""A route that does not say what it needs is not made, and one that never looks is a defect."""

import pytest
from fastapi import APIRouter

from inference_store.access.caller import ANYONE
from inference_store.access.rights import Right
from inference_store.api.access import Access, GuardedRoute, Needs, Over, needs
from inference_store.index.database import create_engine


async def _route() -> None: ...


def test_a_route_says_what_it_needs() -> None:
    router = APIRouter(route_class=GuardedRoute)
    with pytest.raises(TypeError, match="says what it needs"):
        router.add_api_route("/x", _route)
    router.add_api_route("/x", _route, openapi_extra=needs(Right.READ))


async def test_a_route_about_a_model_asks_for_it() -> None:
    engine = create_engine("postgresql://localhost/never-connected")
    with pytest.raises(RuntimeError, match=r"Access\.model"):
        await Access(ANYONE, None, Needs(Right.READ, Over.MODEL)).finish(engine)
    await Access(ANYONE, None, Needs(Right.READ, Over.SOME)).finish(engine)
