"""Questions about inferences: bodies and links, their filters, and the models they are about."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    AliasChoices,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    model_validator,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import registrations
from inference_store.index.registrations import Registration
from inference_store.inference.errors import Invalid
from inference_store.inference.field_docs import (
    FINITE,
    WHOLE,
    Body,
    Flag,
    Number,
    ShortText,
    Text,
    Whole,
    WrongField,
    storable_text,
)
from inference_store.inference.nearest import UnknownName, counted, nearest
from inference_store.query import cursor as cursors
from inference_store.query import order
from inference_store.query.cql2 import Clock, FilterLang, parse, resolved_in
from inference_store.query.cql2.tree import Node
from inference_store.query.cursor import MOST_CHARACTERS
from inference_store.query.filters.from_conditions import MetadataEntry
from inference_store.query.order import EXAMPLE, NEWEST_FIRST
from inference_store.query.preparation import QueryRequest, UnknownKeys
from inference_store.query.properties import OPERATORS, find_operator

from .access import Access
from .fields import ReceivedParameters, ScoreRange, Window
from .http import read_in_thread
from .inference_models import FIELD_PATTERN, MetadataAs, ResolvedTime, split_fields

Include: TypeAlias = Literal["metadata", "predictions", "urls", "ground_truth"]
MOST_INCLUDED: Final = 8
_SMALL_CHARACTERS: Final = 1_000
MOST_MODELS: Final = 1_000
_MOST_NAMED: Final = 5


def _split_at_commas(names: Any) -> Any:
    """`a,b` in a link is the same as `a` and `b`, given one by one."""
    if not isinstance(names, list):
        return names
    return [part.strip() for name in names for part in str(name).split(",")]


IncludeOfLink: TypeAlias = Annotated[
    list[Include], BeforeValidator(_split_at_commas), Field(max_length=MOST_INCLUDED)
]
"""What a link includes: names separated by commas, or the parameter repeated."""
Sort: TypeAlias = Annotated[
    str,
    Field(
        min_length=1,
        max_length=order.MOST_SORT_CHARACTERS,
        examples=["-received_at", "frame_number", EXAMPLE],
        json_schema_extra={"pattern": order.PATTERN},
    ),
    AfterValidator(storable_text),
]
Cursor: TypeAlias = Annotated[str, Field(max_length=MOST_CHARACTERS)]
Limit: TypeAlias = Annotated[int, Strict(), Field(ge=1, le=1000), WHOLE]
Fields: TypeAlias = Annotated[
    list[
        Annotated[
            Text, Field(min_length=1, max_length=300, json_schema_extra={"pattern": FIELD_PATTERN})
        ]
    ],
    Field(min_length=1, max_length=100, examples=[["inference_id", "metadata.frame_number"]]),
]
Ids: TypeAlias = Annotated[list[ShortText], Field(min_length=1, max_length=1000)]
BodyLang: TypeAlias = Annotated[
    FilterLang | None,
    Field(
        validation_alias=AliasChoices("filter_lang", "filter-lang"),
        description="The filter's language; left out: that of its JSON type. A string may be"
        " CQL2-JSON too.",
    ),
]
_FILTER_TYPES: Final = ("string", "object", "boolean", "null")
Scalar: TypeAlias = Text | Flag | Whole | Number
_NAMES = sorted(name for entry in OPERATORS.values() for name in (entry.name, *entry.aliases))


def filter_field(rest: str, example: str, *, of: str = "CQL2") -> Any:
    """Return the field of a filter, which is text or JSON; `rest`: of its description."""
    return Field(
        default=None,
        description=f"A filter in {of}: a string is CQL2-Text, an object CQL2-JSON. {rest}",
        examples=[example],
        json_schema_extra={"anyOf": [{"type": kind} for kind in _FILTER_TYPES]},
    )


def _operator(name: str) -> str:
    if find_operator(name) is None:
        near = nearest(name.lower(), [known_name.lower() for known_name in _NAMES])
        raise UnknownName("there is no operator", name, list(OPERATORS), near=near)
    return name


class MetadataCondition(Body):
    """A comparison of a metadata key with a value."""

    key: Annotated[ShortText, Field(min_length=1)]
    """The key, or the path into a JSON value: `camera_position.angle`, `tags[]`."""
    type: Annotated[str, Field(max_length=32)] | None = None
    """How to read the value: string, int, float, bool, timestamp. Left out: by the value itself
    and the types the key has been seen with."""
    operator: Annotated[
        str,
        Field(
            max_length=32,
            description="; ".join(f"`{o.name}`: {o.meaning}" for o in OPERATORS.values())
            + f". Also accepted, in any case of letters: {', '.join(_NAMES)}.",
            examples=["gt"],
            # Of the canonical names: generated clients could not tell `LIKE` from `like`.
            json_schema_extra={"enum": list(OPERATORS)},
        ),
        AfterValidator(_operator),
    ]
    value: Any = Field(
        default=None,
        description="A string, number or boolean; for `in` and `not_in` a list of them, for"
        " `between` a list of two; none for `exists` and `missing`. Numbers are exact.",
        examples=["9000"],
    )

    @model_validator(mode="after")
    def _bounded(self) -> "MetadataCondition":
        if isinstance(self.value, list) and len(self.value) > 1000:
            raise WrongField("value", "a list must have at most 1,000 values")
        return self


class PredictionCondition(Body):
    """Some prediction of the inference has one of the labels and a score in the range."""

    label: Text | Annotated[list[Text], Field(min_length=1, max_length=1000)] | None = None
    """A label, or several of which one must match."""
    score: ScoreRange | None = None


class Conditions(Body):
    """Which inferences; everything that is given must hold."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "filter": "frame_number > 9000 AND data_source = 'hallway-camera-feed'"
                    " AND prediction(label = 'person' AND score < 0.4)",
                    "received_at": {"from": "2026-11-01T00:00:00Z"},
                },
                {
                    "metadata_filter": [
                        {"key": "frame_number", "type": "int", "operator": "gt", "value": "9000"},
                        {"key": "data_source", "operator": "eq", "value": "hallway-camera-feed"},
                    ],
                    "received_at": {"from": "2026-11-01T00:00:00Z"},
                    "prediction": {"label": "person", "score": {"lt": 0.4}},
                },
            ]
        }
    )

    filter: Any = filter_field(
        "It must hold together with every other condition. Relative times are written"
        " `now() - duration('PT1H')`, and resolved once.",
        "frame_number > 9000 AND prediction(label = 'person' AND score < 0.4)",
        of="CQL2 (OGC 21-065r2)",
    )
    filter_lang: BodyLang = None
    metadata_filter: Annotated[list[MetadataCondition], Field(max_length=64)] = Field(default=[])
    """Comparisons of metadata."""
    received_at: Window | None = None
    """When the request came in."""
    inference_ids: Ids | None = None
    """Ids, aliases or `uid:<uuid>`; the inference has one of them."""
    data_hash: ShortText | Ids | None = None
    """SHA-256 of the input, in hexadecimal; or several."""
    ok: Flag | None = None
    """Whether the request succeeded. Inferences for which that is unknown do not match."""
    prediction: PredictionCondition | None = None
    timeout_seconds: Annotated[float, Field(ge=0.1), FINITE] | None = None
    """The longest time to search, at most INFERENCE_STORE_QUERY_TIMEOUT_SECONDS, which is the
    default. Without it, a page in order of time returns what was found after a twelfth of that."""
    unknown_keys: UnknownKeys = "refuse"
    """`refuse`: a metadata key that no inference of the model has is an error; `empty`: nothing
    matches it in a filter, and in `fields` it is a warning."""
    explain: Flag = False
    """Whether the answer explains what the query did. The explanation is for people, and its
    wording may change."""

    def to_query_request(
        self, filter: "RequestedFilter", *, newest_first: bool = True
    ) -> QueryRequest:
        """Return it as the store takes it; `filter`: what was read of its own."""
        window, hashes = self.received_at or Window(), self.data_hash
        condition = self.prediction or PredictionCondition()
        label = condition.label
        return QueryRequest(
            filter=filter.tree,
            filter_text=filter.text,
            metadata=[
                MetadataEntry(f"metadata_filter[{n}]", item.key, item.type, operator, item.value)
                for n, item in enumerate(self.metadata_filter)
                if (operator := find_operator(item.operator)) is not None
            ],
            since=window.since,
            until=window.until,
            inference_ids=self.inference_ids,
            data_hashes=[hashes] if isinstance(hashes, str) else hashes,
            ok=self.ok,
            labels=[label] if isinstance(label, str) else label,
            scores=condition.score.model_dump(exclude_none=True) if condition.score else {},
            predicted=self.prediction is not None,
            newest_first=newest_first,
            unknown_keys=self.unknown_keys,
        )


