"""Previews what a policy would delete today: counted in the time there is, with the oldest as
examples. Below: why an inference is still there.

It reads every model that the policy may apply to, the oldest time first, and counts what the
effective policies with this policy let expire now, as they are once everything pending has
begun. What is being erased already is not counted; what holds protect is counted separately. If
time runs out, the answer is `partial`, and its figures are those so far.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, TypeAlias
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Select,
    and_,
    case,
    func,
    literal,
    not_,
    or_,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds, policies, selection
from inference_store.erasure.holds import Hold
from inference_store.erasure.losses import (
    NO_LOSS,
    Going,
    Loss,
    MemberLists,
    count_loss,
    find_exports,
)
from inference_store.erasure.policies import (
    SCOPES,
    EffectivePolicy,
    EffectiveRule,
    ErasureScope,
    PolicyOwner,
    PolicyVersion,
    RetentionLimit,
    RetentionPolicy,
)
from inference_store.erasure.policies.effective_policy import parse_duration
from inference_store.erasure.selection import UNDECIDED, CompiledRules
from inference_store.index.tables import inference, registration
from inference_store.inference.errors import NotFound
from inference_store.inference.events import received_at_of
from inference_store.inference.events.event import LOWEST
from inference_store.query.deadline import (
    Deadline,
    OutOfTime,
    ScanRange,
    fetch,
    find_pieces_of,
    range_of_time,
    test_unmarked,
)


@dataclass(slots=True)
class Preview:
    """The counts and examples of what would be deleted."""

    parts: dict[ErasureScope, Loss] = field(default_factory=lambda: dict.fromkeys(SCOPES, NO_LOSS))
    fresh: int = 0
    """How many lose something that what is in force now would not take today."""
    examples: list[tuple[str, EffectiveRule | None, Any]] = field(default_factory=list)
    """The oldest that would lose a part: the model's id, the rule or None for a limit, the row."""
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
    deadline, of_models = Deadline.after(seconds), list[Going]()
    try:
        for changed_model in models:
            target = Preview() if changed_model.beside else preview
            going = await _find_going(connection, changed_model, now, deadline)
            await _preview_model(connection, changed_model, going, deadline, target)
            of_models += [] if changed_model.beside else [going]
            preview.waits = preview.waits or (changed_model.beside and not target.is_harmless)
        # last: without it the figures above are whole
        preview.cut = not await find_exports(connection, of_models, lists, deadline)
    except OutOfTime:
        preview.cut = True
    preview.exports = len(lists.exports)
    return preview


async def _find_going(
    connection: AsyncConnection, changed_model: ChangedModel, now: datetime, deadline: Deadline
) -> Going:
    rules, rules_before = [
        await selection.compile_rules(connection, policy, now)
        for policy in (changed_model.after, changed_model.before)
    ]
    # as in a run: limits apply to what no rule has deleted
    below, below_before = [
        await selection.find_limit(connection, changed_model.model, compiled, deadline)
        for compiled in (rules, rules_before)
    ]
    ends = [
        changed_model.after.find_latest(now),
        None if below is None else received_at_of(below) + _SECOND,
    ]
    until = max((end for end in ends if end is not None), default=LOWEST)
    find_lost = partial(_select_lost, (rules, below), (rules_before, below_before))
    return Going(range_of_time(changed_model.model, None, until), find_lost)


async def _preview_model(
    connection: AsyncConnection,
    changed_model: ChangedModel,
    going: Going,
    deadline: Deadline,
    preview: Preview,
) -> None:
    for piece in await find_pieces_of(connection, going.scan_range, newest_first=False):
        rows = await going.find(connection, piece)
        [counted] = await fetch(connection, _select_counts(rows), deadline)
        for scope in SCOPES:
            named = {name: counted._mapping[f"{scope}_{name}"] for name in count_loss(rows, scope)}
            preview.parts[scope] = preview.parts[scope].add(**named)
        preview.fresh += counted.fresh
        if missing := EXAMPLES - len(preview.examples):
            for row in await fetch(connection, _select_examples(rows, missing), deadline):
                rules = changed_model.after.rules
                by = None if row.rule == UNDECIDED else rules[row.rule]
                preview.examples.append((changed_model.model_id, by, row))


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
    for of in await policies.find_owners(connection, *_match_affected(changed_owner)):
        chains = [
            (_build_effective_policy(owners, after), _build_effective_policy(owners, before))
            for owners in dict.fromkeys((of.current, of.coming))
            for after, before in sets
        ]
        afters = [after for after, before in chains if after != before]
        if not afters:
            continue
        owners_seen |= {*of.current, *of.coming}
        now_in_force = policies.build_effective_policy(of.current, in_force)
        now_coming = policies.build_effective_policy(of.coming, coming)
        before = policies.add_coming(now_in_force, now_coming) or _NOTHING
        changed_models += [
            ChangedModel(of.model, of.current[0].subject, after, before, beside=number > 0)
            for number, after in enumerate(afters)
            if after not in afters[:number]
        ]
    others = owners_seen - {changed_owner}
    return changed_models, [version for owner, version in pending.items() if owner in others]


