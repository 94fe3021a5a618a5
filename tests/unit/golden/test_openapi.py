"""The OpenAPI document: the contract that clients are generated from, and its sentences."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from inference_store.api.app import create_app
from inference_store.index.database import create_engine
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from tests.settings import make_settings

from .golden import check, format_json

NOWHERE = {
    "postgres_dsn": "postgresql://nobody@127.0.0.1:1/nothing",
    "s3_endpoint": "http://127.0.0.1:1",
    "s3_access_key": "none",
    "s3_secret_key": "none",
    "s3_bucket": "none",
    "oidc_issuer": "https://issuer.example",
    "oidc_audience": "inference-store",
}
SENTENCES = ("description", "summary")


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    settings = make_settings(ApiSettings, **NOWHERE)
    engine = create_engine(settings.postgres_dsn.get_secret_value())
    with Blobs(settings) as blobs:
        app_document: dict[str, Any] = create_app(settings, engine, blobs).openapi()
    return app_document | {"info": app_document["info"] | {"version": "0"}}


def test_contract(document: dict[str, Any]) -> None:
    contract = remove_sentences(document)
    operations = [operation for path in contract["paths"].values() for operation in path.values()]
    written = Counter(
        format_json([*answer]) for checked in operations for answer in list_responses(checked)
    )
    common = {text for text, count in written.items() if count > 10}
    for checked in operations:
        for status, response in list_responses(checked):
            if format_json([status, response]) in common:
                checked["responses"][status] = "common"
    compact = contract | {"common": [json.loads(text) for text in sorted(common)]}
    check("openapi.json", format_json(compact) + "\n")


def test_sentences(document: dict[str, Any]) -> None:
    texts = sorted(set(list_sentences(document)))
    check("openapi_sentences.txt", "".join(f"{format_json(text)}\n" for text in texts))


def test_bounds_have_the_names_of_json_schema(document: dict[str, Any]) -> None:
    numbers = [node for node in list_nodes(document) if node.get("type") in ("integer", "number")]
    assert any("maximum" in node for node in numbers)
    assert [node for node in numbers if node.keys() & {"ge", "gt", "le", "lt"}] == []


def list_responses(operation: dict[str, Any]) -> list[tuple[str, Any]]:
    return list(operation["responses"].items())


def remove_sentences(node: Any) -> Any:
    """Return the same without its descriptions and summaries."""
    if isinstance(node, list):
        return [remove_sentences(child) for child in node]
    if not isinstance(node, dict):
        return node
    return {
        name: remove_sentences(child) for name, child in node.items() if not is_one(name, child)
    }


def list_nodes(node: Any) -> Iterator[dict[str, Any]]:
    """Yield each object."""
    if isinstance(node, dict):
        yield node
    for child in node.values() if isinstance(node, dict) else node:
        if isinstance(child, (dict, list)):
            yield from list_nodes(child)


def list_sentences(node: Any) -> Iterator[str]:
    """Yield each description and summary."""
    for name, child in node.items() if isinstance(node, dict) else ():
        if is_one(name, child):
            yield child
        else:
            yield from list_sentences(child)
    for child in node if isinstance(node, list) else ():
        yield from list_sentences(child)


def is_one(name: str, value: Any) -> bool:
    return name in SENTENCES and isinstance(value, str)
