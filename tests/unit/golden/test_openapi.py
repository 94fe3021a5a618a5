"""The OpenAPI document that the docs publish: the contract that clients are generated from."""

from collections.abc import Iterator
from typing import Any

import pytest

from inference_store.api.app import create_app
from inference_store.index.database import create_engine
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from tests.settings import make_settings

from .golden import OPENAPI, check, format_json

NOWHERE = {
    "postgres_dsn": "postgresql://nobody@127.0.0.1:1/nothing",
    "s3_endpoint": "http://127.0.0.1:1",
    "s3_access_key": "none",
    "s3_secret_key": "none",
    "s3_bucket": "none",
    "oidc_issuer": "https://issuer.example",
    "oidc_audience": "inference-store",
}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    settings = make_settings(ApiSettings, **NOWHERE)
    engine = create_engine(settings.postgres_dsn.get_secret_value())
    with Blobs(settings) as blobs:
        return create_app(settings, engine, blobs).openapi()


def test_the_published_document(document: dict[str, Any]) -> None:
    check(OPENAPI, format_json(document, width=400) + "\n")


def test_bounds_have_the_names_of_json_schema(document: dict[str, Any]) -> None:
    numbers = [node for node in list_nodes(document) if node.get("type") in ("integer", "number")]
    assert any("maximum" in node for node in numbers)
    assert [node for node in numbers if node.keys() & {"ge", "gt", "le", "lt"}] == []


def list_nodes(node: Any) -> Iterator[dict[str, Any]]:
    """Yield each object."""
    if isinstance(node, dict):
        yield node
    for child in node.values() if isinstance(node, dict) else node:
        if isinstance(child, (dict, list)):
            yield from list_nodes(child)
