"""Make two models of a few words for mlserver-huggingface: prepare_huggingface.py FOLDER.

`sentiment` (DistilBERT) is trained here to tell good from bad; `story` (GPT-2) has random weights.
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

_SPECIAL = ["[PAD]", "[UNK]"]
_GOOD = ["good", "a good day", "the night was great"]
_BAD = ["bad", "a bad day", "the night was awful"]
_UPON = ["once upon a time"]
_WORDS = sorted({word for sentence in (*_GOOD, *_BAD, *_UPON) for word in sentence.split()})
_KNOWN = [*_SPECIAL, *_WORDS]
_LABELS = {0: "NEGATIVE", 1: "POSITIVE"}
_STEPS = 40


def main(folder: Path) -> None:
    torch.manual_seed(0)
    _save(_sentiment(), folder / "sentiment")
    _save(_story(), folder / "story")


def _tokenizer() -> PreTrainedTokenizerFast:
    numbers = {word: number for number, word in enumerate(_KNOWN)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    said = {"unk_token": "[UNK]", "pad_token": "[PAD]", "eos_token": "[PAD]"}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_input_names=["input_ids", "attention_mask"], **said
    )


def _sentiment() -> PreTrainedModel:
    size = {"dim": 16, "hidden_dim": 32, "n_layers": 1, "n_heads": 2}
    labels = {"id2label": _LABELS, "label2id": {label: at for at, label in _LABELS.items()}}
    config = DistilBertConfig(vocab_size=len(_KNOWN), max_position_embeddings=32, **size, **labels)
    model = DistilBertForSequenceClassification(config)
    asked = _tokenizer()([*_GOOD, *_BAD], padding=True, return_tensors="pt")
    asked["labels"] = torch.tensor([1] * len(_GOOD) + [0] * len(_BAD))
    steps = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(_STEPS):
        steps.zero_grad()
        model(**asked).loss.backward()
        steps.step()
    return model


def _story() -> PreTrainedModel:
    size = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=len(_KNOWN), **size, **ends))


def _save(model: PreTrainedModel, folder: Path) -> None:
    model.eval().save_pretrained(folder)
    _tokenizer().save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
