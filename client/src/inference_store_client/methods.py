"""What a store, its models, their inferences and exports do: each method once. No I/O.

A method says its steps. `sync` and `asynchronous` derive the package's classes from these, with a
transport that performs the steps.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
    TypeAlias,
    TypeVar,
    Unpack,
    get_args,
    overload,
)
from uuid import UUID

from inference_store_client import exporting, previewing, reading
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
    stream,
)
from inference_store_client.values.answers import Caller, Page
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
from inference_store_client.values.models import (
    KeyPage,
    MetadataKey,
    Registration,
    RegistrationPage,
)

if TYPE_CHECKING:
    from inference_store_client.datasets import DatasetSummary

T = TypeVar("T")
P = ParamSpec("P")
AwaitedT = TypeVar("AwaitedT")
ExportT = TypeVar("ExportT", bound=ExportFields)
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

    @property
    def _settings(self) -> ClientSettings:
        return self._transport.settings

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
        return exporting.wait_until_written(self.id, self._make, self._settings)

    @asks
    def list_parts(self) -> Steps[list[ExportPart]]:
        """Return its parts, with links. The store notes that you were given them."""
        return exporting.list_parts(self.id, self._settings)

    @asks
    def read_part(self, part: ExportPart) -> Steps[bytes]:
        """Return the bytes of a part, checked by their SHA-256."""
        return exporting.read_part(self.id, part, self._settings)

    @asks
    def download(self, folder: str | Path) -> Steps[list[Path]]:
        """Write every part into a folder, once all are written; return the files.

        The folder must be new. It appears when it is whole, and only you may read it. A download
        that is cut off is continued; no part is in memory as a whole.
        """
        _, files = yield from exporting.download(self.id, Path(folder), self._settings)
        return files

    @asks
    def _download(self, folder: Path) -> Steps[tuple[list[ExportPart], list[Path]]]:
        return exporting.download(self.id, folder, self._settings)

    @asks
    def list_erased(self) -> Steps[list[ErasedMember]]:
        """Return what erasures took of it, the earliest first: erase it in your copies too."""
        return collect(exporting.list_erased(self.id, self._settings))

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
        return exporting.read_export(request, self._make, self._settings)

    def _make(self, members: Json) -> Any:
        return self._maker(type(self))(members)


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceMethods(InferenceFields, Asking):
    """One inference, and what can be done with it."""

    _transport: Transport = field(repr=False, compare=False)

    @asks
    def data(self) -> Steps[Blob]:
        """Read the datum, as it was stored. Raises Gone if it was deleted."""
        return reading.read_blob(self, "data", self._settings)

    @asks
    def image(self, *, edge: int | None = None) -> Steps[Blob]:
        """Read the picture; `edge`: as a JPEG whose longer edge has at most so many pixels."""
        if edge is None:
            return reading.read_blob(self, "data", self._settings)
        return reading.read_thumbnail(self, edge, self._settings)

    @asks
    def response(self) -> Steps[Blob]:
        """Read the model's response, as it was stored."""
        return reading.read_blob(self, "response", self._settings)

    @asks
    def retention(self) -> Steps[Retention]:
        """Read why it is kept, and until when."""
        request = make_request("GET", reading.inference_path(self, "retention"))
        return reading.fetch(Retention, request, self._settings)

    @asks
    def erase(self) -> Steps[Erasure]:
        """Erase it, with its blobs. Queries stop showing it at once."""
        request = make_request("DELETE", reading.inference_path(self))
        return reading.fetch(Erasure, request, self._settings)


