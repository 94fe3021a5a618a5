"""The process that decodes, from outside: bounded, replaced when it fails, without secrets."""

import asyncio
import sys
from contextlib import aclosing
from pathlib import Path

import pytest

from inference_store.api import thumbnail_worker
from inference_store.api import thumbnails as making
from inference_store.api.thumbnails import Decoder
from inference_store.inference.errors import NoThumbnail
from tests.exchanges import png

from .pictures import SVG, make_picture


@pytest.fixture(autouse=True)
def patient_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture may take as long as a busy machine needs."""
    monkeypatch.setattr(making, "PICTURE_SECONDS", 300.0)


async def test_pictures_one_after_the_other() -> None:
    """One that is refused leaves the process to the next."""
    async with aclosing(Decoder()) as thumbnails:
        thumbnail = await thumbnails.make(make_picture(size=(640, 320)), 100)
        assert (thumbnail.size, thumbnail.picture) == ((100, 50), (640, 320))
        assert thumbnail.jpeg.startswith(b"\xff\xd8")
        first = thumbnails._process
        with pytest.raises(NoThumbnail, match="not a JPEG"):
            await thumbnails.make(SVG, 100)
        assert (await thumbnails.make(make_picture("PNG"), 16)).size == (16, 8)
        assert thumbnails._process is first


async def _read_proc(thumbnails: Decoder, name: str) -> bytes:
    """Return a file of the process that decodes."""
    await thumbnails.make(make_picture(), 16)
    assert thumbnails._process is not None
    return await asyncio.to_thread(Path(f"/proc/{thumbnails._process.pid}/{name}").read_bytes)


async def test_its_memory_is_bounded_and_it_sees_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the pixels that are allowed, a decoder may still want more memory than there is."""
    monkeypatch.setenv("INFERENCE_STORE_S3_SECRET_KEY", "secret")
    async with aclosing(Decoder()) as thumbnails:
        environment = await _read_proc(thumbnails, "environ")
        lines = (await _read_proc(thumbnails, "limits")).decode().splitlines()
    assert b"secret" not in environment
    assert b"INFERENCE_STORE" not in environment
    limits = {line[:26].strip(): line[26:].split()[0] for line in lines[1:]}
    assert limits["Max address space"] == str(thumbnail_worker.MEMORY_BYTES)
    assert (limits["Max core file size"], limits["Max file size"]) == ("0", "0")


async def test_what_a_camera_makes_fits() -> None:
    large = make_picture("JPEG", (8_000, 6_000), progressive=True)
    for form, mode in (("WEBP", "RGB"), ("WEBP", "RGBA"), ("PNG", "RGBA"), ("PNG", "I;16")):
        async with aclosing(Decoder()) as thumbnails:
            picture = make_picture(form, (4_096, 4_096), mode)
            assert (await thumbnails.make(picture, 240)).size == (240, 240), (form, mode)
            assert (await thumbnails.make(large, 240)).size == (240, 180)


async def test_a_bomb_is_refused_before_it_is_decoded() -> None:
    bomb = png(60_000, 60_000, rows=300)
    assert len(bomb) < 20_000_000
    async with aclosing(Decoder()) as thumbnails:
        with pytest.raises(NoThumbnail, match="too many pixels"):
            await thumbnails.make(bomb, 240)


async def test_a_process_that_fails() -> None:
    lies = "import os, time; os.write(1, bytes([9] + [255] * 500)); time.sleep(600)"
    for code, seconds, reason in (
        ("import time; time.sleep(600)", 0.5, "takes too long"),
        ("import os; os.abort()", 300, "could not be decoded"),
        (lies, 300, "too much memory"),
    ):
        thumbnails = Decoder(seconds=seconds, command=(sys.executable, "-c", code))
        async with aclosing(thumbnails):
            with pytest.raises(NoThumbnail, match=reason):
                await thumbnails.make(make_picture(), 16)
        assert thumbnails._process is None


async def test_another_process_takes_the_next_picture() -> None:
    async with aclosing(Decoder()) as thumbnails:
        await thumbnails.make(make_picture(), 16)
        assert thumbnails._process is not None
        thumbnails._process.kill()
        await thumbnails._process.wait()
        with pytest.raises(NoThumbnail):
            await thumbnails.make(make_picture(), 16)
        assert (await thumbnails.make(make_picture(), 16)).size == (16, 8)
