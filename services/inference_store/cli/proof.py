"""`inference-store certificates`, `ledger` and `audit`: what was deleted, and its proof.

What is wrong, or was asked for, goes to standard output, a line each; all else to standard error.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

from inference_store.erasure import audit_chain, certificates
from inference_store.erasure.audit_chain import Verdict
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.ledger_entries import Entry
from inference_store.erasure.log import (
    BrokenChain,
    ChainHead,
    NotSigned,
    is_key_id,
    new_key,
    signing_keys,
)
from inference_store.erasure.proofs import (
    KeyNotGiven,
    Recheck,
    Verification,
    copy_signed,
    find_proofs,
    is_of_filter,
    is_of_inference,
    is_of_subject,
    read_certificate,
    verify_audit,
)
from inference_store.export.erased import ExportRecheck
from inference_store.index.schema import migrated
from inference_store.inference.nearest import counted
from inference_store.objects import Blobs
from inference_store.objects.listing import inventory
from inference_store.platform.settings import BlobSettings, CertificateSettings

from .command import (
    Command,
    DatabaseSettings,
    exiting,
    find_cli_user,
    parse_limit,
    parse_number,
    start_service,
)

_NEEDS_KEY = "needs INFERENCE_STORE_CERTIFICATE_KEY: the lists are hashed with it"


class _LedgerSettings(DatabaseSettings, BlobSettings):
    """The settings of a command that reads the ledger."""


class _CertificatesSettings(_LedgerSettings, CertificateSettings):
    """The settings of the command."""


def add_certificates_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the action to run, and its arguments."""
    commands = parser.add_subparsers(dest="what", required=True)
    verify = commands.add_parser("verify", help="check the ledger, its signatures and its lists")
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
        "--head", action="store_true", help="also hold the ledger's end against its locked head"
    )
    verify.add_argument(
        "--objects",
        action="store_true",
        help="also look again for every row, object and member of an export (needs the key)",
    )
    copy = commands.add_parser("copy", help="copy to a folder what an auditor needs to verify them")
    copy.add_argument("folder", type=Path, help="a new folder")
    prove = commands.add_parser("prove", help="prove that an inference is in a certificate")
    prove.add_argument("uid", type=UUID, help="the inference's uid")
    match = commands.add_parser(
        "match", help="say whether a certificate covers a subject, a filter or an inference"
    )
    match.add_argument("number", type=int, help="the certificate's number")
    subject = match.add_mutually_exclusive_group(required=True)
    subject.add_argument("--subject", nargs=2, metavar=("KEY", "VALUE"), help="a subject")
    subject.add_argument(
        "--filter", metavar="TEXT", help="a filter, as it was written in the request"
    )
    subject.add_argument("--uid", type=UUID, help="an inference's uid")
    match.add_argument("--type", help="the subject's type, if the request had one (default: any)")
    restart = commands.add_parser(
        "restart-chain",
        help="continue with a new key, because the last one is lost",
    )
    restart.add_argument(
        "--reason", required=True, help="why; the certificate and the audit record it"
    )
    keys = commands.add_parser("keys", help="the keys that sign").add_subparsers(
        dest="which", required=True
    )
    keys.add_parser("new", help="make a key and print it (PEM, secret)")


def _parse_key_id(text: str) -> str:
    if not is_key_id(text):
        message = f"{text!r} is not a key id, which has 32 digits of 0-9 and a-f"
        raise argparse.ArgumentTypeError(message)
    return text


def run_certificates(arguments: argparse.Namespace) -> int:
    """Run the subcommand; return 1 if something is not as it was signed."""
    if arguments.what == "keys":
        key = new_key()
        print(f"The key {key.id}, for INFERENCE_STORE_CERTIFICATE_KEY:", file=sys.stderr)
        print(key.pem, end="")
        return 0
    settings = start_service(_CertificatesSettings, "certificates")
    with exiting():
        return asyncio.run(_run_certificates(settings, arguments))


async def _run_certificates(settings: _CertificatesSettings, arguments: argparse.Namespace) -> int:
    work = {
        "copy": _copy,
        "prove": _prove,
        "match": _match,
        "restart-chain": _restart_certificates,
        "verify": _verify_certificates,
    }[arguments.what]
    async with _open_ledger(settings, "certificates") as ledger:
        return await work(settings, ledger, arguments)


@asynccontextmanager
async def _open_ledger(settings: "_LedgerSettings", command: str) -> AsyncIterator[Ledger]:
    async with migrated(settings, command, pool_size=2) as engine:
        with Blobs(settings) as blobs:
            yield Ledger(engine, blobs, prefix=settings.ledger_prefix)


async def _copy(
    settings: _CertificatesSettings, ledger: Ledger, arguments: argparse.Namespace
) -> int:
    try:
        count = await copy_signed(ledger, _make_head(settings), arguments.folder)
    except (NotSigned, OSError) as why:
        sys.exit(str(why))
    print(f"{counted(count, 'document')} copied.", file=sys.stderr)
    return 0


