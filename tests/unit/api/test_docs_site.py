"""The site of the docs, as the api serves it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import httpx
import pytest
from fastapi import FastAPI

from inference_store.api import problems
from inference_store.api.docs_site import list_routes
from inference_store.api.paths import EscapedPaths
from inference_store.api.security_headers import SecurityHeaders
from inference_store.api.templates import Templates


def make_client(site: Path) -> httpx.AsyncClient:
    """Return a client of an app that serves a site, as `create_app` does."""
    app = FastAPI(redirect_slashes=False, routes=list_routes(site), docs_url=None)
    app.state.templates = Templates([])
    problems.handle_problems(app)
    app.add_middleware(EscapedPaths)
    app.add_middleware(SecurityHeaders)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://api")


PAGES: Final = (
    *("index.html", "search.html", "reference/errors.html", "reference/search.html"),
    *("how-to/twice.html", "reference/twice.html", "explanation/decisions/index.html"),
    "_static/a.css",
)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    site = tmp_path / "site"
    for name in PAGES:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(f"this is {name}")
    (tmp_path / "secret.html").write_text("secret")
    (site / "link.html").symlink_to(tmp_path / "secret.html")
    async with make_client(site) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/docs/", "index.html"),
        ("/docs/index.html", "index.html"),
        ("/docs/reference/errors", "reference/errors.html"),
        ("/docs/reference/errors.html", "reference/errors.html"),
        ("/docs/search.html", "search.html"),
        ("/docs/explanation/decisions/", "explanation/decisions/index.html"),
        ("/docs/_static/a.css", "_static/a.css"),
    ],
)
async def test_serves_files_of_the_site(client: httpx.AsyncClient, path: str, name: str) -> None:
    answer = await client.get(path)
    assert (answer.status_code, answer.text) == (200, f"this is {name}")
    assert answer.headers["content-type"].startswith("text/")
    again = await client.get(path, headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304


@pytest.mark.parametrize("path", ["/docs", "/docs/explanation/decisions"])
async def test_leads_to_a_folder(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path, headers={"Host": "elsewhere.example"})
    assert answer.status_code == 307
    # relative: no host of the caller's, and right behind a proxy with a prefix too
    assert answer.headers["location"] == f"{path.rsplit('/', maxsplit=1)[-1]}/"


@pytest.mark.parametrize("path", ["/docs/errors", "/docs/errors.html"])
async def test_leads_to_a_page_without_its_folder(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path)
    # relative, and without a fragment: a browser keeps that of the link
    assert (answer.status_code, answer.headers["location"]) == (307, "reference/errors.html")


@pytest.mark.parametrize(
    "path",
    [
        "/docs/../secret.html",
        "/docs/../secret",
        "/docs/explanation/../../secret.html",
        "/docs/%2e%2e/secret.html",
        "/docs/..%2fsecret.html",
        "/docs/%2e%2e%2fsecret",
        "/docs/..\\secret.html",
        "/docs//etc/passwd",
        "/docs/%2fetc%2fpasswd",
        "/docs/link.html",
        "/docs/link",
        "/docs/nowhere",
        "/docs/twice",
        "/docs/a",
        "/docs/%00",
        f"/docs/{'x' * 5000}",
    ],
)
async def test_serves_nothing_else(client: httpx.AsyncClient, path: str) -> None:
    # as it is: a client would resolve the dots
    url = httpx.URL("http://api").copy_with(raw_path=path.encode())
    answer = await client.send(httpx.Request("GET", url, headers={"Host": "api"}))
    assert "secret" not in answer.text
    assert "root:" not in answer.text
    assert answer.json()["type"] == "/docs/errors#not-found"


async def test_other_methods_are_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post("/docs/errors")
    assert answer.status_code == 405


@pytest.mark.parametrize("path", ["/docs/", "/docs/errors", "/docs/x/y"])
async def test_says_that_the_site_was_not_built(tmp_path: Path, path: str) -> None:
    async with make_client(tmp_path / "none") as client:
        answer = await client.get(path)
    assert answer.status_code == 404
    assert "make docs" in answer.json()["detail"]


async def test_its_policy_allows_its_own_files_alone(client: httpx.AsyncClient) -> None:
    answer = await client.get("/docs/")
    policy = dict(
        part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert "unsafe" not in policy["script-src"]
    assert all(
        source.startswith(("'", "data:"))
        for sources in policy.values()
        for source in sources.split()
    )
    assert answer.headers["x-content-type-options"] == "nosniff"
