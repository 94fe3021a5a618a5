"""Runs the demo from its first line to its last: start, feed, query, describe, serve."""

import shlex
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from inference_store.local.folder import LocalFolder
from inference_store.local.part import find_problem
from inference_store.local.postgres import OPEN_FOLDER
from inference_store.local.screen import Screen
from inference_store.local.servers import BUCKET, TOPIC, TRUTH_TOPIC
from inference_store.local.stack import MODEL_SERVER, SERVICES, Stack, running_stack

from .models import DEMO_MODELS, DIGITS, FACES, FRAMES, PEOPLE, Rest

_WATCH_SECONDS = 0.5


def tell(
    folder: LocalFolder, screen: Screen, *, asked_ports: Mapping[str, int], once: bool
) -> None:
    """Run the demo until it is interrupted, or with `once` until the answers are printed.

    `asked_ports`: by part, those that must be taken. Must be called by the main thread. Raises
    LocalStackError.
    """
    screen.say(f"Inference Store, all of it on this machine. Everything lies in {folder.path}.")
    folder.make()
    with folder.taken(), screen.alive():
        screen.step("starting a model server, Postgres, S3, Kafka, then migrate and the services")
        with running_stack(folder, asked_ports, screen.say) as stack:
            rest = Rest(stack.url("api"))
            screen.step(f"everything is ready: look at {rest.address}/console/ in a browser")
            _feed(stack, rest, screen)
            answers = [rest.ask("POST", query.path, query.body) for query in QUERIES]
            for query, answer in zip(QUERIES, answers, strict=True):
                curl = rest.curl(query.path, query.body)
                screen.step(f"# {query.words}\n{curl}\n{query.show(answer)}\n")
            for item in answers[0]["items"][:1]:
                path = f"/v1/models/{FACES.model_id}/inferences/uid:{item['uid']}/data"
                curl = f"curl -s {rest.address}{path} -o frame.jpg"
                screen.say(f"# The picture behind the first answer:\n{curl}\n")
            for text in (
                own_picture(stack.url("proxy"), rest),
                certificate(rest),
                examination(folder),
            ):
                screen.say(text)
            screen.say(_describe_stack(stack, folder))
            screen.rest()
            if not once:
                screen.say("Serving until Ctrl-C.")
            while not once:
                stack.check()
                time.sleep(_WATCH_SECONDS)
            screen.step("stopping")
    screen.step("stopped; nothing is left running, the data stays")


def _feed(stack: Stack, rest: Rest, screen: Screen) -> None:
    for model in DEMO_MODELS:
        model.register(rest)
    if all(m.count(rest) >= m.inferences and m.has_truth(rest) for m in DEMO_MODELS):
        screen.step("the inferences of an earlier start are all there")
        return
    screen.step("asking the models through the proxy, over REST and gRPC in turn")
    from .feed import feed_missing  # noqa: PLC0415 - OpenCV takes a second to load

    fed = feed_missing(stack, rest, screen.progress)
    screen.step(f"{fed} calls were answered; each was captured, published and indexed\n")


def own_picture(proxy: str, rest: Rest) -> str:
    """Return the commands that call the model as any client would, and find the capture."""
    model = FACES.model_id
    image = '"name": "image", "shape": [1], "datatype": "BYTES"'
    body = f'{{"id": "mine", "inputs": [{{{image}, "data": ["%s"]}}]}}'
    return f"""\
# The same picture, or one of yours, sent to the model through the proxy:
printf '{body}' "$(base64 < frame.jpg | tr -d '\\n')" \\
  | curl -s {proxy}/v2/models/{model}/infer -d @-

# What was captured of that call, a moment later:
curl -s {rest.address}/v1/models/{model}/inferences/mine
"""


def certificate(rest: Rest) -> str:
    """Return the commands that erase the capture of that call, and show the certificate."""
    at = rest.address
    return f"""\
# Erase it for good; a moment later a signed certificate says what went:
curl -s -X DELETE {at}/v1/models/{FACES.model_id}/inferences/mine
curl -s "{at}/v1/certificates?limit=1"
"""


def examination(folder: LocalFolder) -> str:
    """Return the command that runs the doctor; other commands are run in the same way."""
    program = shlex.quote(str(Path(sys.executable).with_name("inference-store")))
    return f"""\
# Look at everything that the services need, and what is wrong with it:
(set -a; . {shlex.quote(str(folder.settings))}; {program} doctor)
"""


