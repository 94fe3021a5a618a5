"""Checks that erasures end with a certificate, if there is a key to sign them."""

from collections.abc import AsyncIterator, Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import erasures
from inference_store.erasure.certificates import chain
from inference_store.erasure.certificates.keys import signing_keys
from inference_store.inference.plural import counted
from inference_store.platform.settings import WrongSetting

from .finding import Finding, Subject, failed, ok, warning

_GIVE = (
    "Give it to the retention service (INFERENCE_STORE_CERTIFICATE_KEY), behind the one that is to"
    " sign from now on; if it is lost: `inference-store certificates begin-anew`."
)


async def check_certificates(subject: Subject) -> list[Finding]:
    """Check that the key can be read, that it is the chain's, and that nothing waits for it."""
    try:
        keys = [key.id for key in signing_keys(subject.settings)]
    except WrongSetting as wrong:
        return [failed(str(wrong), "Until then no retention service starts.")]
    async with subject.engine.connect() as connection:
        found = [each async for each in _find_problems(connection, keys)]
        signed = await chain.counted(connection)
    none = "no key: erasures end without a certificate"
    return found or [ok(counted(signed, "certificate") if keys or signed else none)]


async def _find_problems(
    connection: AsyncConnection, keys: Sequence[str]
) -> AsyncIterator[Finding]:
    known = await chain.keys(connection)
    newest = chain.public_key(known[-1]).id if known else None
    if keys and newest is not None and newest not in keys:
        yield failed(f"the chain's newest key is {newest}, which is not among those given", _GIVE)
    if waiting := len(await erasures.certifying(connection)):
        yield warning(
            f"{counted(waiting, 'erasure waits', 'erasures wait')} for a certificate",
            "The retention service's log says why (`chain_apart`, `certificate_waits`).",
        )
