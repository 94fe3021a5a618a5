"""The question of an export: as it is stored, and as a query over its model."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.export.blob_choices import BlobChoice
from inference_store.inference.errors import Invalid
from inference_store.inference.json_text import write_json
from inference_store.query.cql2 import Node, resolved_in, to_json, to_text
from inference_store.query.filters import saved
from inference_store.query.filters.check import check
from inference_store.query.filters.names import find_known_keys, names_in
from inference_store.query.matching import Query
from inference_store.query.preparation import build_query
from inference_store.query.scan_range import range_of_time

from .job import ExportJob

Included: TypeAlias = Literal["metadata", "predictions"]


async def describe_question(
    connection: AsyncConnection,
    model: int,
    tree: Node | None,
    *,
    text: str | None,
    since: datetime | None,
    until: datetime,
    include: Sequence[Included],
    blobs: BlobChoice = "none",
) -> dict[str, Any]:
    """Return the document of a job; `tree`: the filter, `text`: as it was written.

    Names are resolved now, and relative times replaced by their instants. Raises UnknownKey,
    ImpossibleComparison, InvalidFilter, NotKept.
    """
    document = {
        "filter": None,
        "saved": None,
        "since": None if since is None else since.isoformat(),
        "until": until.isoformat(),
        "include": list(include),
        "blobs": blobs,
    }
    if tree is None:
        return document
    keys = await find_known_keys(connection, [model], names_in(tree))
    check(tree, keys, source=text)  # a key that nobody has is a typo: it is refused
    if text is not None and resolved_in(tree):
        text = to_text(tree)
    return document | {
        "filter": text or write_json(to_json(tree)),
        "saved": saved.save(tree, keys, source=text).text,
    }


async def build_question(
    connection: AsyncConnection, model: int, document: Mapping[str, Any]
) -> Query:
    """Return the query of a job's document, the oldest first."""
    saved_filter = document["saved"]
    predicates = [] if saved_filter is None else [await saved.load(connection, saved_filter)]
    since = None if document["since"] is None else datetime.fromisoformat(document["since"])
    until = datetime.fromisoformat(document["until"])
    query = await build_query(connection, range_of_time(model, since, until), predicates)
    return query.in_order()


async def build_remaining_question(connection: AsyncConnection, job: ExportJob) -> Query:
    """Return the query of a job after what is listed. Raises Invalid if its filter was erased."""
    if job.erased_by is not None:
        raise Invalid(
            f"The erasure {job.erased_by} took the filter of this export: request it again."
        )
    query = await build_question(connection, job.model, job.document)
    return query if job.listed_to is None else query.after(job.listed_to)
