"""The examples of docs/how-to/client.md print what they show there."""

import asyncio
import doctest
import io
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine

from tests.integration.api.app_server import serve_app
from tests.integration.api.conftest import MakeApp
from tests.integration.api.hallway import make_frames
from tests.integration.stored_inferences import store

_PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "client.md"
_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def run_examples(url: str) -> str:
    """Run the page's examples; return what differs."""
    text = _PAGE.read_text().replace("http://127.0.0.1:8080", url)
    text = text.replace("\n```", "\n\n")  # a fence ends what is printed
    text += "\n>>> store.close()\n"
    test = doctest.DocTestParser().get_doctest(text, {}, _PAGE.name, str(_PAGE), 0)
    assert len(test.examples) > 20
    printed = io.StringIO()
    doctest.DocTestRunner(optionflags=_OPTIONS).run(test, out=printed.write)
    return printed.getvalue()


async def test_every_example_prints_what_the_page_shows(
    make_app: MakeApp, engine: AsyncEngine
) -> None:
    await store(engine, *make_frames())
    async with serve_app(make_app()) as http:
        url = str(http.base_url).rstrip("/")
        differences = await asyncio.to_thread(run_examples, url)
    assert not differences, differences
