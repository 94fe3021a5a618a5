"""Tags of many inferences at once."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Final, Self
from uuid import UUID

from pydantic import ConfigDict, Field, Strict, StringConstraints, model_validator

from inference_store.access.rights import Right
from inference_store.index.registrations import Registration
from inference_store.inference.errors import Conflict, Fault, Invalid, NotFound, QueryTimeout
from inference_store.inference.field_docs import WHOLE, ShortText
from inference_store.query import lookup
from inference_store.query.preparation import prepare
from inference_store.query.search import find_by_time

from .access import Access, Asking
from .answer import Answer, Shown
from .conditions import Conditions, read_requested_filter
from .dependencies import querying
from .http import INFERENCES, ModelId
from .inference_pages import limit_query_time, set_deadline
from .metadata_changes import TAG_NAMES, change_tags
from .metadata_edits import Edit, apply, find_caps
from .routing import Router

MOST: Final = 1000
"""The most inferences that a request tags."""
_AT_ONCE: Final = 4
_NARROW: Final = "The search took too long: narrow received_at, or add a condition."
Tag = Annotated[
    ShortText, StringConstraints(strip_whitespace=True), Field(min_length=1, max_length=100)
]


class TagChange(Conditions):
    """Tags to add and to remove, of which inferences."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"add": ["false alarm"], "inference_ids": ["frame-17", "frame-18"]},
                {"add": ["night"], "remove": ["day"], "filter": "hour > 21", "expected": 30},
            ]
        }
    )

    add: Annotated[list[Tag], Field(max_length=20)] = Field(default=[])
    """Tags to add."""
    remove: Annotated[list[Tag], Field(max_length=20)] = Field(default=[])
    """Tags to remove; one that is not there is no error."""
    expected: Annotated[int, Strict(), Field(ge=0, le=MOST), WHOLE] | None = None
    """How many inferences match, as you have counted them; if others do, nothing is tagged. It may
    be left out beside `inference_ids`."""

    @model_validator(mode="after")
    def _says_what_and_how_many(self) -> Self:
        if not self.add and not self.remove:
            raise ValueError("give tags to `add` or to `remove`")
        if set(self.add) & set(self.remove):
            raise ValueError("a tag cannot be added and removed at once")
        if self.inference_ids is None and self.expected is None:
            raise ValueError("give `expected`, the count of what matches, or `inference_ids`")
        return self


class RefusedTagging(Shown):
    """An inference that could not be tagged."""

    uid: UUID
    detail: str
    """Why."""


class TaggedInferences(Shown):
    """What became of a change of tags. To repeat it changes nothing more."""

    changed: int
    unchanged: int
    """They had these tags already."""
    missing: list[str]
    """Those of `inference_ids` that no inference has."""
    refused: list[RefusedTagging]
    """Their tags would end a legal hold, are too many, or something of them is being deleted."""


router = Router("inferences")


@router.add(f"POST {INFERENCES}/tags", Right.ANNOTATE, "Tag inferences", 409, 501)
async def tag_inferences(
    model_id: ModelId, body: TagChange, access: Asking
) -> Answer[TaggedInferences]:
    """Add tags to up to 1,000 inferences, and remove tags. They are the metadata item `tags`, an
    array of texts: `tags = 'night'` finds them. An id that several inferences have is of all of
    them."""
    model, uids, missing = await _find(access, model_id, body)
    caps = find_caps(access)
    change = partial(change_tags, add=body.add, remove=body.remove, caps=caps)
    outcomes: list[bool | RefusedTagging] = []

    async def tag(uid: UUID) -> bool | RefusedTagging:
        try:
            changed = await apply(access, model, uid, Edit(change, TAG_NAMES))
            return changed is not None
        except (Conflict, NotFound) as error:
            return RefusedTagging(uid=uid, detail=error.detail)

    for start in range(0, len(uids), _AT_ONCE):
        some = map(tag, uids[start : start + _AT_ONCE])
        # all of them end before an error goes out
        for outcome in await asyncio.gather(*some, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
            outcomes.append(outcome)
    answer = TaggedInferences(
        changed=outcomes.count(True),
        unchanged=outcomes.count(False),
        missing=missing,
        refused=[outcome for outcome in outcomes if isinstance(outcome, RefusedTagging)],
    )
    return Answer(answer)


async def _find(
    access: Access, model_id: str, body: TagChange
) -> tuple[Registration, Sequence[UUID], list[str]]:
    """Return the model, what matches of it, and the ids that nothing has. Raises Conflict if others
    match than were expected, and Invalid if they are too many."""
    filter = await read_requested_filter(body.filter, body.filter_lang)
    async with querying(access) as connection:
        model, extent = await access.find_model_to_query(connection, model_id)
        question = body.to_query_request(filter)
        prepared = await prepare(connection, [model.model], question, extent)
        with limit_query_time("page", _NARROW, prepared.query):
            deadline = set_deadline(body, access.settings)
            found = await find_by_time(
                connection, prepared.query, limit=MOST + 1, deadline=deadline
            )
        ids = body.inference_ids or ()
        missing = await lookup.find_absent(connection, model.model, ids) if ids else []
    if found.out_of_time:
        raise QueryTimeout(_NARROW)
    if len(found.uids) > MOST:
        fault = Fault("filter", f"more than {MOST:,} inferences match")
        message = f"At most {MOST:,} inferences are tagged at once: narrow the filter."
        raise Invalid(message, faults=[fault])
    if body.expected not in (None, len(found.uids)):
        raise Conflict(
            f"{len(found.uids)} inferences match now, and {body.expected} were expected: count them"
            " again. Nothing was tagged."
        )
    return model, found.uids, missing
