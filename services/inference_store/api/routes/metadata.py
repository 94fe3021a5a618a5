"""Adding to an inference's metadata, or changing it."""

from typing import Any
from uuid import UUID

from fastapi import Request
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.api.access import Asking, needs
from inference_store.api.answer import InferenceAnswer
from inference_store.api.dependencies import IfMatch, Settings
from inference_store.api.inference_format import format_inference
from inference_store.api.metadata_edits import Change, Editor, Item, check_change, edit, reserve
from inference_store.api.paths import InferenceId, ModelId
from inference_store.api.problems import document_refusals
from inference_store.api.routers import make_router
from inference_store.api.schemas.inferences import ShownInference
from inference_store.api.schemas.metadata import MetadataChange, MetadataItem
from inference_store.inference.errors import Conflict, Fault, Invalid
from inference_store.inference.json_text import Number, write_json
from inference_store.inference.metadata import MetadataCaps
from inference_store.platform.settings import ApiSettings
from inference_store.query import lookup
from inference_store.query.read import read

router = make_router("inferences")


@router.post(
    "/models/{model_id}/inferences/{inference_id}/metadata",
    response_model=ShownInference,
    responses=document_refusals(400, 404, 409, 412, 413),
    openapi_extra=needs(Right.ANNOTATE),
    summary="Add or change metadata",
)
async def change_metadata(  # noqa: PLR0917  (FastAPI calls it by name)
    model_id: ModelId,
    inference_id: InferenceId,
    body: MetadataChange,
    request: Request,
    if_match: IfMatch,
    to: Settings,
    access: Asking,
) -> InferenceAnswer:
    """Add metadata items, or put them in the place of those with their keys; written back to the
    metadata blob. An id that several inferences have is refused: `uid:` says which one."""
    change = check_change([_read_item(item) for item in body.metadata], caps=_read_caps(to))
    revision = _find_revision(body, if_match)
    engine, dictionary = request.app.state.engine, request.app.state.dictionary
    editor = Editor(request.app.state.blobs, dictionary, _read_caps(to))
    # One transaction after another, never one inside another: so a request holds one connection at
    # a time, and requests that wait for a second cannot empty the pool.
    async with engine.begin() as connection:
        registration = await access.find_model(connection, model_id)
        uid = await _find_uid(connection, registration.model, inference_id)
    async with engine.begin() as connection:
        bucket = editor.blobs.buckets.default
        await reserve(connection, bucket, registration, uid, revision=revision)
    # After the reserve, which checks the revision: a refused edit leaves no names behind.
    names, several = {registration.model: _list_names(change)}, change.metadata.several
    await dictionary.resolve(names, {}, several)
    async with engine.begin() as connection:
        registration = await access.find_model(connection, model_id)
        revision = await edit(connection, editor, registration, uid, change, revision=revision)
        noted = {"keys": sorted(change.keys), "revision": revision}
        await access.note(connection, Action.METADATA_CHANGED, registration, [uid], **noted)
        [inference] = await read(connection, registration.model, [uid], include=["metadata"])
    headers = {"ETag": f'"{inference.row["revision"]}"'}
    return InferenceAnswer(format_inference(model_id, inference), headers=headers)


async def _find_uid(connection: AsyncConnection, model: int, inference_id: str) -> UUID:
    """Return the uid of the inference. Raises NotFound; Conflict if the id names several."""
    same = await lookup.find_by_id(connection, model, inference_id, most=2)
    if len(same.uids) > 1:
        raise Conflict(
            f"Several inferences have the id {inference_id!r}: say which one by `uid:`, as"
            f" in uid:{same.newest}."
        )
    return same.newest


def _list_names(change: Change) -> set[str]:
    """Return the names of the keys that the index will hold."""
    leaves, presences = change.metadata.leaves, change.metadata.presences
    return {leaf.name for leaf in leaves} | {presence.name for presence in presences}


def _find_revision(body: MetadataChange, if_match: int | None) -> int | None:
    if body.revision is not None and if_match not in (None, body.revision):
        fault = Fault("revision", "it names another revision than If-Match")
        raise Invalid("The body and If-Match name different revisions.", faults=[fault])
    return body.revision if if_match is None else if_match


def _read_item(item: MetadataItem) -> Item:
    value = item.value
    return Item(
        item.key,
        item.type,
        value if value is None or isinstance(value, str) else write_json(_read_exact(value)),
    )


def _read_exact(value: Any) -> Any:
    """Return JSON of the body with its numbers as they were written."""
    if isinstance(value, dict):
        return {name: _read_exact(element) for name, element in value.items()}
    if isinstance(value, list):
        return [_read_exact(element) for element in value]
    return value if value is None or isinstance(value, (str, bool)) else Number(value)


def _read_caps(settings: ApiSettings) -> MetadataCaps:
    return MetadataCaps(
        keys=settings.max_keys_per_inference,
        blob_bytes=settings.max_metadata_bytes,
    )
