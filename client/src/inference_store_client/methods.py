"""What a store, its models, their inferences and exports do: each method once. No I/O.

A method says its steps. `sync` and `asynchronous` derive the package's classes from these, with a
transport that performs the steps.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial, wraps
from inspect import signature
from os import PathLike
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    Unpack,
    get_args,
    overload,
)
from uuid import UUID

from inference_store_client import exporting, previewing, reading
from inference_store_client.aggregating import Grouping, Measure, aggregate
from inference_store_client.arrow_batches import read_array
from inference_store_client.blob import Blob
from inference_store_client.columns import read_columns
from inference_store_client.commands import Deliveries, Steps
from inference_store_client.decoding import decode
from inference_store_client.filters import Filter
from inference_store_client.json_text import Json
from inference_store_client.question import Question, QuestionOptions
from inference_store_client.requests import make_any_request, make_path, make_request
from inference_store_client.settings import ClientSettings
from inference_store_client.streaming import (
    collect,
    make_pandas,
    make_polars,
    require_frames,
)
from inference_store_client.tables import Rows
from inference_store_client.tagging import change_tags
from inference_store_client.times import Time
from inference_store_client.values.answers import Caller, Listing, Page, TaggedInferences
from inference_store_client.values.exports import (
    ErasedMember,
    Erasure,
    ExportBlobs,
    ExportFields,
    ExportFormat,
    ExportPart,
    Retention,
)
from inference_store_client.values.inference import InferenceFields
from inference_store_client.values.models import MetadataKey, Registration
from inference_store_client.values.overview import Overview

if TYPE_CHECKING:
    from inference_store_client.datasets import DatasetSummary

T = TypeVar("T")
P = ParamSpec("P")
AwaitedT = TypeVar("AwaitedT")
ExportT = TypeVar("ExportT", bound=ExportFields)
GroupsT = TypeVar("GroupsT")
InferenceT = TypeVar("InferenceT")
InferencesT = TypeVar("InferencesT")
ModelT = TypeVar("ModelT")
Folder: TypeAlias = str | PathLike[str]
Classes: TypeAlias = Sequence[str] | None


class Transport(Protocol):
    """Performs steps with `run` and `iterate`, each in its way."""

    settings: ClientSettings


class Asking:
    """What asks a store."""

    __slots__ = ()
    _transport: Transport

    def _maker(self, kind: type[T]) -> Callable[[Any], T]:
        """Return what makes something that asks the same store of a value of the API."""
        return partial(decode, kind, _transport=self._transport)


class Blocking(Asking):
    """Its methods return results and iterators."""

    __slots__ = ()


class Awaited(Asking):
    """Its methods return coroutines and asynchronous iterators."""

    __slots__ = ()


class Method(Generic[P, T, AwaitedT]):
    """A method that hands its steps to the transport; `result`: what `help` shows instead."""

    def __init__(self, how: str, method: Callable[..., Any], result: Any) -> None:
        @wraps(method)
        def perform(owner: Any, *args: Any, **options: Any) -> Any:
            return getattr(owner._transport, how)(method(owner, *args, **options))

        vars(perform)["__signature__"] = signature(method).replace(return_annotation=result)
        self._perform: Any = perform

    @overload
    def __get__(self, owner: Blocking, kind: Any) -> Callable[P, T]: ...
    @overload
    def __get__(self, owner: Awaited, kind: Any) -> Callable[P, AwaitedT]: ...
    @overload
    def __get__(self, owner: None, kind: Any) -> Callable[..., Any]: ...
    def __get__(self, owner: Any, kind: Any) -> Any:
        return self._perform.__get__(owner, kind)


def asks(
    method: Callable[Concatenate[Any, P], Steps[T]],
) -> Method[P, T, Coroutine[Any, Any, T]]:
    """Make a method of its steps, which returns what they lead to."""
    _, _, result = get_args(method.__annotations__["return"])
    return Method("run", method, result)


def yields(
    method: Callable[Concatenate[Any, P], Deliveries[T]],
) -> Method[P, Iterator[T], AsyncIterator[T]]:
    """Make a method of its steps, which yields what they deliver."""
    commands, _, _ = get_args(method.__annotations__["return"])
    return Method("iterate", method, Iterator[get_args(get_args(commands)[-1])])  # type: ignore[misc]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportMethods(ExportFields, Asking, Generic[ExportT]):
    """An export, and what can be done with it."""

    _transport: Transport = field(repr=False, compare=False)

    @asks
    def refresh(self) -> Steps[ExportT]:
        """Return the export as it is now."""
        return self._ask("GET")

    @asks
    def wait(self) -> Steps[ExportT]:
        """Return the export once every part is written. Raises ExportFailed if none will be."""
        return exporting.wait_until_written(self.id, self._make)

    @asks
    def list_parts(self) -> Steps[Rows[ExportPart]]:
        """Return its parts, with links. The store notes that you were given them."""
        return exporting.list_parts(self.id)

    @asks
    def read_part(self, part: ExportPart) -> Steps[bytes]:
        """Return the bytes of a part, checked by their SHA-256."""
        return exporting.read_part(self.id, part)

    @asks
    def download(self, folder: str | Path) -> Steps[list[Path]]:
        """Write every part into a folder, once all are written; return the files.

        The folder must be new. It appears when it is whole, and only you may read it. A download
        that is cut off is continued; no part is in memory as a whole.
        """
        _, files = yield from exporting.download(self.id, Path(folder))
        return files

    @asks
    def _download(self, folder: Path) -> Steps[tuple[list[ExportPart], list[Path]]]:
        return exporting.download(self.id, folder)

    @asks
    def list_erased(self) -> Steps[Rows[ErasedMember]]:
        """Return what erasures took of it, the earliest first: erase it in your copies too."""
        return collect(exporting.list_erased(self.id))

    @asks
    def cancel(self) -> Steps[ExportT]:
        """Stop it, and let the store delete its parts."""
        return self._ask("POST", "cancel")

    @asks
    def restart(self) -> Steps[ExportT]:
        """Ask its question again: return another export, with parts of its own."""
        return self._ask("POST", "restart")

    def _ask(self, method: str, *more: str) -> Steps[ExportT]:
        request = make_request(method, make_path("exports", str(self.id), *more))
        return exporting.read_export(request, self._make)

    def _make(self, members: Json) -> Any:
        return self._maker(type(self))(members)


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceMethods(InferenceFields, Asking):
    """One inference, and what can be done with it."""

    _transport: Transport = field(repr=False, compare=False)

    @asks
    def data(self) -> Steps[Blob]:
        """Read the datum, as it was stored. Raises Gone if it was deleted."""
        return reading.read_blob(self, "data")

    @asks
    def image(self, *, edge: int | None = None) -> Steps[Blob]:
        """Read the picture; `edge`: as a JPEG whose longer edge has at most so many pixels."""
        if edge is None:
            return reading.read_blob(self, "data")
        return reading.read_thumbnail(self, edge)

    @asks
    def response(self) -> Steps[Blob]:
        """Read the model's response, as it was stored."""
        return reading.read_blob(self, "response")

    @asks
    def retention(self) -> Steps[Retention]:
        """Read why it is kept, and until when."""
        request = make_request("GET", reading.inference_path(self, "retention"))
        return reading.fetch(Retention, request)

    @asks
    def erase(self) -> Steps[Erasure]:
        """Erase it, with its blobs. Queries stop showing it at once."""
        request = make_request("DELETE", reading.inference_path(self))
        return reading.fetch(Erasure, request)

    @asks
    def note(self, text: str | None) -> Steps[None]:
        """Write a note on it, its metadata item `note`; None: remove the note."""
        items = [{"key": "note", "type": "string", "value": text}]
        body = {"remove": ["note"]} if text is None else {"metadata": items}
        path = reading.inference_path(self, "metadata")
        yield from reading.request_any(make_request("POST", path, body=body, is_read=True))