class Sample(Body):
    """A random sample of the inferences that match."""

    size: Annotated[int, Strict(), Field(ge=1, le=10_000), WHOLE]
    """How many. More than 1,000 need a stream."""
    seed: Annotated[int, Strict(), Field(ge=-(2**63), lt=2**63), WHOLE] = 0
    """The same seed takes the same sample, as long as the same inferences match."""


class InferenceQuery(Conditions):
    """A page of inferences."""

    sample: Sample | None = None
    """Return a random sample of the matches in random order, instead of `sort` and `limit`. All
    matches are read for it."""
    sort: Sort = order.NEWEST_FIRST
    """`received_at`, any other property, a metadata key, or the distance to a point:
    `distance(location, POINT(13.4 52.5))`; with `-` before it, descending. `inference.x` and
    `metadata.x` tell a property from a key, and `x:string` sorts by the values of one type.
    Inferences without a value come last."""
    limit: Limit = 50
    """The most inferences on a page."""
    cursor: Cursor | None = None
    """`next` of the previous page of the same query."""
    include: Annotated[list[Include], Field(max_length=MOST_INCLUDED)] = Field(default=[])
    """What to return beside the inference itself."""
    metadata_as: MetadataAs = "list"
    """Metadata as a list of items as they were sent, or as an object of typed values by key."""
    cursors: Flag = False
    """Whether each inference has a `cursor` that continues after it. In a stream it always has."""
    fields: Fields | None = None
    """The fields to return: `received_at`, `metadata.frame_number`, `predictions.label`. They imply
    what they need of `include`."""

    @model_validator(mode="after")
    def _sample_alone(self) -> Self:
        beside = sorted({"sort", "limit"} & self.model_fields_set)
        if self.sample is not None and beside:
            raise WrongField(
                beside[0],
                "it cannot be combined with `sample`, which is in random order and limited by its"
                " `size`",
            )
        return self


