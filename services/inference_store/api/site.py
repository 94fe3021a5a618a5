"""Serves the console under `/console/`, and the docs, which `make docs` builds, under `/docs/`.

`make console` builds its files from `console/`; they are committed, so that nobody else needs Node.
"""

import os
import re
from pathlib import Path
from typing import Final

from fastapi.openapi.docs import get_swagger_ui_html
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from inference_store.inference.errors import NotFound

from .http import choose_type

CONSOLE: Final = "/console"
FILES: Final = Path(__file__).parent / "console_files"
CONSOLE_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none';"
    " require-trusted-types-for 'script'; frame-ancestors 'none'"
)
_HTML: Final = "text/html"
# Vite puts a hash of the content into the names below this folder: another content, another name.
_HASHED: Final = "assets/"
_FOR_EVER: Final = "public, max-age=31536000, immutable"


class ConsoleFiles(StaticFiles):
    """The files of the console, cached by their names."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return the file at a path below the console."""
        response = await super().get_response(path, scope)
        if path.startswith(_HASHED):
            response.headers["Cache-Control"] = _FOR_EVER
        return response


def list_console_routes(folder: Path = FILES) -> list[BaseRoute]:
    """Return the routes of the console, and that of `/`, which leads a browser there."""
    return [
        Route("/", _lead_browser, include_in_schema=False),
        # to the folder, to which the page's addresses are relative
        Route(CONSOLE, lambda _: RedirectResponse("console/"), include_in_schema=False),
        Mount(CONSOLE, ConsoleFiles(directory=folder, html=True)),
    ]


def _is_browser(scope: Scope) -> bool:
    accepted = Headers(scope=scope).get("accept", "")
    return choose_type(accepted, ("application/json", _HTML)) == _HTML


async def _lead_browser(request: Request) -> Response:
    """Lead a browser to the console. Other clients ask for JSON, and there is none."""
    if _is_browser(request.scope):
        return RedirectResponse("console/")
    raise NotFound("There is nothing at `/`: the API is below `/v1`, the console at `/console/`.")


DOCS: Final = "/docs"
# The wheel and the image have it in the package; in a source tree `make docs` builds it.
_PACKED: Final = Path(__file__).parents[1] / "docs_site"
SITE: Final = _PACKED if _PACKED.is_dir() else Path(__file__).parents[3] / "build" / "docs"
# Each page has this one script, which chooses light or dark before anything is shown.
_SCRIPT: Final = "sha256-ySvT2PEZeueHGC1y2crNuNTfphBynFPP7i+U21fEgX0="
DOCS_POLICY: Final = (
    f"default-src 'none'; script-src 'self' '{_SCRIPT}'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'"
)


_NO_DOCS: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Docs · Inference Store</title>
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<link rel="icon" href="{up}console/icon.svg">
<style>body { max-width: 34em; margin: 15vh auto; padding: 0 1.5em;
  font: 16px/1.5 Inter, ui-sans-serif, system-ui, sans-serif; }</style>
