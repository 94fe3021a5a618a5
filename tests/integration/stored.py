"""Inferences put into a real database the way the ingester writes them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import partitions, registrations
from inference_store.index.dictionary import Dictionary
from inference_store.index.writing import Indexable, deltas, rows_of, write, write_deltas
from inference_store.inference.events import InferenceEvent, StorageKey
from inference_store.inference.events.event import NO_EXTRAS, Extras
from inference_store.inference.events.uid import uid_of
from inference_store.inference.metadata import Metadata, read_metadata
from inference_store.inference.task_types import Prediction, Predictions

START = datetime(2026, 11, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Made:
    """One inference to store. `metadata`: (key, type, value); a prediction by label and score.

    `times`: forwarded, responded, published.
    """

    inference_id: str = "one"
    received_at: datetime = START
    metadata: Sequence[tuple[str, str, Any]] = ()
    predictions: Sequence[tuple[str | None, float | None] | Prediction] | None = ()
    aliases: tuple[str, ...] = ()
    extras: Extras = NO_EXTRAS
    keys: tuple[str | None, str | None, str | None] = (None, None, None)
    model_id: str = "model"
    flags: tuple[str, ...] = ()
    times: tuple[datetime | None, datetime | None, datetime | None] = (None, None, None)

    @property
    def read(self) -> Metadata:
        """What its metadata become."""
        items = [{"key": k, "type": t, "value": v} for k, t, v in self.metadata]
        return read_metadata(json.dumps(items).encode())

    @property
    def predicted(self) -> tuple[Prediction, ...] | None:
        """What its predictions become; None: unknown."""
        found = self.predictions
        return None if found is None else tuple(_prediction(n, p) for n, p in enumerate(found))

    @property
    def uid(self) -> UUID:
        """Its uid."""
        return uid_of(self.received_at, self.model_id, self.inference_id)


def at(seconds: float) -> datetime:
    """So long after START."""
    return START + timedelta(seconds=seconds)


def _prediction(place: int, given: tuple[str | None, float | None] | Prediction) -> Prediction:
    if isinstance(given, Prediction):
        return given
    label, score = given
    return Prediction(ordinal=place, rank=place + 1, output=0, label=label, score=score)


def indexable(made: Made, registration: registrations.Registration) -> Indexable:
    """As the ingester has read it."""
    data, response, metadata = (
        None if key is None else StorageKey(*key.split("/", 1)) for key in made.keys
    )
    event = InferenceEvent(
        uid=made.uid,
        model_id=made.model_id,
        inference_id=made.inference_id,
        received_at=made.received_at,
        forwarded_at=made.times[0],
        responded_at=made.times[1],
        published_at=made.times[2],
        aliases=made.aliases,
        extras=made.extras,
        data=data,
        response=response,
        metadata=metadata,
        flags=made.flags,
    )
    return Indexable(event, registration, made.read, Predictions(made.predicted, (), None))


async def store(engine: AsyncEngine, *made: Made) -> int:
    """Write inferences of one model; the model's integer."""
    model_id = made[0].model_id
    await partitions.make_missing(engine, [each.received_at for each in made], target=5_000_000)
    async with engine.begin() as connection:
        details = registrations.Details()
        registration = (await registrations.known(connection, [model_id])).get(model_id)
        if registration is None:
            registration, _ = await registrations.put(connection, model_id, details)
    items = [indexable(each, registration) for each in made]
    dictionary = Dictionary(engine)
    model = registration.model
    names = {leaf.name for item in items for leaf in item.metadata.leaves}
    names |= {each.name for item in items for each in item.metadata.presences}
    labels = {each.label for item in items for each in item.predictions.items or () if each.label}
    await dictionary.resolve({model: names}, {model: labels})
    async with engine.begin() as connection:
        rows = [rows_of(item, dictionary, indexed_at=START) for item in items]
        await write(connection, rows)
        await write_deltas(connection, deltas(items, dictionary))
    return model
