"""`inference-store certificates verify|prove|match|keys|begin-anew`: shows what was erased, and
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

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.certificates import matching
from inference_store.erasure.certificates.anew import CannotBeginAnew, begin_anew
from inference_store.erasure.certificates.archive import Archive
from inference_store.erasure.certificates.head import Head
from inference_store.erasure.certificates.keys import new_key, signing_keys
from inference_store.erasure.certificates.looking_again import LookingAgain
from inference_store.erasure.certificates.proving import proofs
from inference_store.erasure.certificates.verifying import Verification
from inference_store.index.database import engine_of
from inference_store.inference.errors import BlobsAway, NotFound
from inference_store.inference.plural import counted
from inference_store.objects import Blobs
from inference_store.objects.inventory import inventory
from inference_store.platform.settings import (
    BlobSettings,
    CertificateSettings,
    LogSettings,
    PostgresSettings,
)

from .start import start_service
from .user import find_cli_user

_NEEDS_KEY = "needs INFERENCE_STORE_CERTIFICATE_KEY: the lists are hashed with it"


class _Settings(LogSettings, PostgresSettings, BlobSettings, CertificateSettings):
    """The settings of the command."""


SETTINGS = _Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is done."""
    commands = parser.add_subparsers(dest="what", required=True)
    verify = commands.add_parser("verify", help="check the chain, its signatures and its lists")
    verify.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="KEY",
        help="id of a key that the chain may begin with; may be repeated",
    )
    verify.add_argument(
        "--head", action="store_true", help="also hold the chain's end against its locked head"
    )
    verify.add_argument(
        "--objects",
        action="store_true",
        help="also look again for every row and object (needs the key)",
    )
    prove = commands.add_parser("prove", help="prove that an inference is in a certificate")
    prove.add_argument("uid", type=UUID, help="the inference's uid")
    match = commands.add_parser(
        "match", help="say whether a certificate is of a subject, a filter or an inference"
    )
    match.add_argument("number", type=int, help="the certificate's number")
    asked = match.add_mutually_exclusive_group(required=True)
    asked.add_argument("--subject", nargs=2, metavar=("KEY", "VALUE"), help="of whom it is")
    asked.add_argument("--filter", metavar="TEXT", help="a filter, written as it was asked for")
    asked.add_argument("--uid", type=UUID, help="an inference's uid")
    match.add_argument("--type", help="the subject's type, as it was asked for; else any")
    anew = commands.add_parser(
        "begin-anew", help="go on where the key of the newest certificates is lost"
    )
    anew.add_argument("--reason", required=True, help="why; the certificate and the audit say it")
    keys = commands.add_parser("keys", help="the keys that sign").add_subparsers(
        dest="which", required=True
    )
    keys.add_parser("new", help="make a key and print it (PEM, secret)")


def run(arguments: argparse.Namespace) -> int:
    """Run the subcommand; return 1 if something is not as it was signed."""
    if arguments.what == "keys":
        key = new_key()
        print(f"The key {key.id}, for INFERENCE_STORE_CERTIFICATE_KEY:", file=sys.stderr)
        print(key.pem, end="")
        return 0
    settings = start_service(_Settings, "certificates")
    try:
        return asyncio.run(_run(settings, arguments))
    except BlobsAway as away:
        sys.exit(f"The object store is away: {away}"[:500])
    except (DBAPIError, OSError) as away:
        sys.exit(f"Postgres is away, or not migrated (inference-store migrate): {away}"[:500])


async def _run(settings: _Settings, arguments: argparse.Namespace) -> int:
    engine = engine_of(settings, application="inference-store-certificates", pool_size=2)
    try:
        if arguments.what == "prove":
            return await _prove(settings, engine, arguments.uid)
        if arguments.what == "match":
            return await _match(settings, engine, arguments)
        if arguments.what == "begin-anew":
            return await _begin_anew(settings, engine, arguments.reason)
        return await _verify(settings, engine, arguments)
    finally:
        await engine.dispose()


