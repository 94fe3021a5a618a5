"""What operators and clients write down, and the objects that the store writes itself."""

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from inference_store.api.app import create_app
from inference_store.api.metadata_edits import MetadataItem, check_change
from inference_store.cli.main import COMMANDS, build_root_parser, import_command
from inference_store.index import sidecars
from inference_store.index.accounting import PartitionId
from inference_store.index.database import create_engine
from inference_store.index.unsettled import Record
from inference_store.inference.layout import edited_key, key_of, sidecar_key
from inference_store.inference.metadata import MetadataCaps, read_metadata
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from tests.settings import make_settings

from .golden import OPENAPI, check, format_bytes, format_json


def test_commands() -> None:
    options = [*list_options("inference-store", build_root_parser())]
    for name in COMMANDS:
        parser = argparse.ArgumentParser()
        import_command(name).add_arguments(parser)
        options += list_options(f"inference-store {name}", parser)
    check("commands.txt", "".join(f"{line}\n" for line in options))


def list_options(program: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield a command and each of its options, then those of the commands below it."""
    yield program
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from list_options(f"{program} {name}", below)
        elif not isinstance(action, argparse._HelpAction):
            names = ", ".join(action.option_strings) or action.dest
            choices = "" if action.choices is None else f" {list(action.choices)}"
            yield f"  {names}{choices}{' required' if action.required else ''}"


# The OpenAPI document that the docs publish: the contract that clients are generated from.

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


# The objects that the store itself writes: keys, sidecars, edited metadata.

AT = datetime(2026, 11, 1, 23, 59, 1, 5, tzinfo=UTC)
UID = UUID("01900000-0000-7000-8000-000000000001")
MODELS = ("m", "a/b c%2f", "..", "ü" * 256, "x~y")
BLOB = (
    b'{"standard_metadata":{"prompts":["p"]},"extended_metadata":[{"key":"n","type":"int",'
    b'"value":"7"},{"key":"x","type":"float","value":1.50}],"request":{"path":"/"}}'
)


def test_keys() -> None:
    keys = []
    for model in MODELS:
        keys += [key_of(prefix, model, AT, UID, "metadata") for prefix in ("", "captures/x")]
        keys += [sidecar_key(model, AT, UID), edited_key(model, UID)]
    check("keys.txt", "".join(f"{key}\n" for key in keys))


def test_sidecar() -> None:
    headers = (("producer", "p"), ("n", "é"))
    partition = PartitionId("default", "events", 0, 3)
    text = ""
    for event, metadata in ((b'{"model_id":"m"}', b'{"a":1.50}'), (b"\xff", None)):
        contents = sidecars.contents_of(Record(partition, 7, AT, b"k", event, headers), metadata)
        text += format_bytes("sidecar", sidecars.encode(contents))
    check("sidecar.txt", text)


def test_edited_metadata() -> None:
    given = [("n", "int", "8"), ("new", "string", "é"), ("gone", "string", None)]
    items = [MetadataItem(key=key, type=type, value=value) for key, type, value in given]
    change = check_change(items, caps=MetadataCaps())
    text = ""
    for old in (BLOB, b'[{"key":"n","type":"int","value":"7"}]', b'{"n":7}', None):
        entries = () if old is None else read_metadata(old).entries
        text += format_bytes("edited", change.document(old, change.entries(entries)))
    check("edited_metadata.txt", text)
