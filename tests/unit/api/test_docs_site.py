"""The site of the docs, as the api serves it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import httpx
import pytest

from inference_store.api.site import list_docs_routes

from .site_client import make_site_client

PAGES: Final = (
    *("index.html", "search.html", "reference/errors.html", "reference/search.html"),
    *("how-to/twice.html", "reference/twice.html", "reference/folder/index.html"),
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
    async with make_site_client(list_docs_routes(site)) as client:
        yield client


async def test_serves_files_of_the_site(client: httpx.AsyncClient) -> None:
    for path, name in (
        ("/docs/", "index.html"),
        ("/docs/index.html", "index.html"),
        ("/docs/reference/errors", "reference/errors.html"),
        ("/docs/reference/errors.html", "reference/errors.html"),
        ("/docs/search.html", "search.html"),
        ("/docs/reference/folder/", "reference/folder/index.html"),
        ("/docs/_static/a.css", "_static/a.css"),
    ):
        answer = await client.get(path)
        assert (answer.status_code, answer.text) == (200, f"this is {name}"), path
        assert answer.headers["content-type"].startswith("text/"), path
        again = await client.get(path, headers={"If-None-Match": answer.headers["etag"]})
        assert again.status_code == 304, path


async def test_leads_to_a_folder_and_to_a_page(client: httpx.AsyncClient) -> None:
    for path, location in (
        # relative: no host of the caller's, and right behind a proxy with a prefix too
        ("/docs", "docs/"),
        ("/docs/reference/folder", "folder/"),
        # without a fragment: a browser keeps that of the link
        ("/docs/errors", "reference/errors.html"),
        ("/docs/errors.html", "reference/errors.html"),
    ):
        answer = await client.get(path, headers={"Host": "elsewhere.example"})
        assert (answer.status_code, answer.headers["location"]) == (307, location), path


async def test_serves_nothing_else(client: httpx.AsyncClient) -> None:
    for path in (
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
    ):
        # as it is: a client would resolve the dots
        url = httpx.URL("http://api").copy_with(raw_path=path.encode())
        answer = await client.send(httpx.Request("GET", url, headers={"Host": "api"}))
        assert "secret" not in answer.text, path
        assert "root:" not in answer.text, path
        assert answer.json()["type"] == "/docs/errors#not-found", path
    assert (await client.post("/docs/errors")).status_code == 405


async def test_says_that_the_site_was_not_built(tmp_path: Path) -> None:
    async with make_site_client(list_docs_routes(tmp_path / "none")) as client:
        page = await client.get("/docs/how-to/holds.html", headers={"Accept": "text/html,*/*"})
        assert (page.status_code, page.headers["content-type"][:9]) == (404, "text/html")
        assert "make docs" in page.text
        assert 'href="../../console/"' in page.text
        for path in ("/docs/", "/docs/errors", "/docs/x/y"):
            answer = await client.get(path)
            assert answer.status_code == 404
            assert "make docs" in answer.json()["detail"]


async def test_its_policy_allows_its_own_files_alone(client: httpx.AsyncClient) -> None:
    answer = await client.get("/docs/")
    parts = answer.headers["content-security-policy"].split(";")
    policy = dict(part.strip().split(" ", 1) for part in parts)
    assert policy["default-src"] == "'none'"
    assert "unsafe" not in policy["script-src"]
    sources = " ".join(policy.values()).split()
    assert all(source.startswith(("'", "data:")) for source in sources)
    assert answer.headers["x-content-type-options"] == "nosniff"
