"""What the paths of every route may name, put into a real database."""

from typing import Any
from uuid import UUID, uuid4

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import Action, Who
from inference_store.access.rights import Grant, Right
from inference_store.erasure import holds, policies, runs
from inference_store.erasure.certificates import chain, documents, erased
from inference_store.erasure.certificates.keys import new_key
from inference_store.erasure.certificates.signed import signed
from inference_store.erasure.policies import DEFAULT, Of
from inference_store.index import api_keys, dead_letters, registrations
from inference_store.index.accounting import PartitionId
from inference_store.index.audit import note
from inference_store.index.records import Record, Trouble
from inference_store.inference.events import uid_of
from inference_store.operations.reconcile import reconciliations
from inference_store.query.cql2 import parse
from tests.builders import NOW
from tests.integration import by_uids

PLACE = PartitionId("default", "inference-events", 0, 0)
_RULES = {"rules": [{"keep_input": "P30D", "keep_inference": "P1Y"}]}
Ids = dict[str, str]


async def _waits(connection: Any, of: Of, policy: policies.RetentionPolicy) -> None:
    """A policy, and one that waits to begin."""
    at = await policies.now(connection)
    later = policies.RetentionPolicy(max_inferences=9)
    for each, grace in ((policy, 0.0), (later, 3600.0)):
        body = await policies.setting(connection, of, each, grace_seconds=grace)
        await policies.apply_set(connection, body, at, "test")


async def ids_of(connection: Any, model_id: str, model: int, offset: int) -> Ids:
    """What a path may name, of a model of the project `{model_id}-project` with an inference `one`:
    all of it is there. `offset`: of its dead letter, where a topic has begun."""
    letter = (
        Record(PLACE, offset, NOW, b"k", model_id.encode(), ()),
        Trouble("x", "y", model_id, None),
    )
    await dead_letters.add(connection, [letter])
    [dead, *_] = await dead_letters.find(connection, dead_letters.Selection(), limit=1)
    policy = policies.RetentionPolicy.model_validate(_RULES)
    await policies.put(connection, model, policy)
    for of in (Of("model", model_id), Of("project", f"{model_id}-project"), DEFAULT):
        await _waits(connection, of, policy)
    grant = Grant(rights=(Right.READ,), model_id=model_id)
    key, _ = await api_keys.create(connection, f"{model_id}'s", [grant], by="test")
    await note(connection, Who("test", None), Action.POLICY_SET, model=(model, model_id))
    asked = await reconciliations.request(connection, model_id=model_id, cause="request")
    return {
        "model_id": model_id,
        "project_id": f"{model_id}-project",
        "inference_id": "one",
        "run_id": str((await runs.request(connection, model)).id),
        "erasure_id": str((await by_uids.request(connection, model=model, uids=[])).id),
        "certificate": str(await a_certificate(connection, model, model_id)),
        "hold_id": str(await a_hold(connection, model_id)),
        "reconciliation_id": str(asked.id),
        "id": str(dead.id),
        "key_id": key.id,
    }


async def a_certificate(connection: AsyncConnection, model: int, model_id: str) -> int:
    """A certificate of an erasure of a model, with a list."""
    key, place = new_key(), await chain.head(connection)
    one = await by_uids.request(connection, model=model, uids=[])
    uids = [uid_of(NOW, model_id)]
    await erased.tell(connection, key, one.id, scope="inference", uids=uids, objects=())
    told = await erased.of_erasure(connection, one.id)
    asked = documents.Asked(
        id=one.id,
        model_ids=[model_id],
        cause=one.cause,
        scope=one.scope,
        requested_at=NOW,
        requested_by=None,
        run=None,
    )
    document = documents.certificate_of(asked, told, {}, b"", place=place, remains=[])
    await chain.add(connection, signed(key, chain.CERTIFICATE, document), model=model)
    await erased.certified(connection, told.batches, place.number + 1)
    return place.number + 1


async def a_hold(connection: AsyncConnection, model_id: str) -> UUID:
    """A hold of a model, placed."""
    number = (await registrations.known(connection, [model_id]))[model_id].model
    made = await holds.make(connection, number, holds.Asked(filter=parse("ok")))
    body = {"id": str(uuid4()), "name": f"{model_id}'s", "reason": "a file", "revision": 1}
    body |= {"model_id": model_id, "filter": made.text, "inference_ids": None, "until": None}
    return (await holds.apply_placed(connection, body, NOW, "test")).hold.id