<h1>The docs are not built yet</h1>
<p>Run <code>make docs</code> in the source folder, then reload this page.
<code>make demo</code> builds them in the background, which takes a few minutes.</p>
<p><a href="{up}console/">Back to the console</a> · <a href="{up}reference">API reference</a></p>
"""


class DocsSite(StaticFiles):
    """The files of the site. A page is found without its `.html`, and without its folder, too."""

    def __init__(self, folder: Path) -> None:
        super().__init__(directory=folder, html=True, check_dir=False)
        self._start = folder / "index.html"

    async def check_config(self) -> None:
        """Accept a folder that does not exist: `get_response` refuses then."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return the file at a path below the site."""
        if not self._start.is_file():
            if _is_browser(scope):
                return HTMLResponse(_NO_DOCS.replace("{up}", "../" * (path.count("/") + 1)), 404)
            raise NotFound(
                "The docs are not built: run `make docs`. `make demo` builds them beside it."
            )
        if scope["method"] in {"GET", "HEAD"} and (page := self._find_page(path)):
            return RedirectResponse(page)
        response = await super().get_response(path, scope)
        if isinstance(response, RedirectResponse):
            # to a folder: relative, since a proxy may stand before the api
            return RedirectResponse(f"{os.path.basename(path)}/")
        return response

    def _find_page(self, name: str) -> str | None:
        """Return the path of the one page of this name in a folder of the site.

        Errors link to `/docs/errors`: such links stay the same if a page moves to another folder.
        """
        site, name = self._start.parent, name.removesuffix(".html")
        pages = [page for page in site.glob("[!_]*/*.html") if page.stem == name]
        if len(pages) != 1 or (site / pages[0].name).exists():
            return None
        return str(pages[0].relative_to(site))

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        """Return the file at a path, and None if there is none below the site."""
        result = super().lookup_path(path)
        return super().lookup_path(f"{path}.html") if result[1] is None else result


def list_docs_routes(folder: Path = SITE) -> list[BaseRoute]:
    """Return the routes of the site; the links of its start page are relative to the folder."""
    return [
        Route(DOCS, lambda _: RedirectResponse("docs/"), include_in_schema=False),
        Mount(DOCS, DocsSite(folder)),
    ]


# The header and the theme of the console; the colours come from the console's own style.
_HEAD: Final = """<link rel="stylesheet" href="console/{style}">
<style>
  body > header { display: flex; gap: 18px; align-items: center; padding: 12px 20px;
    border-bottom: 1px solid var(--line); background: var(--surface); }
  body > header a, body > header b { padding: 3px 8px; border-radius: 7px; color: var(--faint);
    font-size: 13px; font-weight: 400; text-decoration: none; }
  body > header b { background: var(--accent-soft); color: var(--accent-ink); font-weight: 600; }
  body > header .brand { display: flex; gap: 10px; align-items: center; padding: 0;
    color: var(--ink); font-size: 15px; font-weight: 650; }
  body, html.dark-mode .swagger-ui, .swagger-ui .scheme-container { background: var(--ground); }
  @media (max-width: 760px) { body > header .brand span { display: none; } }
</style>
<script>
  const dark = matchMedia("(prefers-color-scheme: dark)");
  function turn() {
    let theme = null;
    try { theme = localStorage.getItem("inference-store-theme"); } catch {}
    const isDark = theme === "dark" || (theme !== "light" && dark.matches);
    document.documentElement.dataset.theme = theme ?? "system";
    document.documentElement.classList.toggle("dark-mode", isDark);
  }
  turn();
  dark.addEventListener("change", turn);
  addEventListener("storage", turn);
</script>
</head>"""
_HEADER: Final = """<body><header>
<a class="brand" href="console/"><img src="console/icon.svg" alt="" width="26" height="26">
<span>Inference Store</span></a>
<nav aria-label="Places"><a href="console/">Console</a><a href="docs/">Docs</a><b>API</b></nav>
</header>"""
_STYLE: Final = re.compile(r'rel="stylesheet"[^>]* href="\./([^"]+)"')
_SWAGGER: Final = "static-offline-docs/swagger-ui"


async def _show_reference(request: Request) -> Response:
    """Show the OpenAPI, below the header that the console and the docs have too."""
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title="Inference Store: API",
        oauth2_redirect_url=request.app.swagger_ui_oauth2_redirect_url,
        swagger_js_url=f"{_SWAGGER}-bundle.js",
        swagger_css_url=f"{_SWAGGER}.css",
        swagger_favicon_url="console/icon.svg",
    )
    [style] = _STYLE.findall((FILES / "index.html").read_text())
    html = bytes(page.body).decode().replace("</head>", _HEAD.replace("{style}", style))
    return HTMLResponse(html.replace("<body>", _HEADER))


REFERENCE: Final = Route("/reference", _show_reference, include_in_schema=False)
