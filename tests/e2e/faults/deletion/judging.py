"""What must hold whenever deletion has come to its end, read plainly from the servers."""

from collections import Counter
from collections.abc import Collection, Sequence
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import erasures
from inference_store.erasure.certificates import chain
from inference_store.erasure.certificates.archive import Archive
from inference_store.erasure.certificates.head import Head
from inference_store.erasure.certificates.keys import SigningKey
from inference_store.erasure.certificates.looking_again import LookingAgain
from inference_store.erasure.certificates.proving import proofs
from inference_store.erasure.certificates.signed import read_signed
from inference_store.erasure.certificates.verifying import Verification
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


async def judge(
    world: World,
    *,
    stays: Sequence[Stored],
    goes: Sequence[Stored],
    either: Sequence[Stored] = (),
    inputs_go: bool = True,
) -> None:
    """`either`: what may have gone or stayed, but whole."""
    there = await world.storing.stored()
    assert {one.uid for one in stays} <= there
    assert not there & {one.uid for one in goes}
    kept = [*stays, *(one for one in either if one.uid in there)]
    assert there == {one.uid for one in kept}
    gone = [one.uid for one in (*goes, *either) if one.uid not in there]
    without_input = {one.uid for one in world.inputs} & there if inputs_go else set()
    await check_rows(world.engine, there)
    wanted = {
        key.key
        for one in kept
        for number, key in enumerate(one.objects)
        if number or one.uid not in without_input
    }
    check_versions(S3Of(world.settings), world.storing.bucket, wanted)
    await check_certificates(
        world.engine, world.settings, world.key, gone, kept=there, without_input=without_input
    )


class S3Of(S3):
    """The object store that a service is told of."""

    def __init__(self, settings: RetentionSettings) -> None:
        secrets = (settings.s3_access_key, settings.s3_secret_key)
        super().__init__(str(settings.s3_endpoint), *(each.get_secret_value() for each in secrets))


async def check_rows(engine: AsyncEngine, uids: Collection[UUID]) -> None:
    """Every table that tells of inferences tells of these alone, and nothing is marked."""
    async with engine.connect() as connection:
        for table in PARTITIONED:
            query = select(table.c.uid, func.count()).group_by(table.c.uid)
            found = {row[0]: row[1] for row in await connection.execute(query)}
            assert not found.keys() - set(uids), f"{table.name}: rows of what is erased"
            if table.name == "inference":
                assert set(found.values()) <= {1}
        assert await connection.scalar(select(func.count()).select_from(erasing)) == 0


def check_versions(s3: S3, bucket: str, wanted: Collection[str]) -> None:
    """In every version there are these objects alone, and no delete marker."""
    listed = list(s3.client().list_objects(bucket, recursive=True, include_version=True))
    found = [one for one in listed if not str(one.object_name).startswith(_OWN)]
    names = {str(one.object_name) for one in found}
    assert not set(wanted) - names, "objects of what is kept are gone"
    left = sorted(names - set(wanted))
    assert not left, f"{len(left)} objects of what is erased are there: {left[:20]}"
    assert [one.object_name for one in found if one.is_delete_marker] == []


async def check_certificates(
    engine: AsyncEngine,
    settings: RetentionSettings,
    key: SigningKey,
    gone: Collection[UUID],
    *,
    kept: Collection[UUID],
    without_input: Collection[UUID] = (),
) -> None:
    """Each is true; whatever went is in exactly one, and nothing that is there is in any."""
    async with engine.connect() as connection:
        ended = await erasures.listed(connection, limit=10_000)
        signed = [read_signed(row.signed) for row in await chain.listed(connection, limit=10_000)]
    assert {one.state for one in ended} <= _CERTIFIED, Counter(one.state for one in ended)
    named = Counter(one.document["erasure"]["id"] for one in signed)
    missing = [one for one in ended if one.inferences and str(one.id) not in named]
    assert not missing, f"no certificate: {missing}"
    scopes = Counter[tuple[UUID, str]]()
    for uid in (*gone, *kept):
        for proof in await proofs(engine, key, uid):
            assert proof.holds
            scopes[uid, proof.scope] += 1
    wanted = Counter(dict.fromkeys(((uid, "inference") for uid in gone), 1))
    wanted += Counter(dict.fromkeys(((uid, "input") for uid in without_input), 1))
    # the input of one that went later may have gone before it
    assert {each: n for each, n in scopes.items() if each[1] == "inference" or each[0] in kept} == (
        dict(wanted)
    )
    erased = sum(one.document["erased"]["inferences"] for one in signed)
    assert erased == scopes.total(), "certificates count what they do not list"
    with Blobs(settings) as blobs:
        verification = Verification(engine, Archive(blobs), trusted={key.id})
        assert [str(wrong) async for wrong in verification.wrongs()] == []
        head = Head(settings, lock_days=1)
        # it is written by the turn after the certificate
        await until(lambda: _wrong_with(verification, head), lambda wrongs: wrongs == [])
    again = LookingAgain(engine, [key])
    assert [there.what async for there in again.there(inventory(settings))] == []


async def _wrong_with(verification: Verification, head: Head) -> list[str]:
    return [str(wrong) async for wrong in verification.head(head)]
