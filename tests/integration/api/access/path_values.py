"""Everything that the path of a route may name, stored in a real database."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import Action, Who
from inference_store.access.rights import Grant, Right
from inference_store.erasure import certificates, erased_lists, holds, policies, runs
from inference_store.erasure.log import CERTIFICATE, new_key, sign_document
from inference_store.erasure.policies import DEFAULT, PolicyOwner
from inference_store.export.jobs import REPLAY, NewExport, request_export
from inference_store.export.listing import describe_question
from inference_store.index import api_keys, registrations, saved_views, unsettled
from inference_store.index.accounting import PartitionId, open_partition
from inference_store.index.audit import note
from inference_store.index.unsettled import Record, Rejection
from inference_store.operations.reconcile import stored_reports
from inference_store.query.cql2 import parse
from inference_store.replay.items import ReplayPlan
from inference_store.retention.certifier import make_certificate
from tests.builders import NOW
from tests.integration import erasure_requests

PARTITION = PartitionId("default", "inference-events", 0, 0)
_RULES = {"rules": [{"keep_input": "P30D", "keep_inference": "P1Y"}]}
Ids = dict[str, str]


async def _set_pending_policy(
    connection: Any, owner: PolicyOwner, policy: policies.RetentionPolicy
) -> None:
    now = await policies.read_now(connection)
    pending = policies.RetentionPolicy(max_inferences=9)
    for version, grace in ((policy, 0.0), (pending, 3600.0)):
        body = await policies.describe_change(connection, owner, version, grace_seconds=grace)
        await policies.apply_set(connection, body, now, "test")


async def add_path_values(connection: Any, model_id: str, model: int, offset: int) -> Ids:
    """Store everything that a path may name about a model; return the values by parameter name.

    The model is in the project `{model_id}-project` and has an inference `one`. `offset` is that of
    its dead letter.
    """
    await open_partition(connection, PARTITION, first=0)
    letter = (
        Record(PARTITION, offset, NOW, b"k", model_id.encode(), ()),
        Rejection("x", "y", model_id, None),
    )
    await unsettled.add_dead(connection, [letter])
    [dead, *_] = await unsettled.find(connection, unsettled.Selection(), limit=1)
    waiting = replace(letter[0], offset=100 + offset), letter[1], "s3://b/missing"
    await unsettled.park(connection, [waiting])
    [event] = await unsettled.find(connection, unsettled.Selection(state="parked"), limit=1)
    policy = policies.RetentionPolicy.model_validate(_RULES)
    await policies.set_policy(connection, model, policy)
    for owner in (
        PolicyOwner("model", model_id),
        PolicyOwner("project", f"{model_id}-project"),
        DEFAULT,
    ):
        await _set_pending_policy(connection, owner, policy)
    grant = Grant(rights=(Right.READ,), model_id=model_id)
    key, _ = await api_keys.create(connection, f"{model_id}'s", [grant], by="test")
    await note(connection, Who("test", None), Action.POLICY_SET, model=(model, model_id))
    reconciliation = await stored_reports.request_reconciliation(
        connection, model_id=model_id, cause="request"
    )
    return {
        "model_id": model_id,
        "project_id": f"{model_id}-project",
        "inference_id": "one",
        "run_id": str((await runs.request_run(connection, model)).id),
        "erasure_id": str(
            (await erasure_requests.request_erasure(connection, model=model, uids=[])).id
        ),
        "certificate": str(await add_certificate(connection, model, model_id)),
        "hold_id": str(await add_hold(connection, model_id)),
        "export_id": str(await add_export(connection, model, "csv")),
        "replay_id": str(await add_export(connection, model, REPLAY)),
        "number": "1",
        "reconciliation_id": str(reconciliation.id),
        "view_id": str(await add_view(connection, model_id, offset)),
        "id": str(dead.id),
        "event_id": str(event.id),
        "key_id": key.id,
    }


async def add_export(connection: AsyncConnection, model: int, format: str) -> UUID:
    """Add an export, or a replay to the same model; return its id."""
    document = await describe_question(
        connection, model, None, text=None, since=None, until=NOW, include=()
    )
    expires_at = datetime.now(UTC) + timedelta(days=1)
    plan = ReplayPlan(model, None, None, share=1, most=10, rate=1, tolerance=0)
    document |= {"replay": plan._asdict()} if format == REPLAY else {}
    new = NewExport(model, format, document, "test", expires_at)
    return (await request_export(connection, new)).id


async def add_certificate(connection: AsyncConnection, model: int, model_id: str) -> int:
    """Add a certificate of an erasure of a model, with a list; return its number."""
    key, head = new_key(), await certificates.find_head(connection)
    erasure = await erasure_requests.request_erasure(connection, model=model, uids=[])
    uids = list[UUID]()  # the bucket has no list
    await erased_lists.record_batch(
        connection, key, erasure.id, scope="inference", uids=uids, objects=()
    )
    uncertified = await erased_lists.find_uncertified(connection, erasure.id)
    document = make_certificate(
        *(erasure, uncertified, key, b"", head),
        model_ids=[model_id],
        held={},
        earlier=[],
        exports=[],
        remains=[],
    )
    signed = sign_document(key, CERTIFICATE, document)
    await erased_lists.apply_signed(connection, signed.members, NOW, "test")
    return head.number + 1


async def add_hold(connection: AsyncConnection, model_id: str) -> UUID:
    number = (await registrations.find_by_ids(connection, [model_id]))[model_id].model
    hold_filter = await holds.build_filter(connection, number, parse("ok"))
    body = {"id": str(uuid4()), "name": f"{model_id}'s", "reason": "a file", "revision": 1}
    body |= {"model_id": model_id, "filter": hold_filter.text, "inference_ids": None, "until": None}
    return (await holds.apply_placed(connection, body, NOW, "test")).hold.id


async def add_view(connection: AsyncConnection, model_id: str, number: int) -> UUID:
    model = (await registrations.find_by_ids(connection, [model_id]))[model_id]
    values = {
        "name": f"{model_id}'s {number}",
        "filter": "ok",
        "sort": "-received_at",
        "view": "grid",
        "shared": "project",
        "watch": None,
    }
    return await saved_views.add(connection, model, values, by="test")
