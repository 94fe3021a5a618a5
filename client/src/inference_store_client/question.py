"""A question about inferences, as a value: what is asked, and in which order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Self, TypeAlias, TypedDict

from inference_store_client.json_text import Instant, format_instant

from .errors import SettingsError
from .filters import Expression, Filter, encode_filter
from .requests import ARROW, CSV, NDJSON, Request, make_request

Include: TypeAlias = Literal["metadata", "predictions", "urls"]
NEWEST_FIRST: Final = "-received_at"


class QuestionOptions(TypedDict, total=False):
    """What a question may say besides its filter; `Question` has the meaning of each."""

    since: Instant | None
    until: Instant | None
    include: Sequence[Include]
    sort: str
    inference_ids: Sequence[str] | None
    unknown_keys: Literal["refuse", "empty"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Which inferences of a model. Building one asks the store nothing."""

    path: str
    """The route that answers: `/v1/models/…/inferences`."""
    filter: Filter | None = None
    since: Instant | None = None
    """The first instant of `received_at`."""
    until: Instant | None = None
    """The first instant after it."""
    include: Sequence[Include] = ("metadata", "predictions")
    sort: str = NEWEST_FIRST
    inference_ids: Sequence[str] | None = None
    unknown_keys: Literal["refuse", "empty"] = "refuse"
    sample: Mapping[str, int] | None = None
    fields: Sequence[str] | None = None
    """Of an inference as the API has it: these fields alone, and `uid`."""
    models: Mapping[str, Any] = field(default_factory=dict)
    """Of a question across models: which ones."""

    def count_request(self) -> Request:
        """Make the request for the number of matches."""
        return make_request("POST", f"{self.path}/count", body=self.list_conditions())

    def page_request(self, cursor: str | None, limit: int | None) -> Request:
        """Make the request for a page."""
        limits = {} if limit is None else {"limit": limit}
        body = self._body(cursor) | limits
        return make_request("POST", f"{self.path}/query", body=body)

    def stream_request(self, cursor: str | None) -> Request:
        """Make the request for all matches, after a cursor."""
        body = self._body(cursor)
        return make_request("POST", f"{self.path}/query", body=body, accept=NDJSON)

    def columns_request(
        self, fields: Sequence[str] | None, cursor: str | None, *, accept: str = ARROW
    ) -> Request:
        """Make the request for all matches as columns, after a cursor; `accept`: or as CSV."""
        body = self._body(cursor)
        if fields is not None:
            body |= {"fields": list(fields), "include": []}
        if accept == CSV:  # the others have cursors anyway
            body["cursors"] = True
        return make_request("POST", f"{self.path}/query", body=body, accept=accept)

    def take_sample(self, size: int, seed: int) -> Self:
        """Return the question for a random sample of the matches."""
        if self.sort != NEWEST_FIRST:
            raise SettingsError("a sample is in random order: leave `sort` out")
        return replace(self, sample={"size": size, "seed": seed})

    def with_pictures(self) -> Self:
        """Return the question for all that a dataset holds: with links to the pictures."""
        return replace(self, include=("metadata", "predictions", "urls"), fields=None)

    def of_models(self, model_ids: Sequence[str] | None, project_id: str | None) -> Self:
        """Return the question across models: those, or those of a project."""
        chosen = {"model_ids": model_ids and list(model_ids), "project_id": project_id}
        return replace(self, models={k: v for k, v in chosen.items() if v is not None})

    def describe(self) -> str:
        """Return the question in a few words."""
        filter = self.filter.tree if isinstance(self.filter, Expression) else self.filter
        return self.path if filter is None else f"{self.path}, {filter!r}"

    def list_conditions(self) -> dict[str, Any]:
        """Return the members of a body that say which inferences."""
        window = {"from": self.since, "to": self.until}
        received = {name: format_instant(at) for name, at in window.items() if at is not None}
        members = dict(self.models)
        members |= {} if self.filter is None else encode_filter(self.filter)
        members |= {"received_at": received} if received else {}
        if self.inference_ids is not None:
            members["inference_ids"] = list(self.inference_ids)
        if self.unknown_keys != "refuse":
            members["unknown_keys"] = self.unknown_keys
        return members

    def _body(self, cursor: str | None) -> dict[str, Any]:
        order = {"sort": self.sort} if self.sample is None else {"sample": self.sample}
        position = {} if cursor is None else {"cursor": cursor}
        return {**self.list_conditions(), **order, **self._parts(), **position}

    def _parts(self) -> dict[str, Any]:
        if self.fields is None:
            return {"include": list(self.include)}
        return {"include": [], "fields": list(dict.fromkeys([*self.fields, "uid"]))}