async def _prove(settings: _Settings, engine: AsyncEngine, uid: UUID) -> int:
    keys = signing_keys(settings)
    if not keys:
        sys.exit(f"`prove` {_NEEDS_KEY}.")
    found = [proof for key in keys for proof in await proofs(engine, key, uid)]
    for proof in found:
        print(json.dumps(proof.shown(uid)))
    holding = [proof for proof in found if proof.holds]
    print(f"{uid} is proved to be in {counted(len(holding), 'certificate')}.", file=sys.stderr)
    return 0 if found and len(holding) == len(found) else 1


async def _match(settings: _Settings, engine: AsyncEngine, arguments: argparse.Namespace) -> int:
    keys = signing_keys(settings)
    try:
        async with engine.connect() as connection:
            one = await matching.of_number(connection, arguments.number)
        if arguments.uid is not None:
            is_of = await matching.is_of_inference(engine, one, keys, arguments.uid)
        elif arguments.filter is not None:
            is_of = matching.is_of_filter(one, keys, arguments.filter)
        else:
            is_of = matching.is_of_subject(one, keys, *arguments.subject, type=arguments.type)
    except (NotFound, matching.KeyNotGiven) as why:
        sys.exit(str(why))
    print(f"Certificate {arguments.number} is {'' if is_of else 'not '}of it.", file=sys.stderr)
    return 0 if is_of else 1


async def _begin_anew(settings: _Settings, engine: AsyncEngine, reason: str) -> int:
    keys = signing_keys(settings)
    if not keys:
        sys.exit("`begin-anew` needs INFERENCE_STORE_CERTIFICATE_KEY: the new key.")
    by = f"cli:{find_cli_user()}"
    with Blobs(settings) as blobs:
        try:
            one = await begin_anew(engine, Archive(blobs), keys, by=by, reason=reason)
        except CannotBeginAnew as why:
            sys.exit(str(why))
    print(
        f"From {one.document['number']} on the key {keys[0].id} signs: give its id to whoever"
        " verifies.",
        file=sys.stderr,
    )
    return 0


async def _verify(settings: _Settings, engine: AsyncEngine, arguments: argparse.Namespace) -> int:
    trusted = set(arguments.trust) | {key.id for key in signing_keys(settings)}
    wrong = 0
    with Blobs(settings) as blobs:
        verification = Verification(engine, Archive(blobs), trusted=trusted)
        async for each in _find_failures(settings, engine, verification, arguments):
            wrong += 1
            print(each)
    seen = verification.seen
    print(
        f"{counted(seen.certificates, 'certificate')} over"
        f" {counted(seen.leaves, 'entry', 'entries')}, head {seen.head.number}"
        f" {seen.head.hash.hex()}: {counted(wrong, 'fault') if wrong else 'all as it was signed'}.",
        file=sys.stderr,
    )
    for number, key in seen.begun_anew:
        said = (
            f"The chain begins anew at {number} with key {key.id}, which no key before has signed."
        )
        print(said, file=sys.stderr)
    if seen.head_locked is False:
        print("The head is not locked: who may delete in the bucket can cut it.", file=sys.stderr)
    return 1 if wrong else 0


async def _find_failures(
    settings: _Settings,
    engine: AsyncEngine,
    verification: Verification,
    arguments: argparse.Namespace,
) -> AsyncIterator[str]:
    async for each in verification.wrongs():
        yield str(each)
    if arguments.head:
        head = Head(settings, lock_days=settings.certificate_head_lock_days)
        async for each in verification.head(head):
            yield str(each)
    if arguments.objects:
        keys = signing_keys(settings)
        if not keys:
            sys.exit(f"`--objects` {_NEEDS_KEY}.")
        again = LookingAgain(engine, keys)
        for unknown in sorted(await again.unknown_keys()):
            yield f"lists are hashed by key {unknown}, which is not given: not looked for again"
        async for there in again.there(inventory(settings)):
            yield f"certificate {there.certificate}: {there.what}"
