"""Selects the rows of a span, and which of them lose what by a policy."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Select,
    Subquery,
    and_,
    case,
    false,
    literal,
    not_,
    or_,
    select,
)

from inference_store.erasure.policies import EffectivePolicy, ErasureScope
from inference_store.erasure.select.selection import CompiledRules
from inference_store.index.tables import erasing, inference
from inference_store.inference.events import uid_floor
from inference_store.query.scan_range import ScanRange as Where

from .losses import SCOPES


def select_rows(
    piece: Where, after: CompiledRules, before: CompiledRules, held: ColumnElement[bool] | None
) -> Subquery:
    """Select what is stored there and not being erased, with the rule that decides about each."""
    here = inference.c
    mark = select(erasing.c.uid).where(
        erasing.c.model == here.model, erasing.c.uid == here.uid, erasing.c.scope == "inference"
    )
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
    return query.where(piece.of(inference), ~mark.exists()).offset(literal(0)).subquery()


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
