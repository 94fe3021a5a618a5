"""Inferences stored in a real database as the ingester writes them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import partitions, registrations
from inference_store.index.dictionary import Dictionary
from inference_store.index.writing import Indexable, build_deltas, rows_of, write, write_deltas
from inference_store.inference.events import InferenceEvent, StorageKey
from inference_store.inference.events.event import NO_EXTRAS, Extras, uid_of
from inference_store.inference.metadata import Metadata, read_metadata
from inference_store.inference.task_types import Prediction, Predictions

START = datetime(2026, 11, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class NewInference:
    """An inference to store. `metadata`: (key, type, value); a prediction by label and score.

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
        """Return its metadata as the ingester reads them."""
        items = [{"key": k, "type": t, "value": v} for k, t, v in self.metadata]
        return read_metadata(json.dumps(items).encode())

    @property
    def predicted(self) -> tuple[Prediction, ...] | None:
        """Return its predictions as the ingester reads them; None: unknown."""
        predictions = self.predictions
        return (
            None
            if predictions is None
            else tuple(_prediction(n, p) for n, p in enumerate(predictions))
        )

    @property
    def uid(self) -> UUID:
        return uid_of(self.received_at, self.model_id, self.inference_id)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def _prediction(index: int, prediction: tuple[str | None, float | None] | Prediction) -> Prediction:
    if isinstance(prediction, Prediction):
        return prediction
    label, score = prediction
    return Prediction(ordinal=index, rank=index + 1, output=0, label=label, score=score)


def make_indexable(inference: NewInference, registration: registrations.Registration) -> Indexable:
    """Return the inference as the ingester has read it."""
    data, response, metadata = (
        None if key is None else StorageKey(*key.split("/", 1)) for key in inference.keys
    )
    event = InferenceEvent(
        uid=inference.uid,
        model_id=inference.model_id,
        inference_id=inference.inference_id,
        received_at=inference.received_at,
        forwarded_at=inference.times[0],
        responded_at=inference.times[1],
        published_at=inference.times[2],
        aliases=inference.aliases,
        extras=inference.extras,
        data=data,
        response=response,
        metadata=metadata,
        flags=inference.flags,
    )
    return Indexable(
        event, registration, inference.read, Predictions(inference.predicted, (), None)
    )


async def store(engine: AsyncEngine, *inferences: NewInference) -> int:
    """Write inferences of one model; return the integer of the model."""
    model_id = inferences[0].model_id
    instants = [inference.received_at for inference in inferences]
    # as if they came within a day: what is old by the clock would have wide partitions
    soon = min(datetime.now(UTC), max(instants) + timedelta(days=1))
    await partitions.make_missing(engine, instants, target=5_000_000, now=soon)
    async with engine.begin() as connection:
        details = registrations.Details()
        registration = (await registrations.find_by_ids(connection, [model_id])).get(model_id)
        if registration is None:
            registration, _ = await registrations.put(connection, model_id, details)
    items = [make_indexable(inference, registration) for inference in inferences]
    dictionary = Dictionary(engine)
    model = registration.model
    names = {leaf.name for item in items for leaf in item.metadata.leaves}
    names |= {presence.name for item in items for presence in item.metadata.presences}
    labels = {
        prediction.label
        for item in items
        for prediction in item.predictions.items or ()
        if prediction.label
    }
    several = {name for item in items for name in item.metadata.several}
    await dictionary.resolve({model: names}, {model: labels}, several)
    async with engine.begin() as connection:
        rows = [rows_of(item, dictionary, indexed_at=START) for item in items]
        await write(connection, rows)
        await write_deltas(connection, build_deltas(items, dictionary))
    return model