class Models(Body):
    """Which models. Without either field: all that the caller may read."""

    project_id: ShortText | None = None
    """The models of this project that the caller may read."""
    model_ids: Ids | None = None
    """These models, each of which the caller may read."""

    @model_validator(mode="after")
    def _one_of_them(self) -> "Models":
        if self.project_id is not None and self.model_ids is not None:
            raise WrongField("model_ids", "it cannot be combined with `project_id`: remove one")
        return self


class InferenceQueryAcross(Models, InferenceQuery):
    """A page of the inferences of several models."""


class InferenceLink(ReceivedParameters):
    """A simple query as a link. POST …/inferences/query takes every condition."""

    filter: str | None = Field(default=None, examples=["frame_number > 9000 AND NOT ok"])
    """A filter in CQL2."""
    filter_lang: FilterLang = Field(default="cql2-text", alias="filter-lang")
    """The filter's language."""
    inference_id: ShortText | None = None
    """Id or alias."""
    data_hash: ShortText | None = None
    """SHA-256 of the input, in hexadecimal."""
    ok: bool | None = None
    """Whether the request succeeded."""
    sort: Sort = NEWEST_FIRST
    """`received_at`, any other property, a metadata key, or the distance to a point:
    `distance(location, POINT(13.4 52.5))`; with `-` before it, descending."""
    limit: Annotated[int, Field(ge=1, le=1000)] = 50
    """The most inferences on a page."""
    cursor: Cursor | None = None
    """`next` of the previous page of the same query."""
    include: IncludeOfLink = Field(default=[])
    """What to return beside the inference itself. Repeat it, or separate names by commas."""
    metadata_as: MetadataAs = "list"
    """Metadata as a list of items as they were sent, or as an object of typed values by key."""
    fields: Annotated[Fields, BeforeValidator(split_fields)] | None = None
    """The fields to return. Repeat it, or separate names by commas."""
    timeout_seconds: Annotated[float, Field(ge=0.1, allow_inf_nan=False)] | None = None
    """Longest time to search, at most INFERENCE_STORE_QUERY_TIMEOUT_SECONDS."""

    def query(self) -> InferenceQuery:
        """The same question as a body; what was not given stays so."""
        same = self.model_fields_set & InferenceQuery.model_fields.keys() - {"filter_lang"}
        body = self.model_dump(include=same)
        if self.filter is not None:
            body["filter_lang"] = self.filter_lang
        if self.inference_id is not None:
            body["inference_ids"] = [self.inference_id]
        window = {"from": self.received_from, "to": self.received_to}
        if any(window.values()):
            body["received_at"] = window
        return InferenceQuery.model_validate(body)


