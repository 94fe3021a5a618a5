"""Checks after deletion has ended, read plainly from the servers."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.certify import chain
from inference_store.erasure.certify.archive import Archive
from inference_store.erasure.certify.proofs import find_proofs
from inference_store.erasure.certify.recheck import Recheck
from inference_store.erasure.certify.verification import Verification
from inference_store.erasure.log.chain_head import ChainHead
from inference_store.erasure.log.keys import SigningKey
from inference_store.erasure.log.signed_document import read_document
from inference_store.erasure.progress.erasure import find_erasures
from inference_store.index.tables import PARTITIONED, erasing
from inference_store.objects import Blobs
from inference_store.objects.inventory import inventory
from inference_store.platform.settings import RetentionSettings
from tests.integration.retention.stored import Stored
from tests.polling import until
from tests.servers.minio import S3

from .world import World

_OWN = ("ledger/", "certificates/")
_CERTIFIED = {"certified", "partly_held", "cancelled"}


async def check_deletions(
    world: World,
    *,
    stays: Sequence[Stored],
    goes: Sequence[Stored],
    either: Sequence[Stored] = (),
    inputs_go: bool = True,
) -> None:
    """Check what is left. `either`: inferences that may have gone or stayed, but whole."""
    there = await world.storing.stored()
    assert {inference.uid for inference in stays} <= there
    assert not there & {inference.uid for inference in goes}
    remaining = [*stays, *(inference for inference in either if inference.uid in there)]
    assert there == {inference.uid for inference in remaining}
    gone = [inference.uid for inference in (*goes, *either) if inference.uid not in there]
    without_input = {removal.uid for removal in world.inputs} & there if inputs_go else set()
    await check_rows(world.engine, there)
    expected_keys = {
        key.key
        for inference in remaining
        for number, key in enumerate(inference.objects)
        if number or inference.uid not in without_input
    }
    check_versions(S3Of(world.settings), world.storing.bucket, expected_keys)
    await check_certificates(
        world.engine, world.settings, world.key, gone, remaining=there, without_input=without_input
    )


class S3Of(S3):
    """The object store that a service is configured with."""

    def __init__(self, settings: RetentionSettings) -> None:
        secrets = (settings.s3_access_key, settings.s3_secret_key)
        super().__init__(
            str(settings.s3_endpoint), *(secret.get_secret_value() for secret in secrets)
        )


async def check_rows(engine: AsyncEngine, uids: Collection[UUID]) -> None:
    """Every table that tells of inferences tells of these alone, and nothing is marked."""
    async with engine.connect() as connection:
        for table in PARTITIONED:
            query = select(table.c.uid, func.count()).group_by(table.c.uid)
            collected = {row[0]: row[1] for row in await connection.execute(query)}
            assert not collected.keys() - set(uids), f"{table.name}: rows of what is erased"
            if table.name == "inference":
                assert set(collected.values()) <= {1}
        assert await connection.scalar(select(func.count()).select_from(erasing)) == 0


def check_versions(s3: S3, bucket: str, expected: Collection[str]) -> None:
    """Check that only these objects are there in any version, and no delete marker."""
    listed = list(s3.client().list_objects(bucket, recursive=True, include_version=True))
    versions = [version for version in listed if not str(version.object_name).startswith(_OWN)]
    names = {str(version.object_name) for version in versions}
    assert not set(expected) - names, "objects of what is kept are gone"
    unexpected = sorted(names - set(expected))
    assert not unexpected, (
        f"{len(unexpected)} objects of what is erased are there: {unexpected[:20]}"
    )
    assert [version.object_name for version in versions if version.is_delete_marker] == []


async def check_certificates(
    engine: AsyncEngine,
    settings: RetentionSettings,
    key: SigningKey,
    gone: Collection[UUID],
    *,
    remaining: Collection[UUID],
    without_input: Collection[UUID] = (),
) -> None:
    """Check that certificates are true and verify, and that nothing of what they list is there."""
    scopes, documents = await check_proofs(engine, key, gone, remaining=remaining)
    # the input of one that went later may have gone before it
    expected = Counter((uid, "inference") for uid in gone)
    expected.update((uid, "input") for uid in without_input)
    kept = set(remaining)
    assert expected == {
        (uid, scope): count
        for (uid, scope), count in scopes.items()
        if scope == "inference" or uid in kept
    }
    erased = sum(document["erased"]["inferences"] for document in documents)
    assert erased == scopes.total(), "certificates count what they do not list"
    with Blobs(settings) as blobs:
        verification = Verification(engine, Archive(blobs), trusted={key.id})
        assert [str(wrong) async for wrong in verification.find_failures()] == []
        head = ChainHead(settings, lock_days=1)
        # it is written by the turn after the certificate
        await until(lambda: _find_head_failures(verification, head), lambda wrongs: wrongs == [])
    again = Recheck(engine, [key])
    assert [there.reason async for there in again.find_failures(inventory(settings))] == []


async def check_proofs(
    engine: AsyncEngine, key: SigningKey, gone: Collection[UUID], *, remaining: Collection[UUID]
) -> tuple[Counter[tuple[UUID, str]], Sequence[Mapping[str, Any]]]:
    """Check that each deleted inference is in one certificate, and no other is; those that were
    sent again may be in more. Return how often each part is in one, and the certificates."""
    async with engine.connect() as connection:
        ended = await find_erasures(connection, limit=10_000)
        rows = await chain.list_certificates(connection, limit=10_000)
    documents = {row.number: read_document(row.signed).document for row in rows}
    erasures = {document["erasure"]["id"] for document in documents.values()}
    states = Counter(erasure.state for erasure in ended)
    assert states.keys() <= _CERTIFIED, states
    missing = [item for item in ended if item.inferences and str(item.id) not in erasures]
    assert not missing, f"no certificate: {missing}"
    scopes, first = Counter[tuple[UUID, str]](), Counter[UUID]()
    for uid in (*gone, *remaining):
        for proof in await find_proofs(engine, key, uid):
            assert proof.holds
            scopes[uid, proof.scope] += 1
            again = documents[proof.certificate]["erasure"]["cause"] == "erased_again"
            if proof.scope == "inference" and not again:
                first[uid] += 1
    assert {uid for uid, scope in scopes if scope == "inference"} == set(gone)
    assert first == dict.fromkeys(gone, 1)
    return scopes, list(documents.values())


async def _find_head_failures(verification: Verification, head: ChainHead) -> list[str]:
    return [str(wrong) async for wrong in verification.find_head_failures(head)]
