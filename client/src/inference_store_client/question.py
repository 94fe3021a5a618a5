"""A question about inferences, as a value: what is asked, and in which order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Literal, Self, TypeAlias, TypedDict

from .errors import SettingsError
from .filters import Expression, Filter, encode_filter, join_filters
from .requests import ARROW, CSV, JSON, Request, make_request
from .times import Time, format_instant, read_time

Include: TypeAlias = Literal["metadata", "predictions", "ground_truth", "urls"]
NEWEST_FIRST: Final = "-received_at"
MOST_OF_A_PAGE: Final = 1000


class QuestionOptions(TypedDict, total=False):
    """What a question may say besides its filter; `Question` has the meaning of each."""

    since: Time | None
    until: Time | None
    include: Sequence[Include]
    inference_ids: Sequence[str] | None
    unknown_keys: Literal["refuse", "empty"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Which inferences of a model. Building one asks the store nothing."""

    path: str
    """The route that answers: `/v1/models/…/inferences`."""
    filter: Filter | None = None
    since: datetime | None = None
    """The first instant of `received_at`."""
    until: datetime | None = None
    """The first instant after it."""
    include: Sequence[Include] = ("metadata", "predictions")
    sort: str = NEWEST_FIRST
    inference_ids: Sequence[str] | None = None
    unknown_keys: Literal["refuse", "empty"] = "refuse"
    limit: int | None = None
    """At most so many matches, the first in the order."""
    seed: int | None = None
    """Of a random sample of `limit` matches."""
    fields: Sequence[str] | None = None
    """Of an inference as the API has it: these fields alone, and `uid`."""
    models: Mapping[str, Any] = field(default_factory=dict)
    """Of a question across models: which ones."""

    @classmethod
    def make(cls, path: str, filter: Filter | None, options: QuestionOptions, **more: Any) -> Self:
        """Make a question. A time ago is that before now, however often it is asked."""
        given = {"since": options.get("since"), "until": options.get("until")}
        times = {name: None if time is None else read_time(time) for name, time in given.items()}
        return cls(path=path, filter=filter, **{**options, **times, **more})

    def count_request(self) -> Request:
        """Make the request for the number of matches."""
        return make_request("POST", f"{self.path}/count", body=self.list_conditions())

    def query_request(
        self, cursor: str | None, *, limit: int | None = None, accept: str = JSON
    ) -> Request:
        """Make the request for the matches after a cursor: a page, or in another form a stream."""
        body = {**self.list_conditions(), **self._list_parts(accept)}
        if self.seed is not None:
            body["sample"] = {"size": self.limit, "seed": self.seed}
        else:
            body["sort"] = self.sort
        if limit is not None and self.seed is None:
            body["limit"] = limit
        if cursor is not None:
            body["cursor"] = cursor
        return make_request("POST", f"{self.path}/query", body=body, accept=accept)

    def narrow(self, filter: Filter) -> Self:
        """Return the question for the matches that satisfy a filter too."""
        self._refuse_limited("filter")
        return replace(
            self, filter=filter if self.filter is None else join_filters(self.filter, filter)
        )

    def order_by(self, sort: str) -> Self:
        """Return the question for the matches in another order."""
        self._refuse_limited("sort")
        return replace(self, sort=sort)

    def take(self, size: int) -> Self:
        """Return the question for the first matches in the order."""
        return replace(
            self, limit=_check_size(size if self.limit is None else min(size, self.limit))
        )

    def take_sample(self, size: int, seed: int) -> Self:
        """Return the question for a random sample of the matches."""
        self._refuse_limited("sample")
        if self.sort != NEWEST_FIRST:
            raise SettingsError("a sample is in random order: leave `sort` out")
        return replace(self, limit=_check_size(size), seed=seed)

    def _refuse_limited(self, step: str) -> None:
        if self.limit is not None:
            raise SettingsError(
                f"the first or a sample of the matches: {step} before you take them"
            )

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

    def _list_parts(self, accept: str) -> dict[str, Any]:
        """Return the members of a body that say what comes of each inference."""
        cursors = {"cursors": True} if accept == CSV else {}  # the others have them anyway
        if self.fields is None:
            return {"include": list(self.include), **cursors}
        names = [*self.fields] if accept in {ARROW, CSV} else [*self.fields, "uid"]
        return {"include": [], "fields": [*dict.fromkeys(names)], **cursors}


def _check_size(size: int) -> int:
    if size < 1:
        raise SettingsError(f"{size} is not a number of inferences of at least 1")
    return size
