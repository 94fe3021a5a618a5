"""Previews what a policy would delete today: counted in the time there is, with the oldest as
examples.

It reads every model that the policy may apply to, the oldest time first, and counts what the
effective policies with this policy let expire now, as they are once everything pending has begun.
What is being erased already is not counted; what holds protect is counted separately. If time runs
out, the answer is `partial`, and its figures are those so far.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    Subquery,
    and_,
    case,
    cast,
    func,
    literal,
    not_,
    null,
    or_,
    select,
    true,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds, policies
from inference_store.erasure.estimate.exported import MemberLists, add_exports, among_uids
from inference_store.erasure.policies import (
    ErasureScope,
    PolicyOwner,
    RetentionPolicy,
)
from inference_store.erasure.policies.loss_counts import build_loss_columns
from inference_store.erasure.select import limits, selection
from inference_store.erasure.select.selection import UNDECIDED
from inference_store.inference.events import received_at_of
from inference_store.query.deadline import Deadline, OutOfTime, fetch
from inference_store.query.scan_range import ScanRange as Where
from inference_store.query.scan_range import find_pieces_of, range_of_time

from . import changed_models
from .changed_models import ChangedModel
from .loss_rows import build_losses, build_losses_before, select_lost, select_rows
from .losses import SCOPES, LossCount, LossExample, Preview

EXAMPLES = 20
_SECOND = timedelta(seconds=1)
_LosingPiece: TypeAlias = tuple[Where, Callable[[Where], Select[Any]]]
"""A span in which a model may lose something, and a query for the uids of a part of it that do."""


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
    models, pending = await changed_models.find_changed_by_policy(connection, of, policy, now)
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
    """Check whether any of these uids loses something."""
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
    """Add what a model loses to the preview; return the spans in which it may lose something."""
    rules = await selection.compile_rules(connection, changed_model.after, now)
    rules_before = await selection.compile_rules(connection, changed_model.before, now)
    # as in a run: limits apply to what no rule has deleted
    below, above = [
        await limits.find_limit_after_rules(compiled, connection, changed_model.model, deadline)
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
