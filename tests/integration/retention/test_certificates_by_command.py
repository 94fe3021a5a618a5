"""`inference-store certificates`: says what is not as it was signed, and its exit code too."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.log.keys import new_key
from inference_store.index.tables import inference
from tests.warm.process import run_command

from .stored import Stored, Storing, ago
from .stranger import Stranger

KEY = new_key()
EXAMPLES = Path(__file__).parents[3] / "examples"
Say = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
async def erased(storing: Storing) -> list[Stored]:
    """The inferences that the one certificate of the chain is about."""
    storing.certify(KEY)
    stored = await storing.inferences(await storing.model(), 3, ago(days=1))
    await storing.erase(*stored)
    return stored


@pytest.fixture
def say(environment: dict[str, str], tmp_path: Path) -> Say:
    with_key = environment | {"INFERENCE_STORE_CERTIFICATE_KEY": KEY.pem}

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return run_command("certificates", *arguments, environment=with_key, folder=tmp_path)

    return run


@pytest.mark.usefixtures("erased")
async def test_a_certificate_that_was_changed(engine: AsyncEngine, say: Say) -> None:
    good = say("verify")
    assert (good.returncode, good.stdout) == (0, ""), good.stderr
    # three inferences, each with three objects
    assert "1 certificate over 12 entries" in good.stderr
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE certificate SET hash = '\\x00' WHERE number = 2"))
    bad = say("verify")
    assert bad.returncode == 1
    assert bad.stdout == "certificate 2: in Postgres: its hash is not as it was signed\n"
    assert "1 fault." in bad.stderr


@pytest.mark.usefixtures("erased")
async def test_the_key_of_the_settings_vouches_for_nothing_if_others_are_trusted(say: Say) -> None:
    """Whoever signs everything again puts their key into the settings too."""
    assert say("verify", "--trust", KEY.id).returncode == 0
    other = say("verify", "--trust", new_key().id)
    assert (other.returncode, f"begins with key {KEY.id}" in other.stdout) == (1, True), (
        other.stdout
    )
    mistyped = say("verify", "--trust", "00")
    assert (mistyped.returncode, "'00' is no id of a key" in mistyped.stderr) == (2, True)


async def test_finds_returned_inferences_and_proves_entries(
    engine: AsyncEngine, erased: list[Stored], say: Say
) -> None:
    stored = erased[1]
    row = {
        "model": stored.model,
        "uid": stored.uid,
        "inference_id": "back",
        "received_at": ago(days=1),
    }
    async with engine.begin() as connection:
        await connection.execute(insert(inference), [row])
    assert say("verify").returncode == 0
    completed = say("verify", "--objects")
    assert completed.returncode == 1
    assert completed.stdout == f"certificate 2: the inference of {stored.uid} is in Postgres\n"
    proved, unknown = say("prove", str(stored.uid)), say("prove", str(uuid4()))
    assert (proved.returncode, unknown.returncode, unknown.stdout) == (0, 1, "")
    assert str(stored.uid) in json.dumps(json.loads(proved.stdout))


async def test_matches_a_certificate_with_its_request(erased: list[Stored], say: Say) -> None:
    uid = str(erased[1].uid)
    assert [
        say("match", "2", "--uid", uid_text).returncode for uid_text in (uid, str(uuid4()))
    ] == [0, 1]
    other = say("match", "2", "--subject", "person_id", "p-1")
    assert (other.returncode, "Certificate 2 is not of it." in other.stderr) == (1, True)
    first = say("match", "1", "--uid", uid)
    assert (first.returncode, first.stderr) == (
        1,
        "Number 1 is the document of a key, not a certificate.\n",
    )
    nothing = say("match", "9", "--filter", "a = 1")
    assert (nothing.returncode, "There is no certificate 9." in nothing.stderr) == (1, True)


async def test_what_a_stranger_runs(
    erased: list[Stored], say: Say, stranger: Stranger, tmp_path: Path
) -> None:
    """The verifiers of `examples/` alone, on a copy of the bucket."""
    copy, uid = stranger.copy_bucket(), str(erased[1].uid)
    pem = tmp_path / "key.pem"
    pem.write_text(KEY.pem)
    whole = run_example("verify_certificates.py", copy, "--trust", KEY.id)
    assert (whole.returncode, whole.stdout) == (0, ""), whole.stderr
    listed = ("verify_entry.py", "list", copy, 2)
    for thing, code in ((uid, 0), (erased[1].objects[0], 0), (uuid4(), 1), ("s3://b/k", 1)):
        assert run_example(*listed, thing, "--key", pem).returncode == code
    proof = say("prove", uid).stdout
    changed = proof.replace('"index": ', '"index": 1')
    for content, code in ((proof, 0), (changed, 1)):
        assert (
            run_example("verify_entry.py", "proof", copy, 2, input_text=content).returncode == code
        )
    (copy / "0000000002.json").unlink()
    cut = run_example("verify_certificates.py", copy, "--trust", "0" * 32)
    assert (cut.returncode, "is not trusted" in cut.stdout) == (1, True)


def run_example(
    script: str, *arguments: object, input_text: str = ""
) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-I", str(EXAMPLES / script), *map(str, arguments)]
    return subprocess.run(
        command, input=input_text, capture_output=True, text=True, timeout=600, check=False
    )
