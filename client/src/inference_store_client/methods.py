"""What a store, its models, their inferences and exports do: each method once.

A method is a coroutine, or an asynchronous iterator. `sync` and `asynchronous` derive the package's
classes from these: those of `sync` run it to its end, since their transport blocks.
"""

from collections.abc import (
    AsyncIterator,
    Callable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from datetime import timedelta
from os import PathLike
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Self,
    TypeAlias,
    TypeVar,
    Unpack,
)
from uuid import UUID

from inference_store_client import exporting, labelling, previewing, reading
from inference_store_client.aggregating import Grouping, Measure, aggregate
from inference_store_client.arrow_batches import read_array
from inference_store_client.blob import Blob
from inference_store_client.columns import read_columns
from inference_store_client.errors import SettingsError, warn
from inference_store_client.evaluating import EvaluationOptions, evaluate
from inference_store_client.exporting import ExportT
from inference_store_client.filters import Filter
from inference_store_client.json_text import Json
from inference_store_client.question import Question, QuestionOptions
from inference_store_client.replaying import ReplayT, request_replay
from inference_store_client.requests import make_path, make_request
from inference_store_client.settings import (
    DEFAULT_RETRIES,
    ClientSettings,
    Retries,
    find_settings,
)
from inference_store_client.streaming import (
    collect,
    make_pandas,
    make_polars,
    require_frames,
)
from inference_store_client.tables import Rows
from inference_store_client.times import Time
from inference_store_client.transport import (
    Asking,
    HttpTransport,
    Transport,
    asks,
    yields,
)
from inference_store_client.values.answers import Caller, Listing, Page, TaggedInferences
from inference_store_client.values.drift import Drift
from inference_store_client.values.exports import (
    Erasure,
    ExportBlobs,
    ExportFormat,
    Retention,
)
from inference_store_client.values.inference import InferenceFields
from inference_store_client.values.models import MetadataKey, Registration
from inference_store_client.values.overview import Overview
from inference_store_client.values.truth import GroundTruth, TruthLoad

if TYPE_CHECKING:
    from inference_store_client.datasets import DatasetSummary

