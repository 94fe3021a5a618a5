"""Tags of many inferences at once."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Final, Self
from uuid import UUID

from pydantic import AfterValidator, ConfigDict, Field, Strict, model_validator
from sqlalchemy import select

from inference_store.access.rights import Right
from inference_store.index.registrations import Registration
from inference_store.index.sidecars import among
from inference_store.index.tables import inference
from inference_store.inference.errors import Conflict, Invalid, QueryTimeout
from inference_store.inference.field_docs import WHOLE, ShortText, WrongField
from inference_store.inference.metadata import Entry, decode_entries
from inference_store.query import lookup
from inference_store.query.deadline import Deadline
from inference_store.query.preparation import prepare
from inference_store.query.search import find_by_time

from .access import Access, Asking
from .answer import Answer, Shown, find_refusal
from .conditions import Conditions, read_requested_filter
from .dependencies import querying
from .http import INFERENCES, ModelId
from .inference_pages import limit_query_time, set_deadline
from .metadata_changes import TAG_NAMES, Change, change_tags
from .metadata_edits import Edit, apply, find_caps, make_dictionary
from .routing import Router

MOST: Final = 1000
"""The most inferences that a request tags."""
_AT_ONCE: Final = 2
_READ_AT_ONCE: Final = 100
_NARROW: Final = "The search took too long: narrow received_at, or add a condition."


def _check_ends(tag: str) -> str:
    if tag != tag.strip():
        raise ValueError(f"it must not begin or end with a space: write {tag.strip()!r}")
    return tag


Tag = Annotated[ShortText, Field(min_length=1, max_length=100)]
NewTag = Annotated[Tag, AfterValidator(_check_ends)]


class TagChange(Conditions):
    """Tags to add and to remove, and the inferences to change."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"add": ["false alarm"], "inference_ids": ["frame-17", "frame-18"]},
                {"add": ["night"], "remove": ["day"], "filter": "hour > 21", "expected": 30},
            ]
        }
    )

    add: Annotated[list[NewTag], Field(max_length=20)] = Field(default=[])
    """Tags to add, without spaces before or after them."""
    remove: Annotated[list[Tag], Field(max_length=20)] = Field(default=[])
    """Tags to remove, exactly as they are. Tags that are not there are ignored."""
    expected: Annotated[int, Strict(), Field(ge=0, le=MOST), WHOLE] | None = None
    """How many inferences you expect to match. If it is another number, nothing is tagged. Optional
    beside `inference_ids`."""

    @model_validator(mode="after")
    def _says_what_and_how_many(self) -> Self:
        if not self.add and not self.remove:
            raise WrongField("add", "give tags to `add` or to `remove`")
        if both := set(self.add) & set(self.remove):
            raise WrongField("remove", f"the tag {min(both)!r} is in `add` too: remove one of them")
        if self.inference_ids is None and self.expected is None:
            raise WrongField("expected", "give the number of matches, or `inference_ids`")
        return self


class RefusedTagging(Shown):
    """An inference that could not be tagged."""

    uid: UUID
    detail: str
    """Why."""


class TaggedInferences(Shown):
    """The result of a change of tags. It can be repeated safely with ids, or with a filter that the
    tags do not affect."""

    changed: int
    unchanged: int
    """They had these tags already."""
    missing: list[str]
    """Those of `inference_ids` that no inference has."""
    refused: list[RefusedTagging]
    """Inferences that could not be tagged: a legal hold would no longer match them, they would have
    too many tags, something of them is being deleted, or a part of the store is unavailable."""
    remaining: list[UUID]
    """Inferences that were not reached in time: send them again, as `uid:…` in `inference_ids`."""


router = Router("inferences")