class GroupsMethods(Asking):
    """The inferences that match a question, by groups."""

    def __init__(self, transport: Transport, question: Question, grouping: Grouping) -> None:
        self._transport, self._question, self._grouping = transport, question, grouping

    @asks
    def aggregate(self, /, *measures: Measure, **named: Measure) -> Steps[Rows[dict[str, Any]]]:
        """Return a row for each group: its keys, and measures such as `mean(top_score)`."""
        return aggregate(self._question, self._grouping, measures, named)


class InferencesMethods(Asking, Generic[InferenceT, GroupsT, ExportT]):
    """The inferences that match a question."""

    _inference: type[InferenceT]
    _groups: Callable[[Transport, Question, Grouping], GroupsT]
    _export: type[ExportT]

    def __init__(self, transport: Transport, question: Question) -> None:
        self._transport, self._question = transport, question

    @asks
    def count(self) -> Steps[int]:
        """Count the matches, exactly."""
        return reading.count(self._question)

    @asks
    def first(self) -> Steps[InferenceT | None]:
        """Return the first match in the order asked for; None: nothing matches."""
        return reading.find_first(self._question, self._make)

    @asks
    def head(self, size: int = 5) -> Steps[Rows[InferenceT]]:
        """Return the first matches in the order, as a list that shows itself."""
        return collect(reading.read_all(self._question.take(size), self._make))

    def filter(self, filter: Filter) -> Self:
        """Return the matches that satisfy a filter too; nothing is asked yet."""
        return self._ask(self._question.narrow(filter))

    def sort(self, key: str) -> Self:
        """Return the matches in the order of a name; `-` before it: the greatest first."""
        return self._ask(self._question.order_by(key))

    def limit(self, size: int) -> Self:
        """Return the first matches in the order. Up to 1,000 need no right `export`."""
        return self._ask(self._question.take(size))

    def sample(self, size: int, *, seed: int = 0) -> Self:
        """Return a random sample of the matches; the same seed takes the same sample."""
        return self._ask(self._question.take_sample(size, seed))

    def group_by(
        self,
        *groups: str | Mapping[str, Any],
        every: str | timedelta | None = None,
        order: str | None = None,
        limit: int | None = None,
    ) -> GroupsT:
        """Return the matches by groups: of names, of `label`, of a time (`every="hour"`)."""
        grouping = Grouping(groups, every, order, limit)
        return self._groups(self._transport, self._question, grouping)

    @asks
    def aggregate(self, /, *measures: Measure, **named: Measure) -> Steps[dict[str, Any]]:
        """Return measures of all matches by name: `aggregate("count", "mean(top_score)")`."""
        rows = yield from aggregate(self._question, Grouping(), measures, named)
        return rows[0] if rows else {}

    @asks
    def tag(self, *tags: str) -> Steps[TaggedInferences]:
        """Add tags to the matches, at most 1,000; `tags = 'x'` finds them in a filter."""
        return change_tags(self._question, add=tags)

    @asks
    def untag(self, *tags: str) -> Steps[TaggedInferences]:
        """Remove tags from the matches, at most 1,000."""
        return change_tags(self._question, remove=tags)

    @yields
    def pages(self, size: int | None = None) -> Deliveries[Page[InferenceT]]:
        """Yield every page, of up to `size` inferences each."""
        return reading.read_pages(self._question, self._make, size=size)

    @yields
    def stream(self) -> Deliveries[InferenceT]:
        """Yield every match, and resume if the connection breaks. It needs the right `export`.

        Raises StreamIncomplete if it cannot: a short result never looks like a whole one.
        """
        return reading.read_all(self._question, self._make)

    @asks
    def to_arrow(self, fields: Sequence[str] | None = None) -> Steps[Any]:
        """Return every match as a `nanoarrow.Array`: `pyarrow.table(…)` takes it.

        `fields`: these columns alone. It needs the right `export` and the extra `arrow`.
        """
        return self._read_columns(fields, "arrow", read_array)

    @asks
    def to_pandas(self, fields: Sequence[str] | None = None) -> Steps[Any]:
        """Return every match as a `pandas.DataFrame`; as `to_arrow`, and the extra `pandas`."""
        return self._read_columns(fields, "pandas", make_pandas)

    @asks
    def to_polars(self, fields: Sequence[str] | None = None) -> Steps[Any]:
        """Return every match as a `polars.DataFrame`; as `to_arrow`, and the extra `polars`."""
        return self._read_columns(fields, "polars", make_polars)

    def _read_columns(
        self, fields: Sequence[str] | None, extra: str, make: Callable[[bytes], Any]
    ) -> Steps[Any]:
        require_frames(extra)
        return make((yield from read_columns(replace(self._question, fields=fields))))

    @asks
    def export(
        self,
        format: ExportFormat = "parquet",
        *,
        blobs: ExportBlobs | None = None,
        expires_in: str | timedelta | None = None,
        confirm: bool = False,
    ) -> Steps[ExportT]:
        """Let the store write every match to its bucket, in parts. It needs the right `export`.

        `blobs`: beside each inference nothing, links to its blobs, or their bytes (`copy`); links
        and copies need the right `read_inputs`. Left out: `copy` for webdataset, else nothing.
        `expires_in`: when the parts are deleted: a `timedelta`, or an ISO 8601 duration (`P7D`).
        `confirm`: also if very many match.
        """
        request = exporting.make_export_request(
            self._question, format, blobs=blobs, expires_in=expires_in, confirm=confirm
        )
        return exporting.read_export(request, self._maker(self._export))

    @asks
    def html(self) -> Steps[str]:
        """Return the first matches as HTML: pictures with boxes, as inline SVG."""
        return previewing.read_html(self._question, self._make)

    @asks
    def to_dataset(
        self, /, format: str, folder: Folder, *, classes: Classes = None, **options: Any
    ) -> Steps["DatasetSummary"]:
        """Write pictures and predictions into a new folder; `format`: of `datasets.FORMATS`.

        A folder is written as a whole, or there is none. `classes`: these labels alone, in this
        order; None: all that come, sorted. Each inference that matches is in it once, or counted in
        the summary; otherwise it raises. It needs the rights `export` and `read_inputs`, and the
        extra `datasets`.
        """
        from .datasets import writing  # noqa: PLC0415  (takes time to import)

        request = writing.make_dataset_request(format, folder, classes, **options)
        return writing.write_dataset(self._question, request)

    def _ask(self, question: Question) -> Self:
        return type(self)(self._transport, question)

    def _make(self, members: Json) -> InferenceT:
        return self._maker(self._inference)(members)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._question.describe()})"