GroupsT = TypeVar("GroupsT")
InferenceT = TypeVar("InferenceT")
InferencesT = TypeVar("InferencesT")
ModelT = TypeVar("ModelT")
HttpT = TypeVar("HttpT")
Folder: TypeAlias = str | PathLike[str]
Classes: TypeAlias = Sequence[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceMethods(InferenceFields, Asking):
    """One inference, and what can be done with it."""

    _transport: Transport = field(repr=False, compare=False)

    @asks
    async def data(self) -> Blob:
        """Read the datum, as it was stored. Raises Gone if it was deleted."""
        return await reading.read_blob(self._transport, self, "data")

    @asks
    async def image(self, *, edge: int | None = None) -> Blob:
        """Read the picture; `edge`: as a JPEG whose longer edge has at most so many pixels."""
        if edge is None:
            return await reading.read_blob(self._transport, self, "data")
        path = f"{reading.inference_path(self, 'thumbnail')}?edge={edge}"
        return await reading.read_path(self._transport, path)

    @asks
    async def response(self) -> Blob:
        """Read the model's response, as it was stored."""
        return await reading.read_blob(self._transport, self, "response")

    @asks
    async def retention(self) -> Retention:
        """Read why it is kept, and until when."""
        request = make_request("GET", reading.inference_path(self, "retention"))
        return await reading.fetch(self._transport, Retention, request)

    @asks
    async def erase(self) -> Erasure:
        """Erase it, with its blobs. Queries stop showing it at once."""
        request = make_request("DELETE", reading.inference_path(self))
        return await reading.fetch(self._transport, Erasure, request)

    @asks
    async def label(
        self, *items: labelling.Item, source: str = "human", complete: bool = True
    ) -> GroundTruth:
        """Say what is true of it: labels, or `{"label": …, "box": [xmin, ymin, xmax, ymax]}`.

        It replaces what the source said before. No items: there is nothing to find. `complete`:
        the items name all there is.
        """
        path = reading.inference_path(self, "ground-truth")
        about: Any = {"source": source, "complete": complete}
        return await labelling.put_truth(self._transport, path, items, **about)

    @asks
    async def truth(self) -> Sequence[GroundTruth]:
        """Read what is true of it now, by source."""
        path = reading.inference_path(self, "ground-truth")
        return await labelling.read_truth(self._transport, path)

    @asks
    async def unlabel(self, *, source: str = "human") -> None:
        """Delete what a source said of it."""
        path = reading.inference_path(self, "ground-truth")
        request = make_request("DELETE", path, params={"source": source})
        await reading.request_any(self._transport, request)

    @asks
    async def note(self, text: str | None) -> None:
        """Write a note on it, its metadata item `note`; None: remove the note."""
        items = [{"key": "note", "type": "string", "value": text}]
        body = {"remove": ["note"]} if text is None else {"metadata": items}
        path = reading.inference_path(self, "metadata")
        request = make_request("POST", path, body=body)
        await reading.request_any(self._transport, request)


class GroupsMethods(Asking):
    """The inferences that match a question, by groups."""

    def __init__(self, transport: Transport, question: Question, grouping: Grouping) -> None:
        self._transport, self._question, self._grouping = transport, question, grouping

    @asks
    async def aggregate(self, /, *measures: Measure, **named: Measure) -> Rows[dict[str, Any]]:
        """Return a row for each group: its keys, and measures such as `mean(top_score)`."""
        return await aggregate(self._transport, self._question, self._grouping, measures, named)


class InferencesMethods(Asking, Generic[InferenceT, GroupsT, ExportT]):
    """The inferences that match a question."""

    _inference: type[InferenceT]
    _groups: Callable[[Transport, Question, Grouping], GroupsT]
    _export: type[ExportT]

    def __init__(self, transport: Transport, question: Question) -> None:
        self._transport, self._question = transport, question

    @asks
    async def count(self) -> int:
        """Count the matches, exactly."""
        return await reading.count(self._transport, self._question)

    @asks
    async def first(self) -> InferenceT | None:
        """Return the first match in the order asked for; None: nothing matches."""
        found = reading.find_first(self._transport, self._question, self._make)
        first: InferenceT | None = await found
        return first

    @asks
    async def head(self, size: int = 5) -> Rows[InferenceT]:
        """Return the first matches in the order, as a list that shows itself."""
        question = self._question.take(size)
        return await collect(reading.read_all(self._transport, question, self._make))

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
    async def aggregate(self, /, *measures: Measure, **named: Measure) -> dict[str, Any]:
        """Return measures of all matches by name: `aggregate("count", "mean(top_score)")`."""
        rows = await aggregate(self._transport, self._question, Grouping(), measures, named)
        return rows[0] if rows else {}

    @asks
    async def evaluate(
        self,
        group_by: str | Mapping[str, Any] | None = None,
        **options: Unpack[EvaluationOptions],
    ) -> Mapping[str, Any]:
        """Compare the matches with their ground truth: the API's answer, as it is.

        `group_by`: a metadata key or property to slice by; the worst slice comes first.
        """
        return await evaluate(self._transport, self._question, group_by, options)

    @asks
    async def tag(self, *tags: str) -> TaggedInferences:
        """Add tags to the matches, at most 1,000; `tags = 'x'` finds them in a filter."""
        return await self._change_tags(add=tags)

    @asks
    async def untag(self, *tags: str) -> TaggedInferences:
        """Remove tags from the matches, at most 1,000."""
        return await self._change_tags(remove=tags)

    async def _change_tags(self, **tags: Sequence[str]) -> TaggedInferences:
        """Change tags of what matches now; what the question takes only a part of is read."""
        transport, question = self._transport, self._question
        body: dict[str, Any] = {"add": [], "remove": [], **tags}
        if question.limit is not None:
            asked = replace(question, fields=("uid",))
            taken = await collect(reading.read_all(transport, asked, dict))
            if not taken:
                return TaggedInferences(
                    changed=0, unchanged=0, missing=(), refused=(), remaining=()
                )
            body["inference_ids"] = [f"uid:{item['uid']}" for item in taken]
        else:
            body |= question.list_conditions()
            if question.inference_ids is None:
                body["expected"] = await reading.count(transport, question)
        request = make_request("POST", f"{question.path}/tags", body=body)
        return await reading.fetch(transport, TaggedInferences, request)

    @yields
    def pages(self, size: int | None = None) -> AsyncIterator[Page[InferenceT]]:
        """Yield every page, of up to `size` inferences each."""
        return reading.read_pages(self._transport, self._question, self._make, size=size)

    @yields
    def stream(self) -> AsyncIterator[InferenceT]:
        """Yield every match, and resume if the connection breaks. It needs the right `export`.

        Raises StreamIncomplete if it cannot: a short result never looks like a whole one.
        """
        return reading.read_all(self._transport, self._question, self._make)

    @asks
    async def to_arrow(self, fields: Sequence[str] | None = None) -> Any:
        """Return every match as a `nanoarrow.Array`: `pyarrow.table(…)` takes it.

        `fields`: these columns alone. It needs the right `export` and the extra `arrow`.
        """
        return await self._read_columns(fields, "arrow", read_array)

    @asks
    async def to_pandas(self, fields: Sequence[str] | None = None) -> Any:
        """Return every match as a `pandas.DataFrame`; as `to_arrow`, and the extra `pandas`."""
        return await self._read_columns(fields, "pandas", make_pandas)

    @asks
    async def to_polars(self, fields: Sequence[str] | None = None) -> Any:
        """Return every match as a `polars.DataFrame`; as `to_arrow`, and the extra `polars`."""
        return await self._read_columns(fields, "polars", make_polars)

    async def _read_columns(
        self, fields: Sequence[str] | None, extra: str, make: Callable[[bytes], Any]
    ) -> Any:
        require_frames(extra)
        question = replace(self._question, fields=fields)
        return make(await read_columns(self._transport, question))

    @asks
    async def export(
        self,
        format: ExportFormat = "parquet",
        *,
        blobs: ExportBlobs | None = None,
        expires_in: str | timedelta | None = None,
        confirm: bool = False,
    ) -> ExportT:
        """Let the store write every match to its bucket, in parts. It needs the right `export`.

        `blobs`: beside each inference nothing, links to its blobs, or their bytes (`copy`); links
        and copies need the right `read_inputs`. Left out: `copy` for webdataset, else nothing.
        `expires_in`: when the parts are deleted: a `timedelta`, or an ISO 8601 duration (`P7D`).
        `confirm`: also if very many match.
        """
        request = exporting.make_export_request(
            self._question, format, blobs=blobs, expires_in=expires_in, confirm=confirm
        )
        return await exporting.read_export(self._transport, request, self._maker(self._export))

    @asks
    async def html(self) -> str:
        """Return the first matches as HTML: pictures with boxes, as inline SVG."""
        return await previewing.read_html(self._transport, self._question, self._make)

    @asks
    async def to_dataset(
        self, /, format: str, folder: Folder, *, classes: Classes = None, **options: Any
    ) -> "DatasetSummary":
        """Write pictures and predictions into a new folder; `format`: of `datasets.FORMATS`.

        A folder is written as a whole, or there is none. `classes`: these labels alone, in this
        order; None: all that come, sorted. Each inference that matches is in it once, or counted in
        the summary; otherwise it raises. It needs the rights `export` and `read_inputs`, and the
        extra `datasets`.
        """
        from .datasets import writing  # noqa: PLC0415  (takes time to import)

        request = writing.make_dataset_request(format, folder, classes, **options)
        return await writing.write_dataset(self._transport, self._question, request)

    def _ask(self, question: Question) -> Self:
        return type(self)(self._transport, question)

    def _make(self, members: Json) -> InferenceT:
        return self._maker(self._inference)(members)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._question.describe()})"


