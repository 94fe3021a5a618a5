"""Certificates name the exports that erasures reached, and `certificates verify` looks at them."""

from pathlib import Path

import pytest

from inference_store.erasure.log.keys import new_key
from inference_store.erasure.mark.held_deletions import resume_released
from inference_store.index.tables import export_part
from tests.warm.process import run_command

from .exported import export_all
from .stored import Storing, ago
from .stranger import Stranger
from .test_certificates import list_erasures

KEY = new_key()


@pytest.fixture
def storing(storing: Storing) -> Storing:
    storing.certify(KEY)
    return storing


async def test_the_exports_are_named_and_who_downloaded_them_before(
    storing: Storing, stranger: Stranger
) -> None:
    model = await storing.model()
    members = await storing.inferences(model, 25, ago(days=1))
    untouched = await storing.inferences(model, 3, ago(days=2))
    exported = await export_all(storing.engine, storing.blobs, members)
    alone = await export_all(storing.engine, storing.blobs, untouched)
    await exported.download("key:reader")
    await alone.download("key:other")
    await storing.erase(members[0], members[20])
    await exported.download("key:late")
    await storing.erase(untouched[0])
    first, second = await list_erasures(storing.engine)
    [named] = first["exports"]
    [download] = named.pop("downloads")
    assert named == {"export": str(exported.id), "inferences": 2, "parts_deleted": 2}
    assert download["by"] == "key:reader"
    [copy] = [place for place in first["remains"] if "downloaded" in place["where"]]
    where = f"export {exported.id}, downloaded by key:reader at {download['first_at']}"
    assert copy == {"where": where, "clear_at": None}
    assert [export["export"] for export in second["exports"]] == [str(alone.id)]
    assert await stranger.faults(KEY, heads=False) == []


async def test_each_certificate_of_an_erasure_names_what_no_earlier_one_does(
    storing: Storing,
) -> None:
    model = await storing.model()
    members = await storing.inferences(model, 12, ago(days=1))
    exported = await export_all(storing.engine, storing.blobs, members)
    hold = await storing.hold(model, None, members[11].uid)
    erasure = await storing.request(members[0], members[11])
    assert await storing.eraser.finish(erasure) == "partly_held"
    parts = await exported.parts()
    assert [part.state for part in parts] == ["listed", "written"]
    await storing.release(hold)
    assert await storing.transact(resume_released, limit=10) == 1
    assert await storing.eraser.finish(erasure) == "certified"
    numbers = [
        [(export["inferences"], export["parts_deleted"]) for export in document["exports"]]
        for document in await list_erasures(storing.engine)
    ]
    assert numbers == [[(1, 1)], [(1, 1)]]


async def test_verify_finds_what_exports_still_have(
    storing: Storing, environment: dict[str, str], tmp_path: Path
) -> None:
    model = await storing.model()
    first, second, stays = await storing.inferences(model, 3, ago(days=1))
    exported = await export_all(storing.engine, storing.blobs, [first, second, stays])
    [before] = await exported.parts()
    await storing.erase(first, second)
    with_key = environment | {"INFERENCE_STORE_CERTIFICATE_KEY": KEY.pem}

    def verify() -> tuple[int, list[str]]:
        arguments = ("verify", "--objects")
        done = run_command("certificates", *arguments, environment=with_key, folder=tmp_path)
        return done.returncode, sorted(done.stdout.splitlines())

    assert verify() == (0, [])
    in_bucket = exported.key(f"exports/{exported.id}/members/00001")
    part = exported.key(before.storage_key.partition(f"{storing.bucket}/")[2])
    for key, content in ((in_bucket, first.uid.bytes), (part, b"again")):
        storing.blobs.put(key, content, content_type="application/octet-stream")
    await storing.execute(export_part.update().values(uids=second.uid.bytes))
    assert verify() == (
        1,
        sorted(
            [
                f"certificate 2: {first.uid} is in {in_bucket}",
                f"certificate 2: {second.uid} is in list 1 of export {exported.id} in Postgres",
                f"{part} is in the bucket, and an erasure deleted it",
            ]
        ),
    )
