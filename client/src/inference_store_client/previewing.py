"""Reads what a notebook shows of a question. No I/O."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from .commands import Steps
from .errors import Refused, StoreError
from .html import MOST_PICTURES, Preview, format_failure, format_preview
from .question import Question
from .reading import fetch, read_page
from .requests import make_path, make_request
from .settings import ClientSettings
from .streaming import Build
from .values.inference import InferenceFields
from .values.thumbnails import Thumbnail, ThumbnailPage

_EDGE: Final = 240


def read_html(question: Question, build: Build, settings: ClientSettings) -> Steps[str]:
    """Return the first matches as HTML; an error is shown in their place."""
    question = replace(question, include=("predictions",))
    try:
        # one more than is shown, to know whether there are more
        page = yield from read_page(question, build, settings, None, MOST_PICTURES + 1)
        inferences = page.items[:MOST_PICTURES]
        thumbnails = yield from _read_thumbnails(inferences, settings)
    except StoreError as error:
        return format_failure(error)
    has_more = len(page.items) > MOST_PICTURES or page.next is not None
    by_uid = {thumbnail.uid: thumbnail for thumbnail in thumbnails}
    return format_preview(Preview(inferences, by_uid, has_more))


def _read_thumbnails(
    inferences: Sequence[InferenceFields], settings: ClientSettings
) -> Steps[list[Thumbnail]]:
    thumbnails: list[Thumbnail] = []
    for model_id in dict.fromkeys(inference.model_id for inference in inferences):
        uids = [str(item.uid) for item in inferences if item.model_id == model_id]
        path = make_path("models", model_id, "inferences", "thumbnails")
        request = make_request("POST", path, body={"uids": uids, "edge": _EDGE})
        try:
            page = yield from fetch(ThumbnailPage, request, settings)
        except Refused:
            continue  # without `read_inputs` there is text alone
        thumbnails += page.items
    return thumbnails
