"""What the console has in common with the store: words, proofs, and the files of its source."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from inference_store.access.rights import ROLES, Action, Right
from inference_store.api.site import FILES
from inference_store.erasure import holds, log, progress
from inference_store.erasure.hash_chain import START, Link, canonical
from inference_store.export import jobs
from inference_store.export.columns import BlobChoice
from inference_store.export.part_formats import PART_FORMATS
from inference_store.index import unsettled
from inference_store.index.accounting import Outcome
from tests.unit.erasure.certify.test_matching import compute_root

NODE = Path(sys.prefix) / "bin" / "node"
SOURCE = Path(__file__).parents[2] / "console" / "src" / "lib"


@cache
def read_module(module: str) -> dict[str, object]:
    """Return what a module of the console exports, without its functions."""
    script = f"process.stdout.write(JSON.stringify(await import('{SOURCE / module}')))"
    command = [str(NODE), "--no-warnings", "--input-type=module", "--eval", script]
    return dict(json.loads(subprocess.check_output(command)))


def read_export(module: str, name: str) -> object:
    return read_module(module)[name]


def test_the_actions_of_the_audit() -> None:
    assert read_export("audit.ts", "ACTIONS") == [action.value for action in Action]


def test_rights_and_roles() -> None:
    rights, roles = read_export("rights.ts", "RIGHTS"), read_export("rights.ts", "ROLES")
    assert isinstance(rights, dict)
    assert isinstance(roles, dict)
    assert list(rights) == [right.value for right in Right]
    expected = {role: {right.value for right in rights} for role, rights in ROLES.items()}
    assert {role: set(names) for role, names in roles.items()} == expected


def test_states_and_outcomes() -> None:
    assert read_export("books.ts", "OUTCOMES") == [outcome.value for outcome in Outcome]
    assert list_names("erasures.ts", "STATES") == set(progress.STATES)
    assert list_names("states.ts", "LETTER_STATES") == set(unsettled.STATES)
    assert list_names("holds.ts", "STATES") == set(get_args(holds.State))
    assert list_names("exports.ts", "STATES") == set(jobs.STATES)
    assert list_names("exports.ts", "PART_STATES") == set(get_args(jobs.PartState))


def test_choices_of_exports() -> None:
    assert list_names("exports.ts", "FORMAT_WORDS") == set(PART_FORMATS)
    assert list_names("exports.ts", "BLOB_WORDS") == set(get_args(BlobChoice))


def list_names(module: str, name: str) -> set[str]:
    """Return the names in an object that a module of the console exports."""
    value = read_export(module, name)
    assert isinstance(value, dict)
    return set(value)


KEYS = [
    log.SigningKey(Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)) for seed in (1, 2, 3)
]
"""The first key, the one that it introduces, and a stranger's."""
TEXTS = [
    "{}",
    "[]",
    ' {"b": 1, "a": [true, false, null, -7]} ',
    '{"a":1,"a":2}',
    '{"__proto__":{"b":1},"10":1,"9":2}',
    '"\\u00e9 \\ud83d\\ude00 \\" \\\\ \\/ \\n\\r\\t\\b\\f \\u0000 \\u007f \\u2028"',
    '"é 😀"',
    '{"\\uffff":1,"\\ud83d\\ude00":2,"z":3}',
    '{"\\ud800":1}',
    "9223372036854775807",
    "123456789012345678901234567890",
    "-0",
    "01",
    "1 2",
    "{",
    "'a'",
]
TREES = [[f"{index:066x}" for index in range(size)] for size in (0, 1, 2, 3, 4, 5, 7, 8, 33)]
_NOW = "2026-11-26T00:00:00.000000Z"


def make_vectors() -> dict[str, Any]:
    """Return questions with their answers; null is a refusal."""
    documents = [document.text for document in _make_chain()]
    return {
        "canonical": [[t, _answer(lambda text: canonical(json.loads(text)), t)] for t in TEXTS],
        "documents": [
            [each, _answer(lambda text: log.read_document(text).hash.hex(), each)]
            for each in _list_envelopes(documents[2])
        ],
        "keys": [[text, _answer(_list_ids, text)] for text in _list_trusted()],
        "trees": [[tree, compute_root(map(bytes.fromhex, tree)).hex()] for tree in TREES],
        "chains": [
            [chain, trusted, _find_faulty(chain, trusted)]
            for chain, trusted in _list_chains(documents)
        ],
    }


def _answer(question: Callable[[str], Any], text: str) -> Any:
    try:
        return question(text)
    except (ValueError, log.NotSigned):
        return None


