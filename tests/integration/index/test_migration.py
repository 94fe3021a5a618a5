import asyncio
from datetime import timedelta

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import policies
from inference_store.erasure.policies import Of, RetentionPolicy
from inference_store.index import partitions
from inference_store.index.database import create_engine
from inference_store.index.migration import downgrade, upgrade
from inference_store.index.tables import METADATA
from tests.integration.stored import START, Made, store
from tests.servers.fixtures import migrate, unique
from tests.servers.postgres import Postgres


def differences(connection: Connection) -> list[object]:
    context = MigrationContext.configure(connection, opts={"compare_server_default": False})
    return list(compare_metadata(context, METADATA))


async def test_the_migrations_make_the_tables_that_the_code_knows(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        assert await connection.run_sync(differences) == []


def test_down_and_up_again(postgres_server: Postgres) -> None:
    name = unique()
    dsn = postgres_server.create_database(name)
    migrate(dsn)
    downgrade(dsn)
    upgrade(dsn)
    upgrade(dsn)
    postgres_server.drop_database(name)


async def test_the_sidecars_column_reaches_partitions_that_are_there(
    postgres_server: Postgres,
) -> None:
    name = unique()
    dsn = postgres_server.create_database(name)
    await asyncio.to_thread(upgrade, dsn, "0001")
    engine = create_engine(dsn)
    two_days = [START, START + timedelta(days=1)]
    await partitions.make_missing(engine, two_days, target=5_000_000)
    await asyncio.to_thread(upgrade, dsn)
    # written to the old partitions, and copied by position to one that is made anew
    await store(engine, Made("one", START), Made("two", two_days[1]))
    await partitions.analyse(engine)
    assert await partitions.merge(engine, target=5_000_000, older_than=timedelta()) == 1
    async with engine.connect() as connection:
        rows = await connection.execute(text("SELECT sidecar_storage_key FROM inference"))
        assert list(rows.scalars()) == [None, None]
    await engine.dispose()
    postgres_server.drop_database(name)


async def test_policies_of_the_version_before_stay_in_force(postgres_server: Postgres) -> None:
    name = unique()
    dsn = postgres_server.create_database(name)
    await asyncio.to_thread(upgrade, dsn, "0011")
    engine = create_engine(dsn)
    async with engine.begin() as connection:
        made = await connection.execute(
            text(
                "INSERT INTO registration (model_id, registered_by) VALUES ('a/b', 'api'),"
                " ('other', 'api') RETURNING model"
            )
        )
        model, _ = made.scalars()
        rules = '[{"name": "é", "keep_input": "P1D", "keep_inference": "P1Y"}]'
        await connection.execute(
            text(
                "INSERT INTO retention_policy (model, rules, revision)"
                " VALUES (:model, CAST(:rules AS jsonb), 7)"
            ),
            {"model": model, "rules": rules},
        )
    await asyncio.to_thread(upgrade, dsn)
    async with engine.begin() as connection:
        [(number, chain)] = (await policies.by_model(connection)).items()
        [decider] = chain.rules
        assert (number, decider.of, decider.revision) == (model, Of("model", "a/b"), 7)
        rule = decider.rule
        assert (rule.name, rule.keep_input, rule.response) == ("é", "P1D", "P1Y")
        later = await policies.put(connection, model, RetentionPolicy(max_inferences=1))
        assert later.revision == 8
    await engine.dispose()
    postgres_server.drop_database(name)


async def test_the_index_of_outcomes_reaches_partitions_that_are_there(
    postgres_server: Postgres,
) -> None:
    """Also where an attempt before was cut off: while it built a part, or before it attached it."""
    name = unique()
    dsn = postgres_server.create_database(name)
    await asyncio.to_thread(upgrade, dsn, "0004")
    engine = create_engine(dsn)
    days = [START + timedelta(days=day) for day in range(3)]
    made = await partitions.make_missing(engine, days, target=5_000_000)
    spans = [span for day in days if (span := made.find(day)) is not None]
    cut_off, unattached, _ = [f"inference_{span.name}" for span in spans]
    columns = "(model, uid) INCLUDE (ok, top_label, top_score, prediction_count)"
    async with engine.begin() as connection:
        await connection.execute(
            text(f"CREATE INDEX inference_outcome_idx ON ONLY inference {columns}")
        )
        for partition in (cut_off, unattached):
            index = f"{partition}_inference_outcome_idx"
            await connection.execute(text(f"CREATE INDEX {index} ON {partition} {columns}"))
        invalid = text(
            "UPDATE pg_index SET indisvalid = false"
            f" WHERE indexrelid = '{cut_off}_inference_outcome_idx'::regclass"
        )
        await connection.execute(invalid)
    await asyncio.to_thread(upgrade, dsn)
    await partitions.make_missing(engine, [days[-1] + timedelta(days=1)], target=5_000_000)
    query = text(
        "SELECT count(*), bool_and(indisvalid) FROM pg_index"
        " LEFT JOIN pg_inherits ON inhrelid = indexrelid"
        " WHERE 'inference_outcome_idx'::regclass IN (inhparent, indexrelid)"
    )
    async with engine.connect() as connection:
        assert (await connection.execute(query)).one() == (5, True)
    await engine.dispose()
    postgres_server.drop_database(name)


async def test_text_is_ordered_by_code_points(engine: AsyncEngine) -> None:
    query = text(
        "SELECT count(*) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid"
        " JOIN pg_namespace n ON n.oid = c.relnamespace"
        " JOIN pg_collation o ON o.oid = a.attcollation"
        " WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p') AND o.collname <> 'C'"
        " AND c.relname <> 'alembic_version'"
    )
    async with engine.connect() as connection:
        assert await connection.scalar(query) == 0