async def read_filter(
    filter: Any, lang: FilterLang | None, *, clock: Clock, path: str = "filter"
) -> Node | None:
    """Return the tree of a body's `filter`; None without one. Raises InvalidFilter, NotKept."""
    if filter is None:
        return None
    if isinstance(filter, str) and len(filter) <= _SMALL_CHARACTERS:
        return parse(filter, lang=lang, path=path, clock=clock)
    return await read_in_thread(parse, filter, lang=lang, path=path, clock=clock)


@dataclass(frozen=True, slots=True)
class RequestedFilter:
    """The filter of a request. `now`: the instant that its relative times refer to; `text`: as it
    was written, if in CQL2-Text."""

    tree: Node | None
    now: datetime
    text: str | None

    @property
    def answer_members(self) -> Mapping[str, Any]:
        """Its resolved relative times for the answer; empty if it has none."""
        resolved = [ResolvedTime.show(resolved_time) for resolved_time in resolved_in(self.tree)]
        return {"resolved": resolved} if resolved else {}

    @property
    def pin(self) -> Callable[[str], str]:
        """A function that adds the instant of the relative times to a cursor."""
        if resolved_in(self.tree):
            return partial(cursors.pin, now=self.now)
        return lambda cursor: cursor


async def read_requested_filter(
    filter: Any, lang: FilterLang | None, *, now: datetime | None = None, cursor: str | None = None
) -> RequestedFilter:
    """Read a request's filter, with its relative times resolved at `now`, or else when the first
    page of the `cursor` was asked for, or at present.

    Raises InvalidFilter, NotKept, InvalidCursor.
    """
    if cursor is not None:
        now = cursors.unpin(cursor)[1]
    at = datetime.now(UTC) if now is None else now
    text = filter if isinstance(filter, str) and lang != "cql2-json" else None
    return RequestedFilter(await read_filter(filter, lang, clock=Clock(at)), at, text)


async def choose_models(
    connection: AsyncConnection, access: Access, body: Models
) -> Sequence[Registration]:
    """Return the models to query. Raises NotFound as a path does; Invalid if they are too many."""
    models = await access.find_models(
        connection, model_ids=body.model_ids, project_id=body.project_id, limit=MOST_MODELS + 1
    )
    if len(models) > MOST_MODELS:
        message = f"more than {MOST_MODELS:,} models match: name fewer, or a project_id"
        raise Invalid.of("model_ids", message)
    return models


async def warn_of_left_out(
    connection: AsyncConnection, access: Access, body: Models
) -> Sequence[str]:
    """Return a warning about models that the caller may read, but that are left out of a stream.

    A stream needs `export` over each of its models; one that was named and lacks the right is
    refused.
    """
    if body.model_ids is not None or access.sees == access.scope:
        return ()
    readable = await registrations.page(
        connection, limit=None, within=access.sees, project_id=body.project_id
    )
    right = access.needed.right
    missing = [model.model_id for model in readable if not access.has_right(right, model)]
    if not missing:
        return ()
    more = ", …" if len(missing) > _MOST_NAMED else ""
    names = ", ".join(missing[:_MOST_NAMED]) + more
    models = counted(len(missing), "model is", "models are")
    return (f"{models} left out: you lack the right `{right.value}` over {names}.",)