def _list_ids(text: str) -> list[str]:
    """Return the ids of the keys with this text. Raises ValueError if there is none."""
    ids = {form: key.id for key in KEYS for form in (key.public.pem, key.public.text, key.id)}
    if text not in ids:
        raise ValueError(text)
    return [ids[text]]


def _list_trusted() -> list[str]:
    public = KEYS[0].public
    broken = public.pem.replace("MCowBQYDK2Vw", "MCowBQYDK2Vu")  # of X25519
    return [public.pem, public.text, public.id, KEYS[0].pem, broken, public.text[:-4], "", "a key"]


def _list_envelopes(text: str) -> list[str]:
    """Return a document, and changed copies that are no longer valid."""
    return [
        text,
        text.replace('"inferences":1', '"inferences":2'),
        f"{text}\n",
        text.replace(",", ", ", 1),
        text.replace('"kind":', '"kinds":'),
        text.replace('"inferences":1', '"inferences":1e0'),
        text.replace("=", ""),
        text.replace("\\u00e9", "é"),
        '{"document":[],"kind":"certificate","signature":"","signed_by":""}',
        "[]",
        "",
    ]


def _make_chain() -> list[log.SignedDocument]:
    """Return a chain: two keys with a certificate each, then a foreign key that restarts it."""
    first, second, stranger = KEYS
    restart = {log.RESTART: {"by": "cli:x", "instead_of": second.id, "reason": "lost"}}
    steps: Sequence[tuple[log.SigningKey, str, dict[str, Any]]] = [
        (first, log.KIND, _introduce(first.public)),
        (first, log.CERTIFICATE, _erase(1)),
        (first, log.KIND, _introduce(second.public)),
        (second, log.CERTIFICATE, _erase(2)),
        (stranger, log.KIND, _introduce(stranger.public) | restart),
        (stranger, log.CERTIFICATE, _erase(3)),
    ]
    documents, end = list[log.SignedDocument](), START
    for key, kind, members in [steps[0], steps[1], steps[1], *steps[2:]]:
        documents.append(log.sign_document(key, kind, {**end.next_members, **members}))
        end = Link(end.number + 1, documents[-1].hash)
    return documents


def _introduce(key: log.PublicKey) -> dict[str, Any]:
    return {"issued_at": _NOW, "key": key.id, "public_key": key.text}


def _erase(inferences: int) -> dict[str, Any]:
    erased = {"inferences": inferences, "objects": 0, "bytes": 2**60}
    return {"issued_at": _NOW, "erasure": {"model_ids": ["caf\u00e9 \U0001f600"]}, "erased": erased}


def _list_chains(documents: list[str]) -> list[tuple[list[str], list[str]]]:
    first, second, stranger = (key.id for key in KEYS)
    changed = [documents[1].replace('"inferences":1', '"inferences":9')]
    return [
        (documents, [first]),
        (documents, [first, stranger]),
        (documents, [second]),
        (documents, []),
        ([documents[0], *changed, *documents[2:4]], [first]),
        ([documents[0], *documents[2:]], [first]),
        (documents[1:3], [first]),
        ([*documents[:3], documents[4]], [first]),
    ]


def _read(text: str) -> log.SignedDocument | None:
    try:
        return log.read_document(text)
    except log.NotSigned:
        return None


def _find_faulty(texts: Sequence[str], trusted: Collection[str]) -> list[bool]:
    """Return for each document whether it is faulty. After a fault the chain continues."""
    # with no trusted key, none is
    chain = log.SignedChain(trusted or ["none"])
    faulty: list[bool] = []
    for text in texts:
        document = _read(text)
        faulty.append(document is None or bool(chain.check(document)))
        if document is not None and not faulty[-1]:
            chain.advance(document)
        else:
            hash = b"" if document is None else document.hash
            chain.end = Link(chain.end.number + 1, hash)
    return faulty


def test_the_console_answers_as_the_store() -> None:
    vectors = make_vectors()
    node, script = Path(sys.prefix) / "bin" / "node", Path(__file__).with_name("run_vectors.mjs")
    answers = subprocess.check_output(
        [str(node), "--no-warnings", str(script)], input=json.dumps(vectors).encode()
    )
    assert json.loads(answers) == json.loads(json.dumps(vectors))


ROOT = Path(__file__).parents[2]


def test_committed_files_match_the_source(tmp_path: Path) -> None:
    environment = os.environ | {"PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"}
    command = ["npm", "--prefix", str(ROOT / "console"), "run", "--silent", "build", "--"]
    subprocess.run([*command, "--outDir", str(tmp_path)], check=True, env=environment)
    built, committed = read_files(tmp_path), read_files(FILES)
    assert sorted(built) == sorted(committed)
    different = [name for name, content in built.items() if committed[name] != content]
    assert not different, "`make console`, and commit what it writes"


def read_files(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
