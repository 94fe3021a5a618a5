"""Configures Sphinx, which builds the docs as a site: `make docs`."""

from pathlib import Path
from typing import Any, Final

from pygments.lexers.sql import SqlLexer
from sphinx.application import Sphinx

project = "Inference Store"
author = "The authors of Inference Store"
html_title = project
html_theme = "furo"
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["_static"]
html_js_files = [("copy.js", {"defer": "defer"})]
html_css_files = ["copy.css"]
html_search_scorer = str(Path(__file__).with_name("_static") / "scorer.js")
# The header, as the console and the API's page have it.
html_theme_options: Final = {
    "light_css_variables": {
        "color-announcement-background": "#ffffff",
        "color-announcement-text": "#171b21",
    },
    "dark_css_variables": {
        "color-announcement-background": "#151a21",
        "color-announcement-text": "#e6e9ee",
    },
}
extensions = ["myst_parser"]
# Links to headings down to this level are checked.
myst_heading_anchors = 4
# Code that names no language is shown as it is.
highlight_language = "none"

# Files outside this folder that are pages of the site: links to them lead to the pages.
_PAGES: Final = {
    "../helm/inference-store/README.md": "reference/chart.md",
}


def _link_pages(_: Sphinx, name: str, source: list[str]) -> None:
    """Turn links to files that are pages into links to the pages."""
    up = "../" * name.count("/")
    for file, page in _PAGES.items():
        source[0] = source[0].replace(f"]({up}{file}", f"]({up}{page}")


def _add_header(
    _: Sphinx, name: str, _template: str, context: dict[str, Any], _page: object
) -> None:
    """Lead from each page to the console and the API's page, which are beside the site's folder."""
    up = "../" * (name.count("/") + 1)
    context["theme_announcement"] = (
        f'<nav style="text-align: left" aria-label="Places"><a href="{up}console/">Console</a>'
        f' · <b>Docs</b> · <a href="{up}reference">API</a></nav>'
    )


def setup(app: Sphinx) -> None:
    """Connect what Sphinx calls."""
    app.add_lexer("cql2", SqlLexer)
    app.connect("source-read", _link_pages)
    app.connect("html-page-context", _add_header)