def _match_affected(changed_owner: PolicyOwner) -> list[ColumnElement[bool]]:
    subject = changed_owner.subject
    if changed_owner.level == "model":
        return [registration.c.model_id == subject]
    if changed_owner.level == "project":
        deciding = policies.build_deciding_project()
        return [or_(registration.c.project_id == subject, deciding == subject)]
    return []


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


def _select_counts(rows: FromClause) -> Select[Any]:
    columns = [
        column.label(f"{scope}_{name}")
        for scope in SCOPES
        for name, column in count_loss(rows, scope).items()
    ]
    fresh = and_(rows.c.fresh, not_(rows.c.held))
    return select(*columns, func.count().filter(fresh).label("fresh")).select_from(rows)


def _select_examples(rows: FromClause, limit: int) -> Select[Any]:
    whens = [(rows.c[scope], literal(scope)) for scope in SCOPES]
    query = select(
        *(rows.c.uid, rows.c.inference_id, rows.c.received_at, rows.c.rule),
        case(*whens, else_=literal("")).label("scope"),
    )
    return query.where(not_(rows.c.held)).order_by(rows.c.uid).limit(limit)


Limited: TypeAlias = tuple[CompiledRules, UUID | None]
"""Rules, and the uid before which their limit takes everything."""


def _select_lost(
    after: Limited, before: Limited, piece: ScanRange, held: ColumnElement[bool]
) -> FromClause:
    """Select what loses something and is not being erased, with the rule that decides about it.

    A column for each part: it alone, because what goes whole loses no part. `fresh`: something
    goes that did not go before the change.
    """
    here, (rules, below), (rules_before, below_before) = inference.c, after, before
    numbers = {"rule": rules, "before": rules_before}
    if rules_before.coming is not None:
        numbers["coming"] = rules_before.coming
    query = select(
        *(here.uid, here.inference_id, here.received_at, here.data_size),
        *(here.data_deleted_at, here.response_deleted_at, here.response_storage_key),
        *(compiled.build_number(piece).label(name) for name, compiled in numbers.items()),
        held.label("held"),
    ).where(piece.of(inference), test_unmarked(piece, here.uid))
    # OFFSET is an optimisation fence, so that the rule is evaluated once for each row
    rows = query.offset(literal(0)).subquery()
    losses = _build_losses({"rule": numbers.pop("rule")}, rows, below)
    losses_before = _build_losses(numbers, rows, below_before)
    fresh = or_(*(and_(losses[scope], not_(losses_before[scope])) for scope in SCOPES))
    whole = losses["inference"]
    parts = {scope: and_(losses[scope], not_(whole)) for scope in SCOPES} | {"inference": whole}
    columns = [condition.label(scope) for scope, condition in parts.items()]
    lost = select(*rows.c, literal(0).label("objects"), fresh.label("fresh"), *columns)
    return lost.where(or_(*losses.values())).subquery()


def _build_losses(
    rules: Mapping[str, CompiledRules], rows: FromClause, below: UUID | None
) -> dict[ErasureScope, ColumnElement[bool]]:
    """Return by scope the condition that a row loses this part: by all of the rules, each by the
    number in the column of its name, or because it is beyond the limit."""
    losses: dict[ErasureScope, ColumnElement[bool]] = {}
    for scope in SCOPES:
        taken = [compiled.build_loss(scope, rows.c[name], rows) for name, compiled in rules.items()]
        losses[scope] = and_(*taken, *selection.has_part(scope, rows))
    if below is not None:
        losses["inference"] = or_(losses["inference"], rows.c.uid < below)
    return losses


