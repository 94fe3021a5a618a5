"""Policies as they are kept, and models that move between those of two projects."""

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure import policies, preview
from inference_store.erasure.policies import DEFAULT, PolicyOwner, RetentionPolicy
from inference_store.index import registrations
from inference_store.index.registrations import Details, Registration

MODEL, PROJECT = PolicyOwner("model", "m"), PolicyOwner("project", "p")


def make_policy(keep: str, **more: Any) -> RetentionPolicy:
    rule = {"keep_input": keep, "keep_inference": keep}
    return RetentionPolicy.model_validate({"rules": [rule], **more})


async def put(
    connection: AsyncConnection, of: PolicyOwner, new_policy: RetentionPolicy | None, **more: Any
) -> int:
    body = await policies.describe_change(connection, of, new_policy, **more)
    await policies.apply_set(connection, body, datetime.now(UTC), "me")
    await policies.apply_set(connection, body, datetime.now(UTC), "me")  # a replay
    return int(body["revision"])


async def test_the_policies_of_a_model_its_project_and_all_apply(engine: AsyncEngine) -> None:
    now = datetime.now(UTC)
    async with engine.begin() as connection:
        numbers = []
        for name, project in (("m", "p"), ("n", "p"), ("o", None)):
            registered, _ = await registrations.put(connection, name, Details(project_id=project))
            numbers.append(registered.model)
        assert await policies.find_effective_policies(connection) == {}
        await put(connection, MODEL, make_policy("P1D"))
        await put(connection, PROJECT, make_policy("P2D"))
        policies_by_model = await policies.find_effective_policies(connection)
        assert {model: chain.find_end(now) for model, chain in policies_by_model.items()} == {
            numbers[0]: now - timedelta(days=1),
            numbers[1]: now - timedelta(days=2),
        }
        await put(connection, DEFAULT, make_policy("P3D"))
        policies_by_model = await policies.find_effective_policies(connection, numbers[1:])
        assert [chain.rules[0].of for _, chain in sorted(policies_by_model.items())] == [
            PROJECT,
            DEFAULT,
        ]


