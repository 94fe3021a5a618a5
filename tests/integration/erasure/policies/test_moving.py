"""A model that moves: whose policy decides meanwhile, and which minimum ages it may leave."""

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure import policies
from inference_store.erasure.policies import DEFAULT, Of, RetentionPolicy
from inference_store.erasure.preview import changed
from inference_store.index import registrations
from inference_store.index.registrations import Details, Registration
from tests.integration.erasure.policies.test_policies import policy, put

OLD, NEW = Of("project", "old"), Of("project", "new")
_GRACE = 3600.0


def least(age: str | None, **more: Any) -> RetentionPolicy:
    document = {"minimum_age": age, "max_inferences": 9, **more}
    return RetentionPolicy.model_validate(document)


async def of_old(connection: AsyncConnection, name: str = "m") -> Registration:
    made, _ = await registrations.put(connection, name, Details(project_id="old"))
    return made


async def move(
    connection: AsyncConnection, project: str | None, grace: float = _GRACE
) -> Registration:
    found = await registrations.get(connection, "m")
    body = await policies.moving(connection, found, project, grace_seconds=grace)
    await policies.apply_moved(connection, body, datetime.now(UTC), "me")
    return await registrations.get(connection, "m")


async def deciding(connection: AsyncConnection) -> list[Of]:
    found = await policies.by_model(connection)
    return [each.of for chain in found.values() for each in chain.rules]


async def over(connection: AsyncConnection) -> None:
    """The grace is over."""
    await connection.execute(text("UPDATE registration SET moves_at = now()"))


async def test_the_project_that_it_leaves_decides_until_the_grace_is_over(
    engine: AsyncEngine,
) -> None:
    async with engine.begin() as connection:
        await put(connection, OLD, policy("P9D"))
        await put(connection, NEW, policy("P1D"))
        await of_old(connection)
        found = await move(connection, "new")
        assert (found.project_id, found.left_project_id, found.revision) == ("new", "old", 2)
        assert await deciding(connection) == [OLD]
        await move(connection, "third")  # of the two that it left the one that decides still
        assert await deciding(connection) == [OLD]
        back = await move(connection, "old")
        assert (back.left_project_id, back.moves_at) == (None, None)
        await move(connection, "new")
        await over(connection)
        assert await deciding(connection) == [NEW]
        await move(connection, None)
        assert await deciding(connection) == [NEW]
        await over(connection)
        assert await deciding(connection) == []


async def test_without_a_grace_it_counts_at_once_and_a_missing_model_is_registered(
    engine: AsyncEngine,
) -> None:
    async with engine.begin() as connection:
        await put(connection, NEW, policy("P1D"))
        await of_old(connection)
        await move(connection, "new", grace=0)
        assert await deciding(connection) == [NEW]
        body = {"model_id": "later", "project_id": "new", "from_project_id": None}
        await policies.apply_moved(connection, {**body, "moves_at": None}, datetime.now(UTC), "me")
        assert (await registrations.get(connection, "later")).project_id == "new"


@pytest.mark.parametrize(
    ("old", "new", "default", "undercut"),
    [
        (None, least(None), None, False),
        (least("P30D"), least("P30D"), None, False),
        (least("P30D"), least("P31D"), None, False),
        (least("P30D"), least("P29D"), None, True),
        (least("P30D"), None, None, True),
        # another that binds as long stays
        (least("P30D"), None, least("P60D"), False),
        (None, least(None), least("P60D"), False),
        # its own rules go against all of them
        (None, least(None, undercuts_minimum_age=True), least("P60D"), True),
        (None, least(None, undercuts_minimum_age=True), None, False),
    ],
)
async def test_a_minimum_age_that_binds_is_not_left_unnoticed(
    engine: AsyncEngine,
    old: RetentionPolicy | None,
    new: RetentionPolicy | None,
    default: RetentionPolicy | None,
    undercut: bool,
) -> None:
    async with engine.begin() as connection:
        model = await of_old(connection)
        for of, each in ((OLD, old), (NEW, new), (DEFAULT, default)):
            if each is not None:
                await put(connection, of, each)
        assert await policies.undercut(connection, model, "new") is undercut
        assert await policies.undercut(connection, model, "old") is False


async def test_a_minimum_age_that_waits_there_may_be_taken_back(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        model = await of_old(connection)
        await put(connection, OLD, least("P30D"))
        await put(connection, NEW, least("P30D"), grace_seconds=_GRACE)
        assert await policies.undercut(connection, model, "new")
        await put(connection, NEW, least("P30D"))
        await put(connection, NEW, least("P1D"), grace_seconds=_GRACE)
        assert await policies.undercut(connection, model, "new")


async def test_a_change_of_policy_is_looked_at_with_both_projects_of_what_moves(
    engine: AsyncEngine,
) -> None:
    async with engine.begin() as connection:
        await put(connection, OLD, policy("P9D"))
        await of_old(connection)
        await of_old(connection, "stays")
        await move(connection, "new")
        now = datetime.now(UTC)

        async def found(of: Of) -> list[tuple[str, bool]]:
            each = await changed.by_policy(connection, of, policy("P1D"), now)
            return [(one.model_id, one.beside) for one in each]

        assert await found(OLD) == [("m", False), ("stays", False)]
        assert await found(NEW) == [("m", False)]
        # the one that is left has a rule of everything, so the default applies there alone
        assert await found(DEFAULT) == [("m", False)]
        assert await found(Of("model", "m")) == [("m", False), ("m", True)]


async def test_what_waits_there_is_looked_at_as_if_it_had_begun(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        model = await of_old(connection)
        assert await changed.by_move(connection, model, "new") == ([], False)
        await put(connection, NEW, policy("P1D"), grace_seconds=_GRACE)
        [one], waits = await changed.by_move(connection, model, "new")
        assert (waits, [each.of for each in one.after.rules], one.before.rules) == (True, [NEW], ())
        assert await changed.by_move(connection, model, "old") == ([], False)