@router.add(f"POST {INFERENCES}/tags", Right.ANNOTATE, "Tag inferences", 409, 501)
async def tag_inferences(
    model_id: ModelId, body: TagChange, access: Asking
) -> Answer[TaggedInferences]:
    """Add and remove tags of up to 1,000 inferences. Tags are the metadata item `tags`, an array of
    strings, and `tags = 'night'` finds them. An id that several inferences have stands for all of
    them."""
    model, uids, missing, deadline = await _find(access, model_id, body)
    caps = find_caps(access)
    tagging = _Tagging(
        access,
        model,
        partial(change_tags, add=body.add, remove=body.remove, caps=caps),
        deadline,
    )
    async with access.app.admission.admit(access.admission_name):
        await tagging.run(uids)
    answer = TaggedInferences(
        changed=tagging.changed,
        unchanged=len(uids) - tagging.changed - len(tagging.refused) - len(tagging.remaining),
        missing=missing,
        refused=tagging.refused,
        remaining=tagging.remaining,
    )
    return Answer(answer)


@dataclass(slots=True)
class _Tagging:
    """Changes the tags of one inference after another, until the time is over."""

    access: Access
    model: Registration
    choose: Callable[[Sequence[Entry]], Change | None]
    deadline: Deadline
    changed: int = 0
    refused: list[RefusedTagging] = field(default_factory=list)
    remaining: list[UUID] = field(default_factory=list)

    async def run(self, uids: Sequence[UUID]) -> None:
        changing = iter([uid async for uid in self._list_changing(uids)])
        await asyncio.gather(*(self._tag(changing) for _ in range(_AT_ONCE)))
        self.remaining += changing

    async def _list_changing(self, uids: Sequence[UUID]) -> AsyncIterator[UUID]:
        """Yield those that would change: no others get an edit, nor the model the key."""
        for start in range(0, len(uids), _READ_AT_ONCE):
            some = uids[start : start + _READ_AT_ONCE]
            query = select(inference.c.uid, inference.c.metadata)
            async with self.access.engine.connect() as connection:
                rows = await connection.execute(
                    query.where(among(inference, self.model.model, some))
                )
            stored = {row.uid: row.metadata for row in rows}
            for uid in some:
                blob = stored.get(uid)
                try:
                    if self.choose(() if blob is None else decode_entries(blob)) is not None:
                        yield uid
                except Conflict as error:
                    self.refused.append(RefusedTagging(uid=uid, detail=error.detail))

    async def _tag(self, uids: Iterator[UUID]) -> None:
        dictionary = make_dictionary(self.access)  # its own: other tasks may forget its names
        wanted = Edit(self.choose, TAG_NAMES)
        for uid in uids:
            try:
                done = await apply(self.access, self.model, uid, wanted, dictionary)
                self.changed += done is not None
            except Exception as error:  # what was committed before is answered all the same
                detail = find_refusal(error).detail
                self.refused.append(RefusedTagging(uid=uid, detail=detail))
            if self.deadline.is_over:
                return


async def _find(
    access: Access, model_id: str, body: TagChange
) -> tuple[Registration, Sequence[UUID], list[str], Deadline]:
    """Return the model, what matches of it, the ids that nothing has, and when the time is over.
    Raises Conflict if others match than were expected, and Invalid if they are too many."""
    deadline = set_deadline(body, access.settings)
    filter = await read_requested_filter(body.filter, body.filter_lang)
    async with querying(access) as connection:
        model, extent = await access.find_model_to_query(connection, model_id)
        question = body.to_query_request(filter)
        prepared = await prepare(connection, [model.model], question, extent)
        with limit_query_time("page", _NARROW, prepared.query):
            found = await find_by_time(
                connection, prepared.query, limit=MOST + 1, deadline=deadline
            )
        ids = body.inference_ids or ()
        missing = await lookup.find_absent(connection, model.model, ids) if ids else []
    if found.out_of_time:
        raise QueryTimeout(_NARROW)
    if len(found.uids) > MOST:
        message = f"more than {MOST:,} inferences match, the most that a request tags: narrow it"
        raise Invalid.of("filter", message)
    if body.expected not in (None, len(found.uids)):
        raise Conflict(
            f"{len(found.uids)} inferences match now, and {body.expected} were expected: count them"
            " again. Nothing was tagged.",
            at="expected",
        )
    return model, found.uids, missing, deadline
