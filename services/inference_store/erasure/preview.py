"""Previews what a policy would delete today: counted in the time there is, with the oldest as
examples.

It reads every model that the policy may apply to, the oldest time first, and counts what the
effective policies with this policy let expire now, as they are once everything pending has
begun. What is being erased already is not counted; what holds protect is counted separately. If
time runs out, the answer is `partial`, and its figures are those so far.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, TypeAlias
from uuid import UUID, uuid4

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    Subquery,
    and_,
    case,
    cast,
    false,
    func,
    insert,
    literal,
    not_,
    null,
    or_,
    select,
    true,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds, policies, selection
from inference_store.erasure.estimate import (
    MemberLists,
    add_exports,
    among_uids,
    build_loss_columns,
)
from inference_store.erasure.policies import (
    EffectivePolicy,
    ErasureScope,
    PolicyOwner,
    PolicyVersion,
    RetentionPolicy,
)
from inference_store.erasure.selection import UNDECIDED, CompiledRules
from inference_store.index.tables import inference, policy_preview, registration
from inference_store.inference.events import received_at_of, uid_floor
from inference_store.query.deadline import (
    Deadline,
    OutOfTime,
    fetch,
    find_pieces_of,
    range_of_time,
    test_unmarked,
)
from inference_store.query.deadline import ScanRange as Where

SCOPES: tuple[ErasureScope, ...] = ("inference", "response", "input")


@dataclass(frozen=True, slots=True)
class LossCount:
    """The number of inferences that lose this part."""

    count: int = 0
    bytes: int = 0
    """Of their inputs, as far as sizes are known; of responses none is."""
    unknown_sizes: int = 0
    held: int = 0
    """More of them, which legal holds keep."""
    oldest: datetime | None = None
    newest: datetime | None = None

    def __add__(self, other: "LossCount") -> "LossCount":
        oldest = [instant for instant in (self.oldest, other.oldest) if instant is not None]
        newest = [instant for instant in (self.newest, other.newest) if instant is not None]
        return LossCount(
            self.count + other.count,
            self.bytes + other.bytes,
            self.unknown_sizes + other.unknown_sizes,
            self.held + other.held,
            min(oldest, default=None),
            max(newest, default=None),
        )


@dataclass(frozen=True, slots=True)
class LossExample:
    """One of the oldest inferences that would lose a part, with the rule or the limit."""

    model_id: str
    uid: UUID
    inference_id: str
    received_at: datetime
    scope: ErasureScope
    of: PolicyOwner | None
    rule: int | None
    name: str | None


@dataclass(slots=True)
class Preview:
    """The counts and examples of what would be deleted."""

    parts: dict[ErasureScope, LossCount] = field(
        default_factory=lambda: {s: LossCount() for s in SCOPES}
    )
    fresh: int = 0
    """How many lose something that what is in force now would not take today."""
    examples: list[LossExample] = field(default_factory=list)
    exports: int = 0
    """Exports that name something that would be deleted."""
    cut: bool = False
    """The time was over before all was looked at."""
    pending: list[PolicyVersion] = field(default_factory=list)
    """Other policies that are counted as if they had begun."""
    waits: bool = False
    """Something goes that is not in these figures, if a pending change begins or is revoked."""

    @property
    def is_harmless(self) -> bool:
        """Check whether it deletes nothing known that would not be deleted anyway."""
        return not (self.fresh or self.cut or self.waits)


_NOTHING = EffectivePolicy()


@dataclass(frozen=True, slots=True)
class ChangedModel:
    """A model with the effective policy after the change, and the one before it.

    `beside`: the model is listed already, and is checked once more with less of what is pending.
    """

    model: int
    model_id: str
    after: EffectivePolicy
    before: EffectivePolicy
    beside: bool = False


EXAMPLES = 20
_SECOND = timedelta(seconds=1)
_LosingPiece: TypeAlias = tuple[Where, Callable[[Where], Select[Any]]]
"""A span in which a model may lose something, and a query for the uids of a part of it that do."""
VALID_FOR: Final = timedelta(hours=1)


async def preview_policy(
    connection: AsyncConnection,
    of: PolicyOwner,
    policy: RetentionPolicy | None,
    *,
    lists: MemberLists,
    seconds: float,
) -> Preview:
    """Return what this policy would delete today in place of that of `of`. `lists`: of exports."""
    now = await policies.read_now(connection)
    models, pending = await find_changed_by_policy(connection, of, policy, now)
    preview = Preview(pending=pending)
    deadline, pieces = Deadline.after(seconds), list[_LosingPiece]()
    try:
        for changed_model in models:
            target = Preview() if changed_model.beside else preview
            losing = await _preview_model(connection, changed_model, now, deadline, target)
            pieces += [] if changed_model.beside else losing
            preview.waits = preview.waits or (changed_model.beside and not target.is_harmless)
        # last: without it the figures above are whole
        for piece, select_lost in pieces:
            has_any = partial(_has_any, connection, deadline, select_lost)
            await add_exports(connection, lists, piece, has_any)
    except OutOfTime:
        preview.cut = True
    preview.exports = len(lists.exports)
    return preview


async def _has_any(
    connection: AsyncConnection,
    deadline: Deadline,
    select_lost: Callable[[Where], Select[Any]],
    piece: Where,
    uids: Sequence[UUID],
) -> bool:
    lost = select_lost(piece).subquery()
    statement = select(true()).select_from(lost).where(among_uids(lost.c.uid, uids))
    return bool(await fetch(connection, statement.limit(1), deadline))


async def _preview_model(
    connection: AsyncConnection,
    changed_model: ChangedModel,
    now: datetime,
    deadline: Deadline,
    preview: Preview,
) -> list[_LosingPiece]:
    rules = await selection.compile_rules(connection, changed_model.after, now)
    rules_before = await selection.compile_rules(connection, changed_model.before, now)
    # as in a run: limits apply to what no rule has deleted
    below, above = [
        await selection.find_limit_after_rules(compiled, connection, changed_model.model, deadline)
        for compiled in (rules, rules_before)
    ]
    ends = [
        changed_model.after.find_latest(now),
        None if below is None else received_at_of(below) + _SECOND,
    ]
    until = max((end for end in ends if end is not None), default=None)
    if until is None:
        return []
    pieces: list[_LosingPiece] = []
    for piece in await find_pieces_of(
        connection, range_of_time(changed_model.model, None, until), newest_first=False
    ):
        held = await holds.build_held_condition(
            connection, changed_model.model, lo=piece.lo, hi=piece.hi
        )
        rows = select_rows(piece, rules, rules_before, held)
        losses = build_losses(changed_model.after, rows.c.rule, rows, now)
        losses_before = build_losses_before(changed_model.before, rows, now)
        for parts, cut in ((losses, below), (losses_before, above)):
            if cut is not None:
                parts["inference"] = or_(parts["inference"], rows.c.uid < cut)
        [counted] = await fetch(connection, _select_counts(rows, losses, losses_before), deadline)
        _add_counts(preview, counted._asdict())
        if len(preview.examples) < EXAMPLES:
            missing = EXAMPLES - len(preview.examples)
            for row in await fetch(connection, _select_examples(rows, losses, missing), deadline):
                preview.examples.append(_read_example(changed_model, row._asdict()))
        lost = partial(select_lost, changed_model.after, (rules, rules_before), held, below, now)
        pieces.append((piece, lost))
    return pieces


async def find_changed_by_policy(
    connection: AsyncConnection,
    changed_owner: PolicyOwner,
    policy: RetentionPolicy | None,
    now: datetime,
) -> tuple[list[ChangedModel], list[PolicyVersion]]:
    """Return the models that change if this policy replaces that of `changed_owner`, and what else
    is pending for them.

    `after` is as if everything pending had begun. A model is checked again as if nothing of it had,
    because it may be revoked, and with both projects between which it moves.
    """
    in_force = await policies.find_in_force(connection)
    pending = await policies.find_pending(connection)
    coming = policies.apply_pending(in_force, pending)
    sets = [
        (_replace(versions, changed_owner, policy, now), versions)
        for versions in (coming, in_force)
    ]
    changed_models: list[ChangedModel] = []
    owners_seen: set[PolicyOwner] = set()
    for row in await connection.execute(_select_affected(changed_owner)):
        owners = [
            policies.list_owners(row.model_id, project)
            for project in dict.fromkeys((row.deciding, row.project_id))
        ]
        chains = [
            (_build_effective_policy(of, after), _build_effective_policy(of, before))
            for of in owners
            for after, before in sets
        ]
        afters = [after for after, before in chains if after != before]
        if not afters:
            continue
        owners_seen |= {owner for of in owners for owner in of}
        now_in_force = policies.build_effective_policy(owners[0], in_force)
        now_coming = policies.build_effective_policy(owners[-1], coming)
        before = policies.add_coming(now_in_force, now_coming) or _NOTHING
        changed_models += [
            ChangedModel(row.model, row.model_id, after, before, beside=number > 0)
            for number, after in enumerate(afters)
            if after not in afters[:number]
        ]
    others = owners_seen - {changed_owner}
    return changed_models, [version for owner, version in pending.items() if owner in others]


def _select_affected(changed_owner: PolicyOwner) -> Select[Any]:
    here, deciding = registration.c, policies.build_deciding_project().label("deciding")
    query = select(here.model, here.model_id, here.project_id, deciding).order_by(here.model)
    if changed_owner.level == "model":
        return query.where(here.model_id == changed_owner.subject)
    if changed_owner.level == "project":
        subject = changed_owner.subject
        return query.where(or_(here.project_id == subject, deciding.element == subject))
    return query


def _replace(
    versions: Mapping[PolicyOwner, PolicyVersion],
    owner: PolicyOwner,
    policy: RetentionPolicy | None,
    now: datetime,
) -> dict[PolicyOwner, PolicyVersion]:
    replaced = {other: version for other, version in versions.items() if other != owner}
    if policy is not None:
        replaced[owner] = PolicyVersion(owner, 0, policy, "", now, now, None, None, None)
    return replaced


def _build_effective_policy(
    owners: tuple[PolicyOwner, ...], versions: Mapping[PolicyOwner, PolicyVersion]
) -> EffectivePolicy:
    return policies.build_effective_policy(owners, versions) or _NOTHING


def _select_counts(
    rows: Subquery,
    losses: Mapping[ErasureScope, ColumnElement[bool]],
    losses_before: Mapping[ErasureScope, ColumnElement[bool]],
) -> Select[Any]:
    sizes = {
        "inference": rows.c.data_size,
        "input": rows.c.data_size,
        "response": cast(null(), BigInteger()),
    }
    columns: list[ColumnElement[Any]] = []
    free = not_(rows.c.held)
    for scope in SCOPES:
        lost = _exclude_whole(losses, scope)
        size, at = sizes[scope], rows.c.received_at
        losing = build_loss_columns(lost, rows.c.held, size, at)
        columns += [column.label(f"{scope}_{name}") for name, column in losing.items()]
    fresh = or_(*(and_(losses[scope], not_(losses_before[scope])) for scope in SCOPES))
    return select(*columns, func.count().filter(fresh, free).label("fresh")).select_from(rows)


def _exclude_whole(
    losses: Mapping[ErasureScope, ColumnElement[bool]], scope: ErasureScope
) -> ColumnElement[bool]:
    """Return the condition of a part alone: what is deleted as a whole loses no part."""
    if scope == "inference":
        return losses[scope]
    return and_(losses[scope], not_(losses["inference"]))


def _add_counts(preview: Preview, counted: Mapping[str, Any]) -> None:
    for scope in SCOPES:
        names = ("count", "bytes", "unknown_sizes", "held", "oldest", "newest")
        values = {name: counted[f"{scope}_{name}"] for name in names}
        preview.parts[scope] += LossCount(**values | {"bytes": int(values["bytes"])})
    preview.fresh += counted["fresh"]


def _select_examples(
    rows: Subquery, losses: Mapping[ErasureScope, ColumnElement[bool]], limit: int
) -> Select[Any]:
    whens = [(losses[scope], literal(scope)) for scope in SCOPES]
    query = select(
        *(rows.c.uid, rows.c.inference_id, rows.c.received_at, rows.c.rule),
        case(*whens, else_=literal("")).label("scope"),
    ).where(or_(*losses.values()), not_(rows.c.held))
    return query.order_by(rows.c.uid).limit(limit)


def _read_example(changed_model: ChangedModel, row: Mapping[str, Any]) -> LossExample:
    by = None if row["rule"] == UNDECIDED else changed_model.after.rules[row["rule"]]
    return LossExample(
        model_id=changed_model.model_id,
        uid=row["uid"],
        inference_id=row["inference_id"],
        received_at=row["received_at"],
        scope=row["scope"],
        of=None if by is None else by.of,
        rule=None if by is None else by.number,
        name=None if by is None else by.rule.name,
    )


def select_rows(
    piece: Where, after: CompiledRules, before: CompiledRules, held: ColumnElement[bool] | None
) -> Subquery:
    """Select what is stored there and not being erased, with the rule that decides about each."""
    here = inference.c
    numbers = {"rule": after, "before": before}
    if before.coming is not None:
        numbers["coming"] = before.coming
    query = select(
        *(here.uid, here.inference_id, here.received_at, here.data_size),
        *(here.data_deleted_at, here.response_deleted_at, here.response_storage_key),
        *(rules.build_number(piece).label(name) for name, rules in numbers.items()),
        (false() if held is None else held).label("held"),
    )
    # OFFSET is an optimisation fence, so that the rule is evaluated once for each row
    unmarked = test_unmarked(piece, here.uid)
    return query.where(piece.of(inference), unmarked).offset(literal(0)).subquery()


def select_lost(  # noqa: PLR0917
    effective: EffectivePolicy,
    rules: tuple[CompiledRules, CompiledRules],
    held: ColumnElement[bool] | None,
    below: UUID | None,
    now: datetime,
    piece: Where,
) -> Select[tuple[UUID]]:
    """Select the uids of a part of a span that lose something."""
    rows = select_rows(piece, *rules, held)
    losses = [*build_losses(effective, rows.c.rule, rows, now).values()]
    losses += [] if below is None else [rows.c.uid < below]
    return select(rows.c.uid).where(or_(*losses), not_(rows.c.held))


def build_losses(
    effective: EffectivePolicy, rule: ColumnElement[int], rows: Subquery, now: datetime
) -> dict[ErasureScope, ColumnElement[bool]]:
    """Return by scope the condition that a row loses this part; `rule`: the one that decides."""
    return {scope: _build_loss(effective, rule, rows, scope, now) for scope in SCOPES}


def build_losses_before(
    effective: EffectivePolicy, rows: Subquery, now: datetime
) -> dict[ErasureScope, ColumnElement[bool]]:
    """Return by scope the condition that a row loses this part already, before the change."""
    losses = build_losses(effective, rows.c.before, rows, now)
    if effective.coming is None:
        return losses
    coming = build_losses(effective.coming, rows.c.coming, rows, now)
    return {scope: and_(losses[scope], coming[scope]) for scope in SCOPES}


def _build_loss(
    effective: EffectivePolicy,
    rule: ColumnElement[int],
    rows: Subquery,
    scope: ErasureScope,
    now: datetime,
) -> ColumnElement[bool]:
    """Return the condition that a row loses this part, by the policy whose deciding rule is in
    `rule`."""
    whens = []
    for number, policy_rule in enumerate(effective.rules):
        cutoff = policy_rule.cutoffs(now).of(scope)
        if cutoff is not None:
            whens.append((rule == number, rows.c.uid < uid_floor(cutoff)))
    loss = case(*whens, else_=false()) if whens else false()
    if scope == "input":
        return and_(loss, rows.c.data_deleted_at.is_(None))
    if scope == "response":
        there = rows.c.response_storage_key.is_not(None)
        return and_(loss, there, rows.c.response_deleted_at.is_(None))
    return and_(loss)


async def record_preview(
    connection: AsyncConnection, of: PolicyOwner, revision: int, requested: str
) -> UUID:
    """Record a preview, and return its token. `requested`: the policy as it was sent."""
    token = uuid4()
    values = {"token": token, "level": of.level, "subject": of.subject, "revision": revision}
    await connection.execute(insert(policy_preview).values(**values, policy=_hash(requested)))
    return token


async def is_preview_of(
    connection: AsyncConnection, token: UUID, of: PolicyOwner, revision: int, requested: str
) -> bool:
    """Return whether the token is of a preview of this policy, and nothing else was set since."""
    here = policy_preview.c
    query = select(here.token).where(
        here.token == token,
        here.level == of.level,
        here.subject == of.subject,
        here.revision == revision,
        here.policy == _hash(requested),
        here.made_at > func.now() - VALID_FOR,
    )
    return (await connection.scalar(query)) is not None


async def delete_expired(connection: AsyncConnection) -> int:
    """Delete the previews that are too old to let a policy begin; return how many."""
    old = policy_preview.delete().where(policy_preview.c.made_at < func.now() - VALID_FOR)
    return (await connection.execute(old)).rowcount


def _hash(requested: str) -> str:
    return hashlib.sha256(requested.encode()).hexdigest()