def _describe_stack(stack: Stack, folder: LocalFolder) -> str:
    servers = stack.servers
    api, models = stack.url("api"), MODEL_SERVER
    admin = "\n".join(
        f"    {name:<10} {stack.url(f'{name}-admin')}/health/ready" for name in SERVICES
    )
    docs = f"{api}/docs/"
    docs += " (once `make demo` or `make docs` has built them)" if find_problem(docs) else ""
    copied, binaries = "", servers.postgres.binaries
    if binaries.is_relative_to(OPEN_FOLDER):  # root's could not be run from their installation
        copied = f"            {binaries.parents[2]}: Postgres' programs, for user nobody\n"
    return f"""\
Console     {api}/console/ (open it in a browser: the pictures with what was detected)
REST API    {api} (no key needed: access control is off here)
    reference  {api}/reference (every route with examples)
    docs       {docs}
Running     on 127.0.0.1 only:
    Postgres   {servers.postgres.dsn}
    S3         {servers.s3.endpoint} (bucket {BUCKET})
    Kafka      {servers.kafka.bootstrap_servers} (topics {TOPIC} and {TRUTH_TOPIC})
    models     {stack.url(models)}, gRPC {stack.grpc(models)} (Open Inference Protocol)
    proxy      {stack.url("proxy")}, gRPC {stack.grpc("proxy")} (in front of the models)
{admin}
Written     {folder.path}: logs/, s3/, run/ (settings.env), passwords.json,
            certificate-key.pem
            {servers.postgres.data}: the database
{copied}\
            Delete these folders and nothing is left.
Mind        For trying out, not for production: this Kafka keeps everything in memory. So Ctrl-C
            waits until everything is indexed, and after a kill the next start does what is left.
"""


_LIMIT = 3


def short(answer: Mapping[str, Any]) -> str:
    """Return an answer in a few lines: the id, the picture and the first findings of each
    inference."""
    return "\n".join(f"→ {_format_item(item)}" for item in answer["items"]) or "→ none"


def _format_item(item: Mapping[str, Any]) -> str:
    metadata = {entry["key"]: entry["value"] for entry in item.get("metadata") or ()}
    facts = [metadata[key] for key in ("photograph", "data_source") if key in metadata]
    if "true_label" in metadata:
        facts.append(f"it is {metadata['true_label']}")
    predictions = list(item.get("predictions") or ())[:_LIMIT]
    findings = [f"{prediction['label']} {prediction['score']:.2f}" for prediction in predictions]
    return f"{item['inference_id']} ({', '.join(facts)}): {', '.join(findings) or 'nothing found'}"


def _show_slices(answer: Mapping[str, Any]) -> str:
    lines = []
    for part in answer["slices"]["items"]:
        f1 = part["figure"]["value"]
        shown = "no box, and none predicted" if f1 is None else f"F1 {f1:.2f}"
        lines.append(f"→ {part['value']}: {shown} ({part['labelled']} labelled)")
    return "\n".join(lines)


def _show_changes(answer: Mapping[str, Any]) -> str:
    lines = []
    for row in answer["rows"]:
        said = "changed" if row["drifted"] else "no more than by chance"
        numbers = f"{row['reference']['n']} and {row['current']['n']} values"
        lines.append(f"→ {row['name']}: {said} (effect {row['effect']:.2f} of 1, {numbers})")
    return "\n".join(lines)


class DemoQuery(NamedTuple):
    """A question in words and as a request."""

    words: str
    path: str
    body: Mapping[str, Any]
    show: Callable[[Mapping[str, Any]], str] = short


QUERIES = (
    DemoQuery(
        "What did the face detector take for a face, and was not sure of?",
        f"/v1/models/{FACES.model_id}/inferences/query",
        {
            "filter": "prediction(label = 'face') AND top_score < 0.4",
            "include": ["metadata", "predictions"],
            "limit": _LIMIT,
        },
    ),
    DemoQuery(
        "What did the people detector take for a person in the yard at night, and was sure of it?",
        f"/v1/models/{PEOPLE.model_id}/inferences/query",
        {
            "metadata_filter": [
                {"key": "frame_number", "type": "int", "operator": "gt", "value": FRAMES // 2},
                {"key": "data_source", "operator": "eq", "value": "yard-camera-feed"},
                {"key": "night", "type": "bool", "operator": "eq", "value": True},
            ],
            "prediction": {"label": "person", "score": {"gte": 0.7}},
            "include": ["metadata", "predictions"],
            "limit": _LIMIT,
        },
    ),
    DemoQuery(
        "Which handwritten 8 did the digit classifier take for a 1?",
        f"/v1/models/{DIGITS.model_id}/inferences/query",
        {
            "filter": "true_label = '8'",
            "prediction": {"label": "1", "score": {"gte": 0.5}},
            "include": ["metadata", "predictions"],
            "limit": _LIMIT,
        },
    ),
    DemoQuery(
        "On which camera is the face detector worst? Its ground truth is loaded.",
        f"/v1/models/{FACES.model_id}/inferences/evaluate",
        {"group_by": "data_source"},
        _show_slices,
    ),
    DemoQuery(
        "The entrance camera fades: does the second half of the frames differ from the first?",
        f"/v1/models/{FACES.model_id}/inferences/drift",
        {
            "reference": {"filter": f"frame_number < {FRAMES // 2}"},
            "current": {"filter": f"frame_number >= {FRAMES // 2}"},
            "of": ["brightness", "night", "data_source", "prediction_count", "top_score"],
        },
        _show_changes,
    ),
)
