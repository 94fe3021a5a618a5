"""The objects that the store itself writes: keys, sidecars, edited metadata."""

from datetime import UTC, datetime
from uuid import UUID

from inference_store.api.metadata_edits import Item, check_change
from inference_store.index import sidecars
from inference_store.index.accounting import PartitionId
from inference_store.index.unsettled import Record
from inference_store.inference.layout import edited_key, key_of, sidecar_key
from inference_store.inference.metadata import MetadataCaps, read_metadata

from .golden import check, format_bytes

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
    items = [Item("n", "int", "8"), Item("new", "string", "é"), Item("gone", "string", None)]
    change = check_change(items, caps=MetadataCaps())
    text = ""
    for old in (BLOB, b'[{"key":"n","type":"int","value":"7"}]', b'{"n":7}', None):
        entries = () if old is None else read_metadata(old).entries
        text += format_bytes("edited", change.document(old, change.entries(entries)))
    check("edited_metadata.txt", text)
