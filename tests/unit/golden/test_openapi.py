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

from .golden import check, written_json

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
        made: dict[str, Any] = create_app(settings, engine, blobs).openapi()
    return made | {"info": made["info"] | {"version": "0"}}


def test_contract(document: dict[str, Any]) -> None:
    contract = without_sentences(document)
    operations = [one for path in contract["paths"].values() for one in path.values()]
    written = Counter(written_json([*one]) for each in operations for one in responses(each))
    common = {text for text, count in written.items() if count > 10}
    for each in operations:
        for status, response in responses(each):
            if written_json([status, response]) in common:
                each["responses"][status] = "common"
    found = contract | {"common": [json.loads(text) for text in sorted(common)]}
    check("openapi.json", written_json(found) + "\n")


def test_sentences(document: dict[str, Any]) -> None:
    found = sorted(set(sentences(document)))
    check("openapi_sentences.txt", "".join(f"{written_json(each)}\n" for each in found))


def responses(operation: dict[str, Any]) -> list[tuple[str, Any]]:
    return list(operation["responses"].items())


def without_sentences(node: Any) -> Any:
    """Return the same without its descriptions and summaries."""
    if isinstance(node, list):
        return [without_sentences(each) for each in node]
    if not isinstance(node, dict):
        return node
    return {name: without_sentences(each) for name, each in node.items() if not is_one(name, each)}


def sentences(node: Any) -> Iterator[str]:
    """Yield each description and summary."""
    for name, each in node.items() if isinstance(node, dict) else ():
        if is_one(name, each):
            yield each
        else:
            yield from sentences(each)
    for each in node if isinstance(node, list) else ():
        yield from sentences(each)


def is_one(name: str, value: Any) -> bool:
    return name in SENTENCES and isinstance(value, str)