class ModelMethods(Asking, Generic[InferenceT, InferencesT, ReplayT]):
    """One model of the store."""

    _inference: type[InferenceT]
    _replay: type[ReplayT]
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
    async def inference(self, inference_id: str) -> InferenceT:
        """Read an inference by its id, an alias, or `uid:<uuid>`: the newest one that has it."""
        path = make_path("models", self.model_id, "inferences", inference_id)
        members = await reading.fetch_plain(self._transport, make_request("GET", path))
        return self._maker(self._inference)(members)

    @asks
    async def overview(self, *, since: Time | None = None, until: Time | None = None) -> Overview:
        """Read what it did in a window: counts, latency, labels and scores over time."""
        request = reading.make_overview_request(self.model_id, since, until)
        return await reading.fetch(self._transport, Overview, request)

    @asks
    async def drift(
        self,
        reference: "InferencesMethods[Any, Any, Any]",
        current: "InferencesMethods[Any, Any, Any]",
        *,
        of: Sequence[str | Mapping[str, Any]] | None = None,
        level: float | None = None,
        sample: int | None = None,
    ) -> Drift:
        """Compare two windows, `inferences(since="8d", until="1d")` and `inferences(since="1d")`.

        `of`: what is compared; None: all that makes sense. `level`: how likely a false alarm is, in
        all. `sample`: how many inferences of each are compared at most.
        """
        more = {"of": of, "level": level, "sample": sample}
        request = reading.make_drift_request(reference._question, current._question, more)
        drift = await reading.fetch(self._transport, Drift, request)
        warn(drift.warnings)
        return drift

    @asks
    async def load_ground_truth(
        self, rows: str | Path | labelling.TruthRows, *, columns: Mapping[str, str] | None = None
    ) -> TruthLoad:
        """Say what is true of many inferences: a file (.csv, .jsonl, .parquet) or rows.

        Each row has `inference_id`, `uid`, `data_hash` or `metadata.KEY`, and `items` as `label`
        takes them, or `label`, `xmin`, `ymin`, `xmax`, `ymax`, `text`, `value`. `columns`: what the
        rows call these, `{"label": "class"}`. What comes before its inference waits for it.
        """
        return await labelling.load(self._transport, self.model_id, rows, columns or {})

    @asks
    async def replay(
        self,
        filter: Filter | None = None,
        *,
        to: str,
        version: str | None = None,
        since: Time | None = None,
        until: Time | None = None,
        sample: float | None = None,
        most: int | None = None,
        rate: float | None = None,
        tolerance: float | None = None,
    ) -> ReplayT:
        """Let the store send what matches to the model `to` again, and compare the answers.

        `sample`: a share of the matches, the same ones each time; `most`: inferences, 1,000 if left
        out; `rate`: calls a second, 5 if left out; `tolerance`: of numbers. It needs the rights
        `export` and `read_inputs`.
        """
        question = Question.make("", filter, {"since": since, "until": until})
        target = {"model": to} if version is None else {"model": to, "version": version}
        numbers = {"sample": sample, "most": most, "rate": rate, "tolerance": tolerance}
        body = {**question.list_conditions(), "to": target, **numbers}
        members = await request_replay(self._transport, self.model_id, body)
        return self._maker(self._replay)(members)

    @asks
    async def registration(self) -> Registration:
        """Read the model's entry."""
        request = make_request("GET", make_path("models", self.model_id))
        return await reading.fetch(self._transport, Registration, request)

    @asks
    async def metadata_keys(self) -> Rows[MetadataKey]:
        """Return the model's metadata keys, with the types under which they came."""
        path = make_path("models", self.model_id, "metadata-keys")
        return await collect(reading.read_list(self._transport, path, Listing[MetadataKey]))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model_id!r})"


