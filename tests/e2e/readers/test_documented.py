"""The examples of docs/how-to/datasets.md print what they show, with the real readers."""

import asyncio
import re
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.objects import Blobs
from inference_store_client.datasets import FORMATS
from tests.integration.api.app_server import serve_app
from tests.integration.api.conftest import MakeApp
from tests.integration.stored_pictures import store_pictures
from tests.readers.environment import read

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "datasets.md"


@pytest.mark.real_ultralytics
async def test_every_example_prints_what_the_page_shows(
    make_app: MakeApp, engine: AsyncEngine, blobs: Blobs, bucket: str, tmp_path: Path
) -> None:
    await store_pictures(engine, blobs, bucket)
    async with serve_app(make_app()) as http:
        url = str(http.base_url).rstrip("/")
        count = await asyncio.to_thread(
            read, "run_examples.py", str(PAGE), url, home=tmp_path, folder=tmp_path
        )
    assert count > 20


def test_the_page_has_every_format_and_its_method() -> None:
    text = PAGE.read_text()
    rows = re.findall(r"^\| \[(.+?)\]\(#.+?\) \| `(to_\w+)` \| `(\w+)` \|", text, re.MULTILINE)
    assert [(title, name) for title, _, name in rows] == [
        (each.title, name) for name, each in FORMATS.items()
    ]
    assert all(f"## {title}\n" in text and f".{method}(" in text for title, method, _ in rows)
