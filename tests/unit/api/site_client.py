"""A client of an app that serves files alone."""

from collections.abc import Sequence

import httpx
from fastapi import FastAPI
from starlette.routing import BaseRoute

from inference_store.api.middleware import Foreground, Surroundings


def make_site_client(routes: Sequence[BaseRoute]) -> httpx.AsyncClient:
    """Return a client of an app with these routes and what surrounds those of `create_app`."""
    app = FastAPI(redirect_slashes=False, routes=list(routes), docs_url=None)
    app.middleware_stack = Surroundings(app.router, Foreground())
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://api")
