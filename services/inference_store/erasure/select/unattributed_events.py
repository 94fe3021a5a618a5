"""Finds quarantined events that belong to no model of an erasure: what broke off before its model,
and events of models that are not registered.

Who requests an erasure of a subject decides how far it reaches. Over everything, by someone who may
erase everything: all of them. By the same person, over given models: those without a model whose
bytes name one of these models. By anyone else: none, because they may belong to any model. An event
of a model that is not registered is never one of given models.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from sqlalchemy import ColumnElement, false, or_

from inference_store.erasure.request.criteria import Subject
from inference_store.index.tables import unsettled_event
from inference_store.query.filters.typed import Predicate

from .quarantined_events import EventMetadata, QuarantinedEvent, filter_by_subject
from .searched_bytes import names_text

Reach: TypeAlias = Literal["all", "named"]
MEMBER: Final = "unattributed"
"""The member of the criteria that stores the reach, so that a replay erases the same."""


@dataclass(frozen=True, slots=True)
class UnattributedSearch:
    """A search for quarantined events beside those of the models of an erasure. `reach` None:
    there are none for it."""

    reach: Reach | None
    model_ids: frozenset[str]
    """The models of the erasure that are registered."""

    def match(self) -> ColumnElement[bool]:
        """Return the condition of the rows to read. `filter_by_subject` checks their bytes."""
        here = unsettled_event.c.model_id
        match self.reach:
            case "all":
                return or_(here.is_(None), here.not_in(sorted(self.model_ids)))
            case "named":
                return here.is_(None)
            case None:
                return false()

    def filter_by_subject(
        self,
        events: Iterable[QuarantinedEvent],
        subject: Subject,
        predicate: Predicate,
        metadata: EventMetadata,
    ) -> list[QuarantinedEvent]:
        """Return the events that mention the subject and that the erasure reaches."""
        about_it = filter_by_subject(events, subject, predicate, metadata)
        return [quarantined for quarantined in about_it if self._reaches(quarantined)]

    def _reaches(self, quarantined: QuarantinedEvent) -> bool:
        if self.reach == "all" or quarantined.model_id in self.model_ids:
            return True
        return any(names_text(quarantined.payload, model_id) for model_id in self.model_ids)


def build_search(criteria: Mapping[str, Any], model_ids: Collection[str]) -> UnattributedSearch:
    """Return the search of an erasure of these registered models."""
    return UnattributedSearch(criteria.get(MEMBER), frozenset(model_ids))


def has_searched_all(criteria: Mapping[str, Any]) -> bool:
    """Return whether an erasure by these criteria searches every quarantined event."""
    return criteria.get(MEMBER) == "all"
