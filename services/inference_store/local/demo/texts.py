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
_SMOOTHING: Final = 0.5


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


class TopicClassifier:
    """Naive Bayes over words."""

    def __init__(self) -> None:
        training = [each for n, each in enumerate(read_sentences()) if n % _HELD_OUT_EVERY]
        self._share = {
            topic: sum(each.topic == topic for each in training) / len(training)
            for topic in TOPIC_LABELS
        }
        self._counts = {
            topic: Counter(w for each in training if each.topic == topic for w in _words(each.text))
            for topic in TOPIC_LABELS
        }
        self._known = set().union(*self._counts.values())

    def classify(self, encoded: bytes) -> Sequence[Finding]:
        """Return the topics of a text with their probabilities, best first."""
        words = [w for w in _words(encoded.decode("utf-8", "replace")) if w in self._known]
        powers = {topic: self._weigh(topic, words) for topic in TOPIC_LABELS}
        shares = {t: math.exp(power - max(powers.values())) for t, power in powers.items()}
        total = sum(shares.values())
        best_first = sorted(shares, key=shares.__getitem__, reverse=True)
        return [{"label": topic, "score": round(shares[topic] / total, 4)} for topic in best_first]

    def _weigh(self, topic: str, words: Sequence[str]) -> float:
        counts = self._counts[topic]
        total = counts.total() + _SMOOTHING * len(self._known)
        likely = sum(math.log((counts[word] + _SMOOTHING) / total) for word in words)
        return math.log(self._share[topic]) + likely


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
        self._known = [
            (each, frozenset(_words(f"{each.text} {each.function.replace('_', ' ')}")))
            for each in read_sentences()
        ]
        found = Counter(word for _, words in self._known for word in words)
        self._rarity = {w: math.log(len(self._known) / times) for w, times in found.items()}

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
        asked = frozenset(_words(messages[-1]["content"]))
        said = " ".join(str(m["content"]) for m in messages if m["role"] == "assistant")
        score, best = max(
            (
                (self._score(asked & words, words), each)
                for each, words in self._known
                if each.text not in said
            ),
            key=lambda pair: pair[0],
        )
        if score < _LEAST_MATCH:
            return "I know no function that does that."
        return f"skimage.{best.topic}.{best.function}: {best.text}"

    def _score(self, shared: frozenset[str], words: frozenset[str]) -> float:
        return sum(self._rarity[word] for word in sorted(shared)) / math.sqrt(len(words) + 1)


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
