"""Checks that erasures end with a certificate."""

from collections.abc import AsyncIterator, Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.certify import chain
from inference_store.erasure.log.keys import known_key_ids
from inference_store.erasure.progress.erasure import list_uncertified
from inference_store.inference.plural import counted
from inference_store.platform.settings import WrongSetting

from .finding import Finding, Subject, failed, ok, warning

_GIVE = (
    "Give it to the retention service (INFERENCE_STORE_CERTIFICATE_KEY), behind the one that is to"
    " sign from now on; if it is lost: `inference-store certificates restart-chain`."
)
_MAKE = (
    "Make one with `inference-store certificates keys new`, and give it to the retention service"
    " (INFERENCE_STORE_CERTIFICATE_KEY); here its public half is enough."
)


async def check_certificates(subject: Subject) -> list[Finding]:
    """Check that the key can be read, that it is the chain's, and that nothing waits for it."""
    try:
        keys = known_key_ids(subject.settings)
    except WrongSetting as error:
        return [failed(str(error), "Until then no retention service starts.")]
    async with subject.engine.connect() as connection:
        problems = [problem async for problem in _find_problems(connection, keys)]
        signed = await chain.count_certificates(connection)
    if not (problems or keys or signed):
        return [warning("no key: erasures end without a certificate", _MAKE)]
    return problems or [ok(counted(signed, "certificate"))]


async def _find_problems(
    connection: AsyncConnection, keys: Sequence[str]
) -> AsyncIterator[Finding]:
    public_keys = await chain.find_public_keys(connection)
    newest = public_keys[-1].id if public_keys else None
    if keys and newest is not None and newest not in keys:
        yield failed(f"the chain's newest key is {newest}, which is not among those given", _GIVE)
    if waiting := len(await list_uncertified(connection)):
        yield warning(
            f"{counted(waiting, 'erasure waits', 'erasures wait')} for a certificate",
            "The retention service's log says why (`chain_apart`, `certificate_waits`).",
        )