def _make_head(settings: _CertificatesSettings) -> ChainHead:
    return ChainHead(settings, lock_days=settings.certificate_head_lock_days)


async def _prove(
    settings: _CertificatesSettings, ledger: Ledger, arguments: argparse.Namespace
) -> int:
    keys, uid = signing_keys(settings), arguments.uid
    if not keys:
        sys.exit(f"`prove` {_NEEDS_KEY}.")
    proofs = [proof for key in keys for proof in await find_proofs(ledger, key, uid)]
    for proof in proofs:
        print(json.dumps(proof.format(uid)))
    holding = [proof for proof in proofs if proof.holds]
    number = counted(len(holding), "certificate")
    _say(f"{uid} is {f'proved to be in {number}' if holding else 'in no certificate'}.")
    return 0 if proofs and len(holding) == len(proofs) else 1


async def _match(
    settings: _CertificatesSettings, ledger: Ledger, arguments: argparse.Namespace
) -> int:
    keys = signing_keys(settings)
    try:
        async with ledger.engine.connect() as connection:
            certificate = await read_certificate(connection, arguments.number)
        if arguments.uid is not None:
            is_of = await is_of_inference(ledger, certificate, keys, arguments.uid)
        elif arguments.filter is not None:
            is_of = is_of_filter(certificate, keys, arguments.filter)
        else:
            is_of = is_of_subject(certificate, keys, *arguments.subject, type=arguments.type)
    except KeyNotGiven as why:
        sys.exit(str(why))
    verb = "covers" if is_of else "does not cover"
    print(f"Certificate {arguments.number} {verb} it.", file=sys.stderr)
    return 0 if is_of else 1


async def _restart_certificates(
    settings: _CertificatesSettings, ledger: Ledger, arguments: argparse.Namespace
) -> int:
    keys = signing_keys(settings)
    if not keys:
        sys.exit("`restart-chain` needs INFERENCE_STORE_CERTIFICATE_KEY: the new key.")
    try:
        by = f"cli:{find_cli_user()}"
        document = await certificates.introduce_key(ledger, keys, by=by, lost=arguments.reason)
    except BrokenChain as why:
        sys.exit(str(why))
    assert document is not None
    _say(f"From {document.number} on key {keys[0].id} signs: give its ID to your auditors.")
    return 0


async def _verify_certificates(
    settings: _CertificatesSettings, ledger: Ledger, arguments: argparse.Namespace
) -> int:
    # If ids are given, the keys of the settings are not trusted: someone who signed everything
    # again may have put their own key there.
    trusted = set(arguments.trust) or {key.id for key in signing_keys(settings)}
    verification, wrong = Verification(ledger, trusted=trusted), 0
    async for failure in _find_failures(settings, ledger, verification, arguments):
        wrong += 1
        print(failure)
    end = verification.chain.end
    head = f"head {end.number} {end.hash.hex()}" if end.number else "no head"
    _say(
        f"{counted(verification.certificates, 'certificate')} over"
        f" {counted(verification.leaves, 'entry', 'entries')}, {head}:"
        f" {counted(wrong, 'fault') if wrong else 'all as it was signed'}."
    )
    for number, key in verification.restarts:
        _say(f"The chain restarts at {number} with key {key}, which no key before has signed.")
    if verification.head_locked is False:
        print("The head is not locked: who may delete in the bucket can cut it.", file=sys.stderr)
    return 1 if wrong else 0


async def _find_failures(
    settings: _CertificatesSettings,
    ledger: Ledger,
    verification: Verification,
    arguments: argparse.Namespace,
) -> AsyncIterator[str]:
    async for failure in verification.find_failures():
        yield str(failure)
    if arguments.head:
        async for failure in verification.find_head_failures(_make_head(settings)):
            yield str(failure)
    if arguments.objects:
        keys = signing_keys(settings)
        if not keys:
            sys.exit(f"`--objects` {_NEEDS_KEY}.")
        recheck, exports = Recheck(ledger, keys), ExportRecheck(ledger.engine, ledger.blobs)
        for unknown in sorted(await recheck.find_unknown_keys()):
            yield f"lists hashed with key {unknown} are not checked: it is not given"
        objects = exports.pass_objects(inventory(settings))
        async for failure in recheck.find_failures(objects, exports.list_members()):
            yield str(failure)
        async for undeleted in exports.find_undeleted():
            yield undeleted


# `inference-store ledger show|replay|restart-chain`: the decisions about deletion in the bucket.
#
# Entries go to standard output, one JSON object a line; everything else goes to standard error.

_AFTER_A_RESTORE = """If Postgres was restored from a backup:
- all sessions have ended, and API keys are as they were last. A key that the ledger does not know
  works once you confirm it: `inference-store keys list`, `inference-store keys confirm ID`;
- the audit lacks its entries since the backup."""