class ModelMethods(Asking, Generic[InferenceT, InferencesT]):
    """One model of the store."""

    _inference: type[InferenceT]
    _inferences: Callable[[Transport, Question], InferencesT]

    def __init__(self, transport: Transport, model_id: str) -> None:
        self._transport, self.model_id = transport, model_id

    def inferences(
        self, filter: Filter | None = None, **options: Unpack[QuestionOptions]
    ) -> InferencesT:
        """Return the inferences that match a filter; nothing is asked yet."""
        path = make_path("models", self.model_id, "inferences")
        return self._inferences(self._transport, Question.make(path, filter, options))

    @asks
    def inference(self, inference_id: str) -> Steps[InferenceT]:
        """Read an inference by its id, an alias, or `uid:<uuid>`: the newest one that has it."""
        path = make_path("models", self.model_id, "inferences", inference_id)
        members = yield from reading.fetch_plain(make_request("GET", path))
        return self._maker(self._inference)(members)

    @asks
    def overview(self, *, since: Time | None = None, until: Time | None = None) -> Steps[Overview]:
        """Read what it did in a window: counts, latency, labels and scores over time."""
        return reading.fetch(Overview, reading.make_overview_request(self.model_id, since, until))

    @asks
    def registration(self) -> Steps[Registration]:
        """Read the model's entry."""
        request = make_request("GET", make_path("models", self.model_id))
        return reading.fetch(Registration, request)

    @asks
    def metadata_keys(self) -> Steps[Rows[MetadataKey]]:
        """Return the model's metadata keys, with the types under which they came."""
        path = make_path("models", self.model_id, "metadata-keys")
        return collect(reading.read_list(path, Listing[MetadataKey]))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model_id!r})"


