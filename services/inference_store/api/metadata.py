"""Adding to an inference's metadata, or changing it."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import ConfigDict, Field, Strict
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.inference.errors import Conflict, Fault, Invalid
from inference_store.inference.metadata import MetadataCaps
from inference_store.query import lookup
from inference_store.query.read import read

from .access import Asking
from .answer import InferenceAnswer, Shown
from .dependencies import IfMatch
from .fields import WHOLE, Body, Page
from .http import INFERENCE, InferenceId, ModelId
from .inference_models import ShownInference
from .inference_pages import format_inference
from .metadata_edits import Editor, MetadataItem, check_change, edit, reserve
from .routing import Router


class ShownSeenType(Shown):
    """One type under which a key came."""

    type: str
    flag: str
    """Empty where the values are indexed as their type; else why not, or how they came."""
    count: int
    first_seen: datetime
    last_seen: datetime
    examples: tuple[str, ...]


class ShownMetadataKey(Shown):
    """A metadata key of a model."""

    name: str
    compared_as: list[str]
    """number, string, bool, timestamp: what its values can be compared as."""
    conflict: bool
    """Its values came as things that cannot be compared with each other."""
    count: int
    types: list[ShownSeenType]


class MetadataKeyPage(Page):
    """Metadata keys, in order of name."""

    items: list[ShownMetadataKey]
    capped: bool
    """The model has as many keys as are indexed: further ones are kept, and not indexed."""


class MetadataChange(Body):
    """Metadata to add or change."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"metadata": [{"key": "reviewed", "type": "bool", "value": "true"}], "revision": 1}
            ]
        }
    )

    metadata: Annotated[list[MetadataItem], Field(min_length=1, max_length=256)]
    revision: Annotated[int, Strict(), Field(ge=1), WHOLE] | None = None
    """The revision that the inference must have now; like If-Match."""


router = Router("inferences")


@router.add(
    f"POST {INFERENCE}/metadata", ShownInference, Right.ANNOTATE, "Add or change metadata", 409
)
async def change_metadata(
    model_id: ModelId,
    inference_id: InferenceId,
    body: MetadataChange,
    if_match: IfMatch,
    access: Asking,
) -> InferenceAnswer:
    """Add metadata items, or put them in the place of those with their keys; written back to the
    metadata blob. An id that several inferences have is refused: `uid:` says which one."""
    to = access.settings
    caps = MetadataCaps(keys=to.max_keys_per_inference, blob_bytes=to.max_metadata_bytes)
    change = check_change(body.metadata, caps=caps)
    revision = _find_revision(body, if_match)
    engine, dictionary = access.engine, access.app.dictionary
    editor = Editor(access.blobs, dictionary, caps)
    # One transaction after another, never one inside another: so a request holds one connection at
    # a time, and requests that wait for a second cannot empty the pool.
    async with engine.begin() as connection:
        registration = await access.find_model(connection, model_id)
        uid = await _find_uid(connection, registration.model, inference_id)
    async with engine.begin() as connection:
        bucket = editor.blobs.buckets.default
        await reserve(connection, bucket, registration, uid, revision=revision)
    # After the reserve, which checks the revision: a refused edit leaves no names behind.
    metadata = change.metadata
    names = {leaf.name for leaf in metadata.leaves} | {each.name for each in metadata.presences}
    await dictionary.resolve({registration.model: names}, {}, metadata.several)
    async with engine.begin() as connection:
        registration = await access.find_model(connection, model_id)
        revision = await edit(connection, editor, registration, uid, change, revision=revision)
        noted = {"keys": sorted(change.keys), "revision": revision}
        await access.note(connection, Action.METADATA_CHANGED, registration, [uid], **noted)
        [inference] = await read(connection, registration.model, [uid], include=["metadata"])
    shown = format_inference(model_id, inference)
    return InferenceAnswer(shown, revision=inference.row["revision"])


async def _find_uid(connection: AsyncConnection, model: int, inference_id: str) -> UUID:
    uids = await lookup.find_by_id(connection, model, inference_id, most=2)
    if len(uids) > 1:
        raise Conflict(
            f"Several inferences have the id {inference_id!r}: say which one by `uid:`, as"
            f" in uid:{uids[0]}."
        )
    return uids[0]


def _find_revision(body: MetadataChange, if_match: int | None) -> int | None:
    if body.revision is not None and if_match not in (None, body.revision):
        fault = Fault("revision", "it names another revision than If-Match")
        raise Invalid("The body and If-Match name different revisions.", faults=[fault])
    return body.revision if if_match is None else if_match
