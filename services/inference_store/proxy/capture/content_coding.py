"""A body without its content coding."""

import zlib

from inference_store.proxy.exchange import Headers, header

_WINDOWS: dict[str, tuple[int, ...]] = {
    "gzip": (16 + zlib.MAX_WBITS,),
    "x-gzip": (16 + zlib.MAX_WBITS,),
}
_WINDOWS |= {"deflate": (zlib.MAX_WBITS, -zlib.MAX_WBITS)}


def decoded(body: bytes, headers: Headers, *, limit: int) -> bytes | None:
    """The body as its sender wrote it; None: another coding, broken, or over `limit` bytes."""
    coding = (header(headers, "content-encoding") or "identity").strip().lower()
    if coding in {"", "identity"}:
        return body
    for window in _WINDOWS.get(coding, ()):
        try:
            opened = zlib.decompressobj(window)
            plain = opened.decompress(body, limit + 1)
        except zlib.error:
            continue
        return plain if opened.eof and len(plain) <= limit else None
    return None
