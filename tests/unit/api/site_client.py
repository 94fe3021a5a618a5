"""A client of an app that serves files alone."""

from collections.abc import Sequence

import httpx
from fastapi import FastAPI
from starlette.routing import BaseRoute

from inference_store.api import answer
from inference_store.api.http import compress, match_escaped
from inference_store.api.middleware import add_security_headers


def make_site_client(routes: Sequence[BaseRoute]) -> httpx.AsyncClient:
    """Return a client of an app with these routes and the layers that `create_app` adds."""
    app = FastAPI(redirect_slashes=False, routes=list(routes), docs_url=None)
    answer.handle_problems(app)
    app.add_middleware(compress)
    app.add_middleware(match_escaped)
    app.add_middleware(add_security_headers)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://api")
