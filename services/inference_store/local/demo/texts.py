"""Sentences that scikit-image's wheel carries: what sorts them by topic, and what answers questions
with them."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import orjson

from inference_store.local.folder import find_package

from .models import CHAT, TOPIC_LABELS, TOPICS, Request
from .served_models import Finding, Refusal

# A function, and the first paragraph of its description.
_FUNCTION: Final = re.compile(
    r'^def ([a-z]\w*)\((?:[^"]|"(?!""))*?\):\n    r?"""(.+?)(?:\n\n|""")', re.MULTILINE | re.DOTALL
)
_MARKUP: Final = re.compile(r":\w+:`~?|[`*]|\s*\[\d+\]_")
_WORD: Final = re.compile(r"[a-z]{3,}")
_COMMON: Final = frozenset(
    _WORD.findall(
        "the and for from with that this are its which how can what one there another other using"
        " does image images picture pictures return compute find simple example"
    )
)
_HELD_OUT_EVERY: Final = 3
_SHARPNESS: Final = 3


class Sentence(NamedTuple):
    """What a function does, in a sentence; the part of the package is its topic."""

    topic: str
    function: str
    text: str


@cache
def read_sentences() -> Sequence[Sentence]:
    """Return every sentence, in the order of the package's files. Raises LocalStackError."""
    found: dict[str, Sentence] = {}
    for topic in TOPIC_LABELS:
        for file in sorted((find_package("skimage") / topic).glob("*.py")):
            for name, description in _FUNCTION.findall(file.read_text(encoding="utf-8")):
                text = _MARKUP.sub("", " ".join(description.split()))
                if len(text.split()) >= 4:
                    found.setdefault(text, Sentence(topic, name, text))
    return list(found.values())


def sentence_requests() -> Iterator[Request]:
    """Yield those sentences that the classifier was not trained on."""
    for number, each in enumerate(read_sentences()[::_HELD_OUT_EVERY]):
        items = [("true_label", "string", each.topic), ("function", "string", each.function)]
        yield Request(TOPICS, f"{TOPICS.prefix}{number:03d}", each.text.encode(), items)


def _words(text: str) -> list[str]:
    return [word for word in _WORD.findall(text.lower()) if word not in _COMMON]


class Known:
    """Sentences that texts are compared with."""

    def __init__(self, sentences: Sequence[Sentence]) -> None:
        self._known = [
            (each, frozenset(_words(f"{each.text} {each.function.replace('_', ' ')}")))
            for each in sentences
        ]
        found = Counter(word for _, words in self._known for word in words)
        self._rarity = {w: math.log(len(self._known) / times) for w, times in found.items()}

    def compare(self, text: str) -> Iterator[tuple[float, Sentence]]:
        """Yield each sentence, with how alike it is: by the rarest words that both have."""
        asked = frozenset(_words(text))
        for each, words in self._known:
            shared = sum(self._rarity[word] for word in sorted(asked & words))
            yield shared / math.sqrt(len(words) + 1), each


class TopicClassifier:
    """Finds the topic of the most similar sentence."""

    def __init__(self) -> None:
        self._known = Known(
            [each for n, each in enumerate(read_sentences()) if n % _HELD_OUT_EVERY]
        )

    def classify(self, encoded: bytes) -> Sequence[Finding]:
        """Return the topics of a text with their scores, best first."""
        best = dict.fromkeys(TOPIC_LABELS, 0.0)
        for likeness, each in self._known.compare(encoded.decode("utf-8", "replace")):
            best[each.topic] = max(best[each.topic], likeness**_SHARPNESS)
        total = sum(best.values()) or 1.0
        best_first = sorted(best, key=best.__getitem__, reverse=True)
        return [{"label": topic, "score": round(best[topic] / total, 4)} for topic in best_first]


# A chat about scikit-image: the answer is the sentence that shares the rarest words with the
# question and was not given yet.

_MOST_WORDS: Final = 120
_LEAST_MATCH: Final = 1.5
CONVERSATIONS: Final = (
    ("How do I find edges?", "Is there another edge filter?", "And only the vertical edges?"),
    ("How do I rotate a picture?", "And how do I resize it?", "Thanks! Will it rain tomorrow?"),
    ("Which threshold separates dark from bright?", "Which threshold is local?"),
    ("How do I remove small holes?", "And small objects?", "How do I fill an area?"),
    (
        "How do I denoise a photograph?",
        "Can I denoise with wavelets?",
        "What about total variation?",
    ),
    ("How do I measure a perimeter?", "How do I measure blur?", "Who won the match yesterday?"),
    ("What is wrong in this log? " + "warning: low contrast image " * 40,),
    ("How do I match two histograms?", "How do I equalize a histogram?"),
    ("Where are the corners?", "How do I match descriptors of two pictures?"),
    ("How do I split cells that touch, with a watershed?", "How do I clear objects at the border?"),
)
"""What a user asks, turn by turn."""


class Assistant:
    """Answers questions about scikit-image."""

    def __init__(self) -> None:
        self._known = Known(read_sentences())

    def reply(self, encoded: bytes) -> Sequence[Finding]:
        """Return the answer to messages in JSON, as `{"text"}`. Raises Refusal if they are long."""
        messages: Sequence[Mapping[str, Any]] = orjson.loads(encoded)
        if self.refuses(messages):
            raise Refusal(f"the messages have more than {_MOST_WORDS} words")
        return [{"text": self.answer(messages)}]

    def refuses(self, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether the messages are too long."""
        return sum(len(message["content"].split()) for message in messages) > _MOST_WORDS

    def answer(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the answer to the last message."""
        said = " ".join(str(m["content"]) for m in messages if m["role"] == "assistant")
        compared = self._known.compare(messages[-1]["content"])
        new = (pair for pair in compared if pair[1].text not in said)
        score, best = max(new, key=lambda pair: pair[0])
        if score < _LEAST_MATCH:
            return "I know no function that does that."
        return f"skimage.{best.topic}.{best.function}: {best.text}"


def chat_requests() -> Iterator[Request]:
    """Yield the turns of the conversations; each has all that was said before."""
    assistant = Assistant()
    for conversation, questions in enumerate(CONVERSATIONS):
        messages: list[dict[str, str]] = []
        for turn, question in enumerate(questions):
            messages.append({"role": "user", "content": question})
            items = [("conversation", "int", str(conversation)), ("turn", "int", str(turn))]
            request_id = f"{CHAT.prefix}{conversation:02d}-{turn}"
            refused = assistant.refuses(messages)
            yield Request(CHAT, request_id, orjson.dumps(messages), items, refused)
            messages.append({"role": "assistant", "content": assistant.answer(messages)})