def add_ledger_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their arguments."""
    commands = parser.add_subparsers(dest="what", required=True)
    show = commands.add_parser("show", help="compare bucket and Postgres, and print entries")
    show.add_argument(
        "--after",
        type=parse_number,
        default=0,
        help="print those after this number",
    )
    show.add_argument(
        "--limit", type=parse_limit, default=100, help="print at most this many (default: 100)"
    )
    replay = commands.add_parser(
        "replay", help="apply to a restored Postgres what was decided since the backup"
    )
    replay.add_argument(
        "--skip-forgotten",
        action="store_true",
        help="skip entries whose content was forgotten, and name them",
    )
    commands.add_parser(
        "restart-chain",
        help="continue in an empty bucket, or under an empty prefix",
    )


def run_ledger(arguments: argparse.Namespace) -> int:
    """Run the subcommand; return 1 if bucket and Postgres diverge, with the remedy, and 3 if one is
    unavailable."""
    settings = start_service(_LedgerSettings, "ledger")
    with exiting():
        return asyncio.run(_run_ledger(settings, arguments))


async def _run_ledger(settings: _LedgerSettings, arguments: argparse.Namespace) -> int:
    async with _open_ledger(settings, "ledger") as ledger:
        match arguments.what:
            case "show":
                read = ledger.entries.read_after
                for entry in await asyncio.to_thread(read, arguments.after, arguments.limit):
                    print(json.dumps(_format_entry(entry), ensure_ascii=False, sort_keys=True))
                last = (await ledger.compare()).number
                _say(f"Bucket and Postgres agree: entry {last} is the last.")
            case "replay":
                await _replay(ledger, skip_forgotten=arguments.skip_forgotten)
            case _:
                by = f"cli:{find_cli_user()}"
                entry = await certificates.restart_ledger(ledger, by=by)
                place = ledger.entries.location
                _say(f"The ledger continues in {place} with entry {entry.number}.")
    return 0


async def _replay(ledger: Ledger, *, skip_forgotten: bool) -> None:
    def say(entry: Entry) -> None:
        passed = "" if entry.content is not None else ", forgotten: skipped"
        _say(f"{entry.number}  {entry.at:%Y-%m-%d %H:%M:%S} UTC  {entry.kind}{passed}")

    count = await ledger.replay(skip_forgotten=skip_forgotten, report=say)
    _say(f"{counted(count, 'entry', 'entries')} replayed: bucket and Postgres agree.")
    if count:
        _say(_AFTER_A_RESTORE)


def _format_entry(entry: Entry) -> dict[str, object]:
    content = entry.content
    shown = {"number": entry.number, "kind": entry.kind, "at": entry.at.isoformat()}
    body = None if content is None else content.body
    return {**shown, "actor": entry.actor, "body": body, "forgotten": content is None}


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def add_audit_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the action to run, and its arguments."""
    commands = parser.add_subparsers(dest="what", required=True)
    verify = commands.add_parser("verify", help="check the chain, and say what was changed")
    verify.add_argument(
        "--ledger", action="store_true", help="compare with the checkpoints in the bucket too"
    )


def run_audit(arguments: argparse.Namespace) -> int:
    """Print each failure on a line of standard output; return 1 if there is one."""
    settings = start_service(_LedgerSettings if arguments.ledger else DatabaseSettings, "audit")
    with exiting():
        verdict, faults = asyncio.run(_verify_audit(settings))
    for fault in faults:
        print(f"the ledger: {fault}")
    for failure in verdict.failures:
        print(f"{failure.number}: {failure.reason}")
    print(_summarize(verdict, len(faults)), file=sys.stderr)
    return 1 if verdict.failures or faults else 0


async def _verify_audit(settings: DatabaseSettings) -> tuple[Verdict, list[str]]:
    """Return what the audit's own chain says, and what is wrong with the ledger if it is read."""
    if isinstance(settings, _LedgerSettings):
        async with _open_ledger(settings, "audit") as ledger:
            return await verify_audit(ledger, ChainHead(settings, lock_days=0))
    async with migrated(settings, "audit", pool_size=2) as engine, engine.connect() as connection:
        # One snapshot: what is written meanwhile is not a failure.
        await connection.execution_options(isolation_level="REPEATABLE READ")
        return await audit_chain.verify(connection), []


def _summarize(verdict: Verdict, more_failures: int) -> str:
    failure_count, end = len(verdict.failures) + more_failures, verdict.end
    return (
        f"{counted(verdict.linked, 'entry', 'entries')} ({verdict.first} to {end.number}),"
        f" {verdict.redacted} redacted by erasures;"
        f" {counted(verdict.checkpoints, 'checkpoint')}"
        f" ({verdict.signed} signed);"
        f" {counted(verdict.unlinked, 'entry is', 'entries are')} not in the chain yet;"
        f" {counted(failure_count, 'fault') if failure_count else 'no faults'}."
        f" The head is {end.hash.hex()}."
    )


CERTIFICATES = Command(run_certificates, _CertificatesSettings, add_certificates_arguments)
LEDGER = Command(run_ledger, _LedgerSettings, add_ledger_arguments)
AUDIT = Command(run_audit, _LedgerSettings, add_audit_arguments)