class InferencesMethods(Asking, Generic[InferenceT, ExportT]):
    """The inferences that match a question."""

    _inference: type[InferenceT]
    _export: type[ExportT]

    def __init__(self, transport: Transport, question: Question) -> None:
        self._transport, self._question = transport, question

    @asks
    def count(self) -> Steps[int]:
        """Count the matches, exactly."""
        return reading.count(self._question, self._settings)

    @asks
    def first(self) -> Steps[InferenceT | None]:
        """Return the first match in the order asked for; None: nothing matches."""
        return reading.find_first(self._question, self._make, self._settings)

    @yields
    def pages(self, limit: int | None = None) -> Deliveries[Page[InferenceT]]:
        """Yield every page, of up to `limit` inferences each."""
        return reading.read_pages(self._question, self._make, self._settings, limit=limit)

    @yields
    def stream(self) -> Deliveries[InferenceT]:
        """Yield every match, and resume if the connection breaks. It needs the right `export`.

        Raises StreamIncomplete if it cannot: a short result never looks like a whole one.
        """
        return stream(self._question, self._make, self._settings)

    @asks
    def sample(self, size: int, *, seed: int = 0) -> Steps[list[InferenceT]]:
        """Return a random sample of the matches; the same seed takes the same sample."""
        return collect(reading.read_sample(self._question, self._make, self._settings, size, seed))

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
        return make((yield from read_columns(self._question, self._settings, fields)))

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
        return exporting.read_export(request, self._maker(self._export), self._settings)

    @asks
    def html(self) -> Steps[str]:
        """Return the first matches as HTML: pictures with boxes, as inline SVG."""
        return previewing.read_html(self._question, self._make, self._settings)

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
        return self._write_dataset(format, folder, classes, **options)

    @asks
    def to_coco(self, folder: Folder, *, classes: Classes = None) -> Steps["DatasetSummary"]:
        """Write COCO: `images/` and `annotations.json`. As `to_dataset`."""
        return self._write_dataset("coco", folder, classes)

    @asks
    def to_yolo(self, folder: Folder, *, classes: Classes = None) -> Steps["DatasetSummary"]:
        """Write YOLO: `images/`, `labels/` and `data.yaml`. As `to_dataset`."""
        return self._write_dataset("yolo", folder, classes)

    @asks
    def to_fiftyone(self, folder: Folder, *, classes: Classes = None) -> Steps["DatasetSummary"]:
        """Write what FiftyOne imports as `COCODetectionDataset`. As `to_dataset`."""
        return self._write_dataset("fiftyone", folder, classes)

    @asks
    def to_hf_dataset(self, folder: Folder, *, classes: Classes = None) -> Steps["DatasetSummary"]:
        """Write what `datasets.load_dataset("imagefolder", …)` loads. As `to_dataset`."""
        return self._write_dataset("huggingface", folder, classes)

    @asks
    def to_webdataset(
        self, folder: Folder, *, classes: Classes = None, shard_bytes: int | None = None
    ) -> Steps["DatasetSummary"]:
        """Write WebDataset in shards of up to `shard_bytes`; None: 256 MiB. As `to_dataset`."""
        options = {} if shard_bytes is None else {"shard_bytes": shard_bytes}
        return self._write_dataset("webdataset", folder, classes, **options)

    def _write_dataset(
        self, format: str, folder: Folder, classes: Classes, **options: Any
    ) -> Steps["DatasetSummary"]:
        from .datasets import writing  # noqa: PLC0415  (takes time to import)

        request = writing.make_dataset_request(format, folder, classes, **options)
        return writing.write_dataset(self._question, request, self._settings)

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
        return self._inferences(self._transport, Question(path=path, filter=filter, **options))

    @asks
    def inference(self, inference_id: str) -> Steps[InferenceT]:
        """Read an inference by its id, an alias, or `uid:<uuid>`: the newest one that has it."""
        path = make_path("models", self.model_id, "inferences", inference_id)
        members = yield from reading.fetch_plain(make_request("GET", path), self._settings)
        return self._maker(self._inference)(members)

    @asks
    def registration(self) -> Steps[Registration]:
        """Read the model's entry."""
        request = make_request("GET", make_path("models", self.model_id))
        return reading.fetch(Registration, request, self._settings)

    @yields
    def metadata_keys(self) -> Deliveries[MetadataKey]:
        """Yield the model's metadata keys, with the types under which they came."""
        path = make_path("models", self.model_id, "metadata-keys")
        return reading.read_list(path, KeyPage, self._settings)

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

    @yields
    def models(self, *, project_id: str | None = None) -> Deliveries[Registration]:
        """Yield the models that the caller may read; of a project, or all."""
        params = {} if project_id is None else {"project_id": project_id}
        return reading.read_list(make_path("models"), RegistrationPage, self._settings, params)

    def inferences(
        self,
        filter: Filter | None = None,
        *,
        model_ids: Sequence[str] | None = None,
        project_id: str | None = None,
        **options: Unpack[QuestionOptions],
    ) -> InferencesT:
        """Return the inferences of several models, of a project, or of all that may be read."""
        question = Question(path=make_path("inferences"), filter=filter, **options)
        return self._inferences(self._transport, question.of_models(model_ids, project_id))

    @asks
    def me(self) -> Steps[Caller]:
        """Read who the caller is, and what they may do."""
        return reading.fetch(Caller, make_request("GET", make_path("me")), self._settings)

    @asks
    def export(self, id: UUID | str) -> Steps[ExportT]:
        """Read an export that was requested before."""
        request = make_request("GET", make_path("exports", str(id)))
        return exporting.read_export(request, self._maker(self._export), self._settings)

    @asks
    def _request(
        self, method: str, path: str, *, params: Mapping[str, Any] | None, body: Json, into: Any
    ) -> Steps[Any]:
        request = make_any_request(method, path, params=params, body=body)
        if into is None:
            return reading.request_any(request, self._settings)
        return reading.fetch(into, request, self._settings)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._settings.origin.url!r})"
