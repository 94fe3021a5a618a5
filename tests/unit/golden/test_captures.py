"""What is written down, byte for byte: captures, reports, sidecars, names of operators."""

import argparse
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import orjson
import pytest

from inference_store.api.app import create_app
from inference_store.api.metadata_changes import MetadataItem, check_change
from inference_store.cli.main import COMMANDS, build_root_parser, import_command
from inference_store.index import sidecars
from inference_store.index.accounting import PartitionId
from inference_store.index.database import create_engine
from inference_store.index.unsettled import Record
from inference_store.inference import producer_reports
from inference_store.inference.layout import edited_key, key_of, sidecar_key
from inference_store.inference.metadata import MetadataCaps, read_metadata
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings, ProxySettings
from inference_store.proxy.capture.prepare import Preparation
from inference_store.proxy.capture.registrations import Work
from inference_store.proxy.configuration import Redaction, Rules
from inference_store.proxy.exchange import Body, Exchange
from inference_store.proxy.protocols import PROTOCOLS, recognise_call
from tests.exchanges import exchange
from tests.settings import make_settings
from tests.unit.inference.metadata.samples import make_item
from tests.unit.proxy.capture.captured import Written, write
from tests.unit.proxy.protocols.v2_grpc import calls

from .golden import OPENAPI, check, format_bytes, format_json

AT = datetime(2026, 11, 22, 4, 5, 6, 7, tzinfo=UTC)
PRODUCER, REPORTER = "01900000-0000-7000-8000-0000000000aa", "01900000-0000-7000-8000-0000000000bb"
# A JPEG's first bytes: no library packs them.
IMAGE = b"\xff\xd8\xff\xe0 a photograph \xff\xd9"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
METADATA = [make_item("camera", "string", "hall"), make_item("n", "int", "7")]
RULES = Rules(
    project_id="yard",
    task_type="Object Detection",
    metadata_headers=("x-camera",),
    redactions=(Redaction(what="metadata", name="n", how="hash"),),
)


def make_exchange(body: bytes, answer: bytes, /, **changes: Any) -> Exchange:
    times = [AT + timedelta(milliseconds=ms) for ms in (0, 1, 21, 22)]
    names = ("received_at", "forwarded_at", "responded_at", "finished_at")
    return exchange(body, answer, **(dict(zip(names, times, strict=True)) | changes))


def make_v2() -> Exchange:
    """Return a call with a text, metadata, a trace, an id."""
    parameters = {"metadata": METADATA}
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["héllo"]}
    body = orjson.dumps({"id": "frame-7", "inputs": [tensor | {"parameters": parameters}]})
    data = [{"label": "cat", "score": 0.9}]
    out = {"name": "predictions", "datatype": "BYTES", "shape": [1], "data": data}
    headers = [("content-type", "application/json"), ("traceparent", TRACE), ("x-camera", "north")]
    return make_exchange(body, orjson.dumps({"outputs": [out]}), request_headers=headers)


def make_v2_batch() -> Exchange:
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1, 2.5, 3, 4]}
    out = {"name": "y", "datatype": "FP32", "shape": [2, 1], "data": [0.25, 0.75]}
    body, answer = ({"inputs": [tensor], "id": "batch"}, {"outputs": [out], "model_version": "3"})
    return make_exchange(orjson.dumps(body), orjson.dumps(answer))


def make_v2_grpc() -> Exchange:
    request_bytes = calls.make_request(IMAGE, id="g-1").SerializeToString(deterministic=True)
    response_bytes = calls.make_response("cat", id="g-1").SerializeToString(deterministic=True)
    changes = {"transport": "grpc", "path": calls.INFER, "method": calls.INFER, "grpc_code": 0}
    return make_exchange(
        request_bytes,
        response_bytes,
        http_status=None,
        request_headers=[],
        response_headers=[],
        **changes,
    )


def make_chat() -> Exchange:
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    body = {"model": "gpt", "messages": messages, "metadata": {"user": "u-1"}}
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hello"}}
    choice["finish_reason"] = "stop"
    answer = {"id": "chat-1", "choices": [choice], "usage": {"prompt_tokens": 3}}
    path = "/v1/chat/completions"
    return make_exchange(orjson.dumps(body), orjson.dumps(answer), path=path)


