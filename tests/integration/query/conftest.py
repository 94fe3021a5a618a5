"""Databases that many tests read, each filled once; what a test writes, it rolls back."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.database import create_engine
from inference_store.inference.events.event import Extras
from tests.integration.stored_inferences import NewInference, at, store
from tests.servers.fixtures import unique
from tests.servers.postgres import Postgres

from .typed_rows import InferenceMaker

DAY = 86_400
DAYS = 20


@dataclass(frozen=True)
class Filled:
    """A filled database: its address, and the integer and the inferences of each model."""

    dsn: str
    models: Mapping[str, int]
    inferences: Mapping[str, Sequence[NewInference]]

    @property
    def one(self) -> int:
        return self.models["one"]


def fill(server: Postgres, template: str, *models: Sequence[NewInference]) -> Iterator[Filled]:
    """Make a database with the inferences of these models; drop it afterwards."""

    async def store_all() -> dict[str, int]:
        engine = create_engine(dsn)
        stored = {some[0].model_id: await store(engine, *some) for some in models}
        await engine.dispose()
        return stored

    name = unique()
    dsn = server.create_database(name, template=template)
    yield Filled(dsn, asyncio.run(store_all()), {some[0].model_id: some for some in models})
    server.drop_database(name)


def make_days(model_id: str, days: int = DAYS, *, numbered: bool = True) -> list[NewInference]:
    """Make three inferences a day, each day a partition; `numbered`: with the key `n`.

    Each of ten ids occurs six times, and each alias once, except one that is also an id.
    """
    return [
        NewInference(
            f"id-{n % 10}",
            at(n * DAY / 3),
            [
                ("n" if numbered else "nn", "int", str(n)),
                ("even", "bool", str(n % 2 == 0).lower()),
                *([("rare", "string", "yes")] if n in {2, 31, 58} else []),
                ("tags", "json", '["Cat", "cat", "CAT"]' if n % 2 else '["dog"]'),
                ("a", "json", '["x", "y", "z"]'),
                ("b", "json", '["x", "y"]' if n % 2 else '["w"]'),
            ],
            [("person" if n % 5 == 0 else "dog", n / 100), ("person", 0.9)],
            aliases=(f"alias-{n}", *(["id-4"] if n == 7 else [])),
            extras=Extras(ok=n % 4 != 0, data_hash=f"{n % 4:064x}"),
            model_id=model_id,
        )
        for n in range(3 * days)
    ]


@pytest.fixture(scope="session")
def twenty_days(postgres_server: Postgres, migrated_template: str) -> Iterator[Filled]:
    """Fill two models with twenty days, and eight with a few: more than one statement reads."""
    few = [make_days(f"model-{n}", n, numbered=n % 2 == 0) for n in range(2, 10)]
    both = (make_days("one"), make_days("other"))
    yield from fill(postgres_server, migrated_template, *both, *few)


@pytest.fixture
async def days_engine(twenty_days: Filled) -> AsyncIterator[AsyncEngine]:
    engine = create_engine(twenty_days.dsn)
    yield engine
    await engine.dispose()


@pytest.fixture
async def days(days_engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """Open a connection to `twenty_days`, whose transaction is rolled back."""
    async with days_engine.connect() as connection:
        yield connection


def make_extremes() -> list[NewInference]:
    """Make inferences with the longest number and the first and last day, each several times."""
    values = [("float", "9" * 599 + ".5e400"), ("timestamp", "0001-01-01")]
    values += [("timestamp", "9999-12-31"), ("int", "98765432109876543210")]
    return [
        NewInference(str(n), at(n // 6 * DAY), [("k", *values[n % 4])], model_id="extremes")
        for n in range(12)
    ]


@pytest.fixture(scope="session")
def anything(postgres_server: Postgres, migrated_template: str) -> Iterator[Filled]:
    """Fill models with inferences of every sort: no answer may show those of another."""
    models = (InferenceMaker(seed).make_inferences(f"model-{seed}", 50) for seed in range(4))
    yield from fill(postgres_server, migrated_template, *models, make_extremes())


@pytest.fixture
async def anything_engine(anything: Filled) -> AsyncIterator[AsyncEngine]:
    engine = create_engine(anything.dsn)
    yield engine
    await engine.dispose()
