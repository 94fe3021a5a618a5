"""`inference-store certificates verify|prove|match|keys|restart-chain`: shows what was erased, and
checks it against the signatures.

Invalid documents are printed to standard output, a line each, and make the exit code 1; everything
else goes to standard error.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.certify.chain import Archive, CannotRestart, recover_key
from inference_store.erasure.certify.proofs import (
    KeyNotGiven,
    find_proofs,
    is_of_filter,
    is_of_inference,
    is_of_subject,
    read_certificate,
)
from inference_store.erasure.certify.verification import Recheck, Verification
from inference_store.erasure.log.bucket import ChainHead
from inference_store.erasure.log.keys import is_key_id, new_key, signing_keys
from inference_store.export.ledger.rechecking import ExportRecheck
from inference_store.index.database import engine_of
from inference_store.inference.errors import NotFound, ObjectStoreUnavailable
from inference_store.inference.plural import counted
from inference_store.objects import Blobs
from inference_store.objects.inventory import inventory
from inference_store.platform.settings import (
    BlobSettings,
    CertificateSettings,
    LogSettings,
    PostgresSettings,
)

from .postgres import require_postgres
from .start import start_service
from .user import find_cli_user

_NEEDS_KEY = "needs INFERENCE_STORE_CERTIFICATE_KEY: the lists are hashed with it"


class _Settings(LogSettings, PostgresSettings, BlobSettings, CertificateSettings):
    """The settings of the command."""


SETTINGS = _Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the action to run, and its arguments."""
    commands = parser.add_subparsers(dest="what", required=True)
    verify = commands.add_parser("verify", help="check the chain, its signatures and its lists")
    verify.add_argument(
        "--trust",
        action="append",
        default=[],
        type=_parse_key_id,
        metavar="KEY",
        help="id of the only key that the chain may begin with; may be repeated (default: the keys"
        " of the settings)",
    )
    verify.add_argument(
        "--head", action="store_true", help="also hold the chain's end against its locked head"
    )
    verify.add_argument(
        "--objects",
        action="store_true",
        help="also look again for every row, object and member of an export (needs the key)",
    )
    prove = commands.add_parser("prove", help="prove that an inference is in a certificate")
    prove.add_argument("uid", type=UUID, help="the inference's uid")
    match = commands.add_parser(
        "match", help="say whether a certificate is of a subject, a filter or an inference"
    )
    match.add_argument("number", type=int, help="the certificate's number")
    subject = match.add_mutually_exclusive_group(required=True)
    subject.add_argument("--subject", nargs=2, metavar=("KEY", "VALUE"), help="of whom it is")
    subject.add_argument("--filter", metavar="TEXT", help="a filter, written as it was asked for")
    subject.add_argument("--uid", type=UUID, help="an inference's uid")
    match.add_argument("--type", help="the subject's type, as it was asked for; else any")
    restart = commands.add_parser(
        "restart-chain",
        help="go on with a new key, because that of the newest certificates is lost",
    )
    restart.add_argument(
        "--reason", required=True, help="why; the certificate and the audit say it"
    )
    keys = commands.add_parser("keys", help="the keys that sign").add_subparsers(
        dest="which", required=True
    )
    keys.add_parser("new", help="make a key and print it (PEM, secret)")


def _parse_key_id(text: str) -> str:
    """Return the id of a key. Raises ArgumentTypeError."""
    if not is_key_id(text):
        message = f"{text!r} is no id of a key, which has 32 digits of 0-9 and a-f"
        raise argparse.ArgumentTypeError(message)
    return text


def run(arguments: argparse.Namespace) -> int:
    """Run the subcommand; return 1 if something is not as it was signed."""
    if arguments.what == "keys":
        key = new_key()
        print(f"The key {key.id}, for INFERENCE_STORE_CERTIFICATE_KEY:", file=sys.stderr)
        print(key.pem, end="")
        return 0
    settings = start_service(_Settings, "certificates")
    try:
        with require_postgres():
            return asyncio.run(_run(settings, arguments))
    except ObjectStoreUnavailable as error:
        sys.exit(f"The object store is unavailable: {error}"[:500])


async def _run(settings: _Settings, arguments: argparse.Namespace) -> int:
    engine = engine_of(settings, application="inference-store-certificates", pool_size=2)
    try:
        if arguments.what == "prove":
            return await _prove(settings, engine, arguments.uid)
        if arguments.what == "match":
            return await _match(settings, engine, arguments)
        if arguments.what == "restart-chain":
            return await _restart_chain(settings, engine, arguments.reason)
        return await _verify(settings, engine, arguments)
    finally:
        await engine.dispose()