class StoreMethods(Asking, Generic[ModelT, InferencesT, ExportT]):
    """An Inference Store."""

    _model: Callable[[Transport, str], ModelT]
    _inferences: Callable[[Transport, Question], InferencesT]
    _export: type[ExportT]

    def model(self, model_id: str) -> ModelT:
        """Return a model; nothing is asked yet."""
        return self._model(self._transport, model_id)

    @asks
    def models(self, *, project_id: str | None = None) -> Steps[Rows[Registration]]:
        """Return the models that you may read, of a project or all; the list shows itself."""
        params = {} if project_id is None else {"project_id": project_id}
        return collect(reading.read_list(make_path("models"), Listing[Registration], params))

    def inferences(
        self,
        filter: Filter | None = None,
        *,
        model_ids: Sequence[str] | None = None,
        project_id: str | None = None,
        **options: Unpack[QuestionOptions],
    ) -> InferencesT:
        """Return the inferences of several models, of a project, or of all that may be read."""
        question = Question.make(make_path("inferences"), filter, options)
        return self._inferences(self._transport, question.of_models(model_ids, project_id))

    @asks
    def me(self) -> Steps[Caller]:
        """Read who the caller is, and what they may do."""
        return reading.fetch(Caller, make_request("GET", make_path("me")))

    @asks
    def export(self, id: UUID | str) -> Steps[ExportT]:
        """Read an export that was requested before."""
        request = make_request("GET", make_path("exports", str(id)))
        return exporting.read_export(request, self._maker(self._export))

    @asks
    def request(
        self, method: str, path: str, *, params: Mapping[str, Any] | None = None, body: Json = None
    ) -> Steps[Json]:
        """Ask any route: `request("GET", "/v1/holds")`. Numbers are exact, decimals are `Decimal`.

        Only what reads is sent again if it fails.
        """
        return reading.request_any(make_any_request(method, path, params=params, body=body))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._transport.settings.origin.url!r})"