class StoreMethods(Asking, Generic[ModelT, InferencesT, ExportT, HttpT]):
    """An Inference Store."""

    _transport: HttpTransport
    _make_transport: Callable[[ClientSettings, HttpT | None], HttpTransport]
    _model: Callable[[Transport, str], ModelT]
    _inferences: Callable[[Transport, Question], InferencesT]
    _export: type[ExportT]

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        retries: Retries = DEFAULT_RETRIES,
        http_client: HttpT | None = None,
    ) -> None:
        settings = find_settings(url, key, retries=retries)
        self._transport = type(self)._make_transport(settings, http_client)

    @asks
    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    def model(self, model_id: str) -> ModelT:
        """Return a model; nothing is asked yet."""
        return self._model(self._transport, model_id)

    @asks
    async def models(self, *, project_id: str | None = None) -> Rows[Registration]:
        """Return the models that you may read, of a project or all; the list shows itself."""
        params = {} if project_id is None else {"project_id": project_id}
        path = make_path("models")
        listed = reading.read_list(self._transport, path, Listing[Registration], params)
        return await collect(listed)

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
    async def load_ground_truth(
        self, rows: str | Path | labelling.TruthRows, *, columns: Mapping[str, str] | None = None
    ) -> TruthLoad:
        """Say what is true of inferences of several models: rows as `Model.load_ground_truth` takes
        them, with `model_id`. Without it, a row of `data_hash` is for all models that you may
        label, if these are at most a hundred.
        """
        return await labelling.load(self._transport, None, rows, columns or {})

    @asks
    async def me(self) -> Caller:
        """Read who the caller is, and what they may do."""
        return await reading.fetch(self._transport, Caller, make_request("GET", make_path("me")))

    @asks
    async def export(self, id: UUID | str) -> ExportT:
        """Read an export that was requested before."""
        request = make_request("GET", make_path("exports", str(id)))
        return await exporting.read_export(self._transport, request, self._maker(self._export))

    @asks
    async def request(
        self, method: str, path: str, *, params: Mapping[str, Any] | None = None, body: Json = None
    ) -> Json:
        """Ask any route: `request("GET", "/v1/holds")`. Numbers are exact, decimals are `Decimal`.

        Only what reads is sent again if it fails.
        """
        if not path.startswith("/v1/"):
            raise SettingsError(f"{path!r} is no path of the API: it begins with /v1/")
        request = make_request(method, path, params=params, body=body)
        return await reading.request_any(self._transport, request)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._transport.settings.origin.url!r})"