async def _prove(settings: _Settings, engine: AsyncEngine, uid: UUID) -> int:
    keys = signing_keys(settings)
    if not keys:
        sys.exit(f"`prove` {_NEEDS_KEY}.")
    proofs = [proof for key in keys for proof in await find_proofs(engine, key, uid)]
    for proof in proofs:
        print(json.dumps(proof.format(uid)))
    holding = [proof for proof in proofs if proof.holds]
    print(f"{uid} is proved to be in {counted(len(holding), 'certificate')}.", file=sys.stderr)
    return 0 if proofs and len(holding) == len(proofs) else 1


async def _match(settings: _Settings, engine: AsyncEngine, arguments: argparse.Namespace) -> int:
    keys = signing_keys(settings)
    try:
        async with engine.connect() as connection:
            certificate = await read_certificate(connection, arguments.number)
        if arguments.uid is not None:
            is_of = await is_of_inference(engine, certificate, keys, arguments.uid)
        elif arguments.filter is not None:
            is_of = is_of_filter(certificate, keys, arguments.filter)
        else:
            is_of = is_of_subject(certificate, keys, *arguments.subject, type=arguments.type)
    except (NotFound, KeyNotGiven) as why:
        sys.exit(str(why))
    print(f"Certificate {arguments.number} is {'' if is_of else 'not '}of it.", file=sys.stderr)
    return 0 if is_of else 1


async def _restart_chain(settings: _Settings, engine: AsyncEngine, reason: str) -> int:
    keys = signing_keys(settings)
    if not keys:
        sys.exit("`restart-chain` needs INFERENCE_STORE_CERTIFICATE_KEY: the new key.")
    by = f"cli:{find_cli_user()}"
    with Blobs(settings) as blobs:
        try:
            new_entry = await recover_key(engine, Archive(blobs), keys, by=by, reason=reason)
        except CannotRestart as why:
            sys.exit(str(why))
    print(
        f"From {new_entry.document['number']} on the key {keys[0].id} signs: give its id to whoever"
        " verifies.",
        file=sys.stderr,
    )
    return 0


async def _verify(settings: _Settings, engine: AsyncEngine, arguments: argparse.Namespace) -> int:
    # If ids are given, the keys of the settings are not trusted: someone who signed everything
    # again may have put their own key there.
    trusted = set(arguments.trust) or {key.id for key in signing_keys(settings)}
    wrong = 0
    with Blobs(settings) as blobs:
        verification = Verification(engine, Archive(blobs), trusted=trusted)
        failures = _find_failures(settings, engine, blobs, verification, arguments)
        async for failure in failures:
            wrong += 1
            print(failure)
    counts, end = verification.counts, verification.chain.end
    print(
        f"{counted(counts.certificates, 'certificate')} over"
        f" {counted(counts.leaves, 'entry', 'entries')}, head {end.number}"
        f" {end.hash.hex()}: {counted(wrong, 'fault') if wrong else 'all as it was signed'}.",
        file=sys.stderr,
    )
    for number, key in verification.restarts:
        sentence = f"The chain restarts at {number} with key {key}, which no key before has signed."
        print(sentence, file=sys.stderr)
    if counts.head_locked is False:
        print("The head is not locked: who may delete in the bucket can cut it.", file=sys.stderr)
    return 1 if wrong else 0


async def _find_failures(
    settings: _Settings,
    engine: AsyncEngine,
    blobs: Blobs,
    verification: Verification,
    arguments: argparse.Namespace,
) -> AsyncIterator[str]:
    async for failure in verification.find_failures():
        yield str(failure)
    if arguments.head:
        head = ChainHead(settings, lock_days=settings.certificate_head_lock_days)
        async for failure in verification.find_head_failures(head):
            yield str(failure)
    if arguments.objects:
        keys = signing_keys(settings)
        if not keys:
            sys.exit(f"`--objects` {_NEEDS_KEY}.")
        recheck, exports = Recheck(engine, keys), ExportRecheck(engine, blobs)
        for unknown in sorted(await recheck.find_unknown_keys()):
            yield f"lists are hashed by key {unknown}, which is not given: not looked for again"
        objects = exports.pass_objects(inventory(settings))
        async for failure in recheck.find_failures(objects, exports.list_members()):
            yield str(failure)
        async for undeleted in exports.find_undeleted():
            yield undeleted