async def test_an_unreadable_policy_deletes_nothing(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        registered, _ = await registrations.put(connection, "m", Details())
        await put(connection, DEFAULT, make_policy("P1D"))
        broken = RetentionPolicy.model_validate(
            {"rules": [{"keep_input": "P1D", "keep_inference": "P1D", "saved": '{"version": 99}'}]}
        )
        await put(connection, MODEL, broken)
        assert await policies.find_effective_policies(connection) == {}
        await put(connection, MODEL, None)
        assert list(await policies.find_effective_policies(connection)) == [registered.model]


OLD, NEW, THIRD = (PolicyOwner("project", name) for name in ("old", "new", "third"))
_GRACE = 3600.0


def make_minimum_age(age: str | None, **more: Any) -> RetentionPolicy:
    document = {"minimum_age": age, "max_inferences": 9, **more}
    return RetentionPolicy.model_validate(document)


async def register_in_old(connection: AsyncConnection, name: str = "m") -> Registration:
    registered, _ = await registrations.put(connection, name, Details(project_id="old"))
    return registered


async def move(
    connection: AsyncConnection, project: str | None, grace: float = _GRACE
) -> Registration:
    model = await registrations.get(connection, "m")
    body = await policies.describe_move(connection, model, project, grace_seconds=grace)
    await policies.apply_moved(connection, body, datetime.now(UTC), "me")
    return await registrations.get(connection, "m")


async def list_deciding(connection: AsyncConnection) -> list[PolicyOwner]:
    policies_by_model = await policies.find_effective_policies(connection)
    return [rule.of for chain in policies_by_model.values() for rule in chain.rules]


async def end_grace(connection: AsyncConnection) -> None:
    """The grace is over."""
    await connection.execute(text("UPDATE registration SET moves_at = now()"))


async def test_the_project_that_it_leaves_decides_during_the_grace(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await put(connection, OLD, make_policy("P9D"))
        for owner in (NEW, THIRD, DEFAULT):
            await put(connection, owner, make_policy("P1D"))
        await register_in_old(connection)
        moved = await move(connection, "new")
        assert (moved.project_id, moved.left_project_id, moved.revision) == ("new", "old", 2)
        assert await list_deciding(connection) == [OLD]
        await move(connection, "third")  # of the two that it left the one that decides still
        assert await list_deciding(connection) == [OLD]
        back = await move(connection, "old")
        assert (back.left_project_id, back.moves_at) == (None, None)
        await move(connection, "new")
        await end_grace(connection)
        assert await list_deciding(connection) == [NEW]
        await move(connection, None)
        assert await list_deciding(connection) == [NEW]
        await end_grace(connection)
        assert await list_deciding(connection) == [DEFAULT]


async def test_without_a_grace_it_counts_at_once_and_a_missing_model_is_registered(
    engine: AsyncEngine,
) -> None:
    async with engine.begin() as connection:
        await put(connection, NEW, make_policy("P1D"))
        await register_in_old(connection)
        await move(connection, "new", grace=0)
        assert await list_deciding(connection) == [NEW]
        body = {"model_id": "later", "project_id": "new", "from_project_id": None}
        await policies.apply_moved(connection, {**body, "moves_at": None}, datetime.now(UTC), "me")
        assert (await registrations.get(connection, "later")).project_id == "new"


_UNDERCUTTING = make_minimum_age(None, undercuts_minimum_age=True)
# Of the project that is left, of the new one, and of all; whether a minimum age is undercut.
_MINIMUM_AGES = (
    (None, make_minimum_age(None), None, False),
    (make_minimum_age("P30D"), make_minimum_age("P30D"), None, False),
    (make_minimum_age("P30D"), make_minimum_age("P31D"), None, False),
    (make_minimum_age("P30D"), make_minimum_age("P29D"), None, True),
    (make_minimum_age("P30D"), None, None, True),
    # another that binds as long stays
    (make_minimum_age("P30D"), None, make_minimum_age("P60D"), False),
    (None, make_minimum_age(None), make_minimum_age("P60D"), False),
    # its own rules go against all of them
    (None, _UNDERCUTTING, make_minimum_age("P60D"), True),
    (None, _UNDERCUTTING, None, False),
)


async def test_a_minimum_age_that_binds_is_not_left_unnoticed(engine: AsyncEngine) -> None:
    for *minimum_ages, undercut in _MINIMUM_AGES:
        async with engine.connect() as connection:
            model = await register_in_old(connection)
            for of, minimum in zip((OLD, NEW, DEFAULT), minimum_ages, strict=True):
                if minimum is not None:
                    await put(connection, of, minimum)
            for project, expected in (("new", undercut), ("old", False)):
                found = await policies.is_minimum_undercut(connection, model, project)
                assert found is expected, (minimum_ages, project)
            await connection.rollback()


async def test_a_minimum_age_that_waits_there_may_be_taken_back(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        model = await register_in_old(connection)
        await put(connection, OLD, make_minimum_age("P30D"))
        await put(connection, NEW, make_minimum_age("P30D"), grace_seconds=_GRACE)
        assert await policies.is_minimum_undercut(connection, model, "new")
        await put(connection, NEW, make_minimum_age("P30D"))
        await put(connection, NEW, make_minimum_age("P1D"), grace_seconds=_GRACE)
        assert await policies.is_minimum_undercut(connection, model, "new")


async def test_a_change_of_policy_is_looked_at_with_both_projects_of_what_moves(
    engine: AsyncEngine,
) -> None:
    async with engine.begin() as connection:
        await put(connection, OLD, make_policy("P9D"))
        await put(connection, NEW, make_minimum_age(None))
        await register_in_old(connection)
        await register_in_old(connection, "stays")
        await move(connection, "new")
        now = datetime.now(UTC)

        async def find_changed(of: PolicyOwner) -> list[tuple[str, bool]]:
            changed, _ = await preview.find_changed_by_policy(
                connection, of, make_policy("P1D"), now
            )
            return [(model.model_id, model.beside) for model in changed]

        assert await find_changed(OLD) == [("m", False), ("stays", False)]
        assert await find_changed(NEW) == [("m", False)]
        # the one that is left has a rule of everything, so the default applies there alone
        assert await find_changed(DEFAULT) == [("m", False)]
        # its own rule applies alike in both, and beside it the new one's limit
        assert await find_changed(PolicyOwner("model", "m")) == [("m", False), ("m", True)]


async def test_it_waits_where_another_policy_may_delete_something(engine: AsyncEngine) -> None:
    limit = RetentionPolicy.model_validate({"max_inferences": 9})
    forever, year = make_policy("forever"), make_policy("P1Y")
    # of the new project, of all, and whether that of the new one waits to begin
    cases: tuple[tuple[RetentionPolicy | None, RetentionPolicy | None, bool, bool], ...] = (
        (None, None, False, False),
        (forever, None, False, False),
        (make_minimum_age("P1D", max_inferences=None), None, False, False),
        (year, None, False, True),
        (limit, None, False, True),
        (year, None, True, True),
        (None, year, False, False),  # it decides already
        (forever, year, False, False),
    )
    for new, default, is_pending, waits in cases:
        async with engine.connect() as connection:
            await register_in_old(connection)
            grace = _GRACE if is_pending else 0.0
            for owner, policy, seconds in ((NEW, new, grace), (DEFAULT, default, 0.0)):
                if policy is not None:
                    await put(connection, owner, policy, grace_seconds=seconds)
            moved = await move(connection, "new")
            assert (moved.moves_at is not None) is waits, (new, default, is_pending)
            await connection.rollback()