def make_token(of: PolicyOwner, revision: int, requested: str, made_at: datetime) -> UUID:
    """Return the token of a preview: when it was made, and a hash of that and of what it was of.

    `requested`: the policy as it was sent. The token holds no secret, because everyone who may set
    a policy may also preview it.
    """
    seconds = int(made_at.timestamp())
    content = json.dumps([seconds, of.level, of.subject, revision, requested])
    return UUID(bytes=seconds.to_bytes(4) + hashlib.sha256(content.encode()).digest()[:12])


def is_preview_of(
    token: UUID, of: PolicyOwner, revision: int, requested: str, now: datetime
) -> bool:
    """Return whether the token is of a preview of this policy, and nothing else was set since."""
    made_at = datetime.fromtimestamp(int.from_bytes(token.bytes[:4]), UTC)
    is_recent = made_at <= now < made_at + VALID_FOR
    return is_recent and token == make_token(of, revision, requested, made_at)


# Why an inference is still there, and when its parts are deleted.


@dataclass(frozen=True, slots=True)
class Explanation:
    """Which rule decides about an inference (None: no rule is of it), and which one once everything
    pending has begun.

    `begins_at`: None if nothing is pending. `goes_at`: for each part, when it goes by both; None:
    it is kept for ever, as far as rules go.
    """

    received_at: datetime
    decided_by: EffectiveRule | None
    begins_at: datetime | None
    decided_later: EffectiveRule | None
    goes_at: Mapping[ErasureScope, datetime | None]
    limit: RetentionLimit | None
    held_by: Hold | None


async def explain_retention(connection: AsyncConnection, model: int, uid: UUID) -> Explanation:
    """Explain one inference by the policies in force, those that are pending, and the holds.

    Raises NotFound.
    """
    now = await policies.read_now(connection)
    current, coming, begins_at = await _find_policies(connection, model)
    where = ScanRange(model, uid, UUID(int=uid.int + 1))
    numbers = [
        (await selection.compile_rules(connection, policy, now)).build_number(where)
        for policy in (current, coming)
    ]
    query = select(inference.c.received_at, *numbers).where(where.of(inference))
    row = (await connection.execute(query)).first()
    if row is None:
        raise NotFound("The inference has just been deleted.")
    in_force = await holds.list_in_force(connection, [model])
    held = await holds.find_holds(connection, in_force, model, [uid])
    received_at, *decided = row
    rules = [
        None if number == selection.UNDECIDED else policy.rules[number]
        for policy, number in zip((current, coming), decided, strict=True)
    ]
    now_goes_at, goes_at = [_find_deletion_times(rule, received_at) for rule in rules]
    if begins_at is not None:
        now_goes_at = {
            part: _join(now_goes_at[part], later, begins_at) for part, later in goes_at.items()
        }
    return Explanation(
        received_at=received_at,
        decided_by=rules[0],
        begins_at=begins_at,
        decided_later=rules[1],
        goes_at=now_goes_at,
        limit=current.limit,
        held_by=held.get(uid),
    )


async def _find_policies(
    connection: AsyncConnection, model: int
) -> tuple[EffectivePolicy, EffectivePolicy, datetime | None]:
    [of] = await policies.find_owners(connection, registration.c.model == model)
    in_force = await policies.find_in_force(connection, {*of.current, *of.coming})
    pending = await policies.find_pending(connection, of.coming)
    begins = [version.effective_at for version in pending.values()]
    if of.moves_at is not None and of.current != of.coming:
        begins.append(of.moves_at)
    current = _build_effective_policy(of.current, in_force)
    following = _build_effective_policy(of.coming, policies.apply_pending(in_force, pending))
    return current, following, max(begins, default=None)


def _find_deletion_times(
    rule: EffectiveRule | None, received_at: datetime
) -> dict[ErasureScope, datetime | None]:
    times: dict[ErasureScope, datetime | None] = dict.fromkeys(("input", "response", "inference"))
    if rule is None:
        return times
    ages = (rule.rule.input, rule.rule.response, rule.rule.keep_inference)
    for part, age in zip(times, ages, strict=True):
        durations = [parse_duration(age), *rule.minimum]
        instants = [None if of is None else of.find_end(received_at) for of in durations]
        finite = [instant for instant in instants if instant is not None]
        times[part] = max(finite) if len(finite) == len(instants) else None
    return times


def _join(
    current: datetime | None, coming: datetime | None, begins_at: datetime
) -> datetime | None:
    """Return when a part is deleted: what is coming says so, and has begun or what is in force says
    so too."""
    if coming is None:
        return None
    return max(coming, begins_at if current is None else min(current, begins_at))
