"""Reads what a notebook shows of a question."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Final
from uuid import UUID

from inference_store_client.errors import Refused, StoreError
from inference_store_client.question import Question
from inference_store_client.reading import fetch, read_page
from inference_store_client.requests import make_path, make_request
from inference_store_client.streaming import Build
from inference_store_client.transport import Transport
from inference_store_client.values.answers import Thumbnail, ThumbnailPage
from inference_store_client.values.inference import InferenceFields, Prediction

_EDGE: Final = 240


async def read_html(transport: Transport, question: Question, build: Build) -> str:
    """Return the first matches as HTML; an error is shown in their place."""
    question = replace(question, include=("predictions",))
    try:
        # one more than is shown, to know whether there are more
        size = min(MOST_PICTURES + 1, question.limit or MOST_PICTURES + 1)
        page = await read_page(transport, question, build, None, size)
        inferences = page.items[:MOST_PICTURES]
        thumbnails = await _read_thumbnails(transport, inferences)
    except StoreError as error:
        return f"<pre>{escape(type(error).__name__)}: {escape(str(error))}</pre>"
    has_more = len(page.items) > MOST_PICTURES or (page.next is not None and size > MOST_PICTURES)
    by_uid = {thumbnail.uid: thumbnail for thumbnail in thumbnails}
    return _format_preview(inferences, by_uid, has_more=has_more)


async def _read_thumbnails(
    transport: Transport, inferences: Sequence[InferenceFields]
) -> list[Thumbnail]:
    thumbnails: list[Thumbnail] = []
    for model_id in dict.fromkeys(inference.model_id for inference in inferences):
        uids = [str(item.uid) for item in inferences if item.model_id == model_id]
        path = make_path("models", model_id, "inferences", "thumbnails")
        request = make_request("POST", path, body={"uids": uids, "edge": _EDGE})
        try:
            page = await fetch(transport, ThumbnailPage, request)
        except Refused:
            continue  # without `read_inputs` there is text alone
        thumbnails += page.items
    return thumbnails


MOST_PICTURES: Final = 12
_MOST_BOXES: Final = 50
_IN_SHARES: Final = "box_in_shares"
_COLOURS: Final = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080")
_CARD: Final = "display:inline-block;width:220px;margin:4px;vertical-align:top;font:12px sans-serif"


def _format_preview(
    inferences: Sequence[InferenceFields], thumbnails: Mapping[UUID, Thumbnail], *, has_more: bool
) -> str:
    if not inferences:
        return "<div>No inference matches.</div>"
    cards = [_format_card(item, thumbnails.get(item.uid)) for item in inferences]
    more = "<div>… and more: .count() counts them.</div>" if has_more else ""
    return f"<div>{''.join(cards)}{more}</div>"


def _format_card(inference: InferenceFields, thumbnail: Thumbnail | None) -> str:
    label = (
        "" if inference.top_label is None else _describe(inference.top_label, inference.top_score)
    )
    lines = (
        inference.inference_id,
        inference.received_at.isoformat(),
        label or inference.error or "",
    )
    text = "<br>".join(escape(line) for line in lines if line)
    return f'<div style="{_CARD}">{_format_picture(inference, thumbnail)}<div>{text}</div></div>'


def _format_picture(inference: InferenceFields, thumbnail: Thumbnail | None) -> str:
    if thumbnail is None or thumbnail.data is None or thumbnail.picture_width is None:
        return ""  # or it is the beginning of a text
    width, height = thumbnail.picture_width, thumbnail.picture_height or 1
    scale = (width, height) if _IN_SHARES in inference.flags else (1, 1)
    boxes = "".join(_format_boxes(inference.predictions[:_MOST_BOXES], scale, width))
    link = f"data:image/jpeg;base64,{escape(thumbnail.data)}"
    return (
        f'<svg viewBox="0 0 {width} {height}" style="width:100%;height:auto">'
        f'<image href="{link}" width="{width}" height="{height}"/>{boxes}</svg>'
    )


def _format_boxes(
    predictions: Sequence[Prediction], scale: tuple[int, int], width: int
) -> Iterator[str]:
    labels = sorted({prediction.label or "" for prediction in predictions})
    for prediction in predictions:
        if (box := prediction.box) is None:
            continue
        left, top, right, bottom = (edge * scale[n % 2] for n, edge in enumerate(box))
        colour = _COLOURS[labels.index(prediction.label or "") % len(_COLOURS)]
        title = escape(_describe(prediction.label, prediction.score))
        yield (
            f'<rect x="{left:g}" y="{top:g}" width="{max(right - left, 0):g}"'
            f' height="{max(bottom - top, 0):g}" fill="none" stroke="{colour}"'
            f' stroke-width="{max(width / 150, 0.5):g}"><title>{title}</title></rect>'
        )


def _describe(label: str | None, score: float | None) -> str:
    return f"{label or ''} {'' if score is None else f'{score:.2f}'}".strip()