def make_failed() -> Exchange:
    """Return a call whose answer is an error, and whose request cannot be read."""
    answer = b'{"error": "no such model"}'
    return make_exchange(
        b"\xffno json", answer, http_status=500, request_headers=[("x-request-id", "r")]
    )


def make_cut() -> Exchange:
    request = Body(parts=(b'{"inputs": [',), size=10_000, whole=False)
    return make_exchange(b"", b"{}", request=request)


CAPTURES: dict[str, Callable[[], Exchange]] = {
    make.__name__.removeprefix("make_"): make
    for make in (make_v2, make_v2_batch, make_v2_grpc, make_chat, make_failed, make_cut)
}


def capture_exchange(sample: Exchange) -> Written:
    names = PROTOCOLS.keys() - {"raw", "raw-grpc"}
    call = recognise_call(names, sample.transport, sample.method, sample.path)
    assert call is not None
    settings = make_settings(
        ProxySettings,
        proxy_upstream="http://up",
        proxy_key_prefix="captures",
        proxy_redaction_key="k",
    )
    preparation = Preparation(settings)
    chosen = preparation.choose(Work(sample, call, RULES, "detector/é"))
    assert chosen is not None
    return write(chosen, 7)


def fix_ids(prepared: Written, data: bytes) -> bytes:
    """Return bytes with fixed capture ids."""
    for number, message in enumerate(prepared.messages):
        event = orjson.loads(message.value)
        capture_id = f"01900000-0000-7000-8000-{number:012}"
        data = data.replace(event["capture_id"].encode(), capture_id.encode())
        if not event["inference_id"].startswith(("frame", "batch", "g-", "chat", "r")):
            data = data.replace(event["inference_id"].encode(), b"made-here")
    return data


@pytest.mark.parametrize("name", CAPTURES)
def test_capture(name: str) -> None:
    capture = capture_exchange(CAPTURES[name]())
    text = ""
    for blob in capture.blobs:
        key = fix_ids(capture, blob.key.encode()).decode()
        text += format_bytes(f"blob {key} {blob.content_type}", fix_ids(capture, blob.data))
    for message in capture.messages:
        key = fix_ids(capture, message.key).decode()
        text += format_bytes(f"event {key}", fix_ids(capture, message.value))
    check(f"capture_{name}.txt", text)


def test_report() -> None:
    report = producer_reports.ProducerReport(
        producer=PRODUCER,
        reporter=REPORTER,
        number=3,
        booted_at=AT,
        reported_at=AT + timedelta(seconds=10),
        seen=9,
        sampled_out=1,
        dropped={"no_budget": 2},
        queued=2,
        spooled=1,
        published=4,
        events=6,
        highest_sequence=8,
    )
    check("report.txt", format_bytes(report.producer, producer_reports.encode(report)))


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
    if isinstance(node, dict):
        yield node
    for child in node.values() if isinstance(node, dict) else node:
        if isinstance(child, (dict, list)):
            yield from list_nodes(child)


# The objects that the store itself writes: keys, sidecars, edited metadata.

NAMED_AT = datetime(2026, 11, 1, 23, 59, 1, 5, tzinfo=UTC)
UID = UUID("01900000-0000-7000-8000-000000000001")
MODELS = ("m", "a/b c%2f", "..", "ü" * 256, "x~y")
BLOB = (
    b'{"standard_metadata":{"prompts":["p"]},"extended_metadata":[{"key":"n","type":"int",'
    b'"value":"7"},{"key":"x","type":"float","value":1.50}],"request":{"path":"/"}}'
)


def test_keys() -> None:
    keys = []
    for model in MODELS:
        keys += [key_of(prefix, model, NAMED_AT, UID, "metadata") for prefix in ("", "captures/x")]
        keys += [sidecar_key(model, NAMED_AT, UID), edited_key(model, UID)]
    check("keys.txt", "".join(f"{key}\n" for key in keys))


def test_sidecar() -> None:
    headers = (("producer", "p"), ("n", "é"))
    partition = PartitionId("default", "events", 0, 3)
    text = ""
    for event, metadata in ((b'{"model_id":"m"}', b'{"a":1.50}'), (b"\xff", None)):
        contents = sidecars.contents_of(
            Record(partition, 7, NAMED_AT, b"k", event, headers), metadata
        )
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
