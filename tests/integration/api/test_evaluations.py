"""Evaluations over HTTP: their figures beside sklearn's, filters, sources, hidden inferences."""

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from sklearn import metrics

from inference_store.api.queries import ShownEvaluation
from inference_store.index import registrations
from inference_store.index.registrations import Details
from inference_store.inference.task_types import Prediction
from inference_store.query.evaluation import boxes
from inference_store.truth.documents import TruthItem, TruthSet
from inference_store.truth.sets import TruthWriter
from tests.answer_models import check_answer
from tests.integration.stored_inferences import NewInference, at

from .conftest import Api

pytestmark = pytest.mark.real_minio
_PATH = "/v1/models/model/inferences/evaluate"
_DAY = 86_400
_NAMES = ("person", "car", "dog", "it's")
_SIDES = ("truth", "predicted")
_CAMERAS = ("hall", "door", "yard", None)


async def evaluate(api: Api, **body: Any) -> Any:
    answer = await api.post(_PATH, json=body)
    assert answer.status_code == 200, answer.text
    check_answer(ShownEvaluation, answer.content)
    return answer.json()


async def tell(api: Api, said: Sequence[tuple[NewInference, TruthSet]]) -> None:
    """Set what is true of inferences, as many requests would."""
    writer = TruthWriter(api.engine, api.blobs)
    wanted = {(one.uid, said.source): said for one, said in said}
    async with api.engine.begin() as connection:
        model = (await registrations.find_by_ids(connection, ["model"]))["model"]
        await writer.resolve(model.model, [*wanted.values()])
        await writer.write(connection, model, wanted, by="test")


async def count(api: Api, filter: str) -> Any:
    path = _PATH.replace("evaluate", "count")
    return (await api.ask(path, {"filter": filter}))["count"]


def say(*labels: str, **about: Any) -> TruthSet:
    return TruthSet([TruthItem(label) for label in labels], **about)


def make_labelled(random: Random, number: int) -> list[tuple[NewInference, str]]:
    """Make inferences of three days, with what is true of them; some without a prediction."""
    made = []
    for n in range(number):
        camera, truth = random.choice(_CAMERAS), random.choice(_NAMES)
        is_right = random.random() < (0.5 if camera == "yard" else 0.9)
        said = truth if is_right else random.choice(_NAMES)
        score = random.choice((0.05, 0.3, 0.7, 0.75, 1.0))
        one = NewInference(
            f"id-{n}",
            at(3 * _DAY * n / number),
            [("camera", "string", camera)] if camera else [],
            [(said, score)] if random.random() < 0.95 else [],
        )
        made.append((one, truth))
    return made


def find_camera(one: NewInference) -> Any:
    return next((value for _, _, value in one.metadata), None)


def predict(one: NewInference) -> str:
    """Return the predicted label; '' without a prediction, which is wrong."""
    return str(one.predicted[0].label) if one.predicted else ""


async def test_labels(api: Api) -> None:
    made = make_labelled(Random(1), 400)
    await api.store(*(one for one, _ in made), NewInference("unlabelled", at(1)))
    await tell(api, [(one, say(truth)) for one, truth in made])
    answer = await evaluate(api, group_by="camera", explain=True)
    assert (answer["task"], answer["inferences"], answer["labelled"]) == ("labels", 401, 400)
    assert answer["sources"] == [{"source": "human", "inferences": 400}]
    report = answer["labels"]
    true, said = [truth for _, truth in made], [predict(one) for one, _ in made]
    own: Any = {"labels": list(_NAMES), "zero_division": 0}
    precision, recall, f1, support = metrics.precision_recall_fscore_support(true, said, **own)
    shown = {one["label"]: one for one in report["labels"]}
    for n, name in enumerate(_NAMES):
        assert shown[name]["precision"]["value"] == pytest.approx(precision[n], abs=1e-12)
        assert shown[name]["recall"]["value"] == pytest.approx(recall[n], abs=1e-12)
        assert shown[name]["f1"] == pytest.approx(f1[n], abs=1e-12)
        assert (shown[name]["truth"], shown[name]["recall"]["n"]) == (support[n], support[n])
    assert report["accuracy"]["value"] == pytest.approx(metrics.accuracy_score(true, said))
    # each cell says how to find its inferences
    matrix, pairs = report["confusion"], Counter(zip(true, said, strict=True))
    rows, columns = matrix["truth"], matrix["predicted"]
    assert columns[-1]["kind"] == "none"
    for cell in matrix["cells"]:
        row, column = rows[cell["truth"]], columns[cell["predicted"]]
        assert cell["inferences"] == pairs[row["label"], column["label"] or ""]
        assert await count(api, cell["filter"]) == cell["inferences"]
    assert sum(cell["inferences"] for cell in matrix["cells"]) == 400
    # the worst slice first, as each would be if it were asked for alone
    slices = answer["slices"]
    assert (slices["by"], slices["figure"], slices["others"]) == ("camera", "accuracy", 0)
    assert slices["items"][0]["value"] == "yard"
    for one in slices["items"]:
        of = [pair for pair in made if find_camera(pair[0]) == one["value"]]
        right = sum(predict(inference) == truth for inference, truth in of)
        assert one["figure"]["value"] == pytest.approx(right / len(of), abs=1e-12)
        worse = report["accuracy"]["value"] - right / len(of)
        assert one["worse"] == pytest.approx(worse, abs=1e-12)
        assert await count(api, one["filter"]) == one["labelled"] == len(of)
        alone = await evaluate(api, filter=one["filter"])
        assert alone["labels"]["accuracy"] == one["figure"]
    # bins have their lower ends
    bins = report["calibration"]["bins"]
    scores = Counter(one.predicted[0].score for one, _ in made if one.predicted)
    assert [one["right"]["n"] for one in bins] == [
        *(scores[0.05], 0, 0, scores[0.3], 0),
        *(0, 0, scores[0.7] + scores[0.75], 0, scores[1.0]),
    ]


async def test_sources_and_what_is_hidden(api: Api) -> None:
    made = make_labelled(Random(2), 120)
    await api.store(*(one for one, _ in made))
    await tell(api, [(one, say(truth)) for one, truth in made])
    before = await evaluate(api)
    # of several sources the last word counts, or the one that is named
    some = made[:40]
    await tell(api, [(one, say("robot's", source="robot")) for one, _ in some])
    last = await evaluate(api, most_labels=1)
    assert {one["source"]: one["inferences"] for one in last["sources"]} == {
        "human": 120,
        "robot": 40,
    }
    human = await evaluate(api, source="human", most_labels=1, group_by={"time": "day"})
    assert human["labels"]["accuracy"] == before["labels"]["accuracy"]
    for report in (last["labels"], human["labels"]):
        kinds = [[one["kind"] for one in report["confusion"][side]] for side in _SIDES]
        assert kinds == [["label", "other"], ["label", "other", "none"]]
        for cell in report["confusion"]["cells"]:
            assert await count(api, cell["filter"]) == cell["inferences"]
    assert last["labels"]["other_labels"] == 4
    assert len(human["slices"]["items"]) == 3
    for one in human["slices"]["items"]:
        assert await count(api, one["filter"]) == one["labelled"]
    robot = await evaluate(api, source="robot", filter="camera = 'door'")
    assert robot["labelled"] == sum(find_camera(one) == "door" for one, _ in some)
    assert (robot["labels"]["accuracy"]["value"], robot["too_few"]) == (0.0, True)
    # what is being erased is not seen
    for one, _ in made[100:110]:
        await api.delete(f"/v1/models/model/inferences/uid:{one.uid}")
    seen = await evaluate(api, source="human")
    assert (seen["labelled"], seen["labels"]["accuracy"]["n"]) == (110, 110)


def box(n: int, label: str, score: float, corner: float, size: float = 10) -> Prediction:
    corners = {"xmin": corner, "ymin": corner, "xmax": corner + size, "ymax": corner + size}
    more: dict[str, Any] = {**corners, "area": size * size}
    return Prediction(ordinal=n, rank=n + 1, output=0, label=label, score=score, **more)


def lie(label: str, corner: float, size: float = 10) -> TruthItem:
    return TruthItem(label, (corner, corner, corner + size, corner + size))


async def test_boxes(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.transact(registrations.put, "model", Details(task_type="object_detection"))
    no_area = Prediction(ordinal=3, rank=4, output=0, label="dog", score=0.9)
    day = [("light", "string", "day")]
    inferences = [
        # one found, one wrong label, one without a place
        NewInference("a", at(0), day, [box(0, "dog", 0.9, 0), box(1, "cat", 0.8, 50), no_area]),
        # nothing is there, and something is said
        NewInference("b", at(1), day, [box(0, "dog", 0.4, 0)]),
        # two are there of which one is known
        NewInference("c", at(_DAY), (), [box(0, "dog", 0.7, 1), box(1, "dog", 0.6, 70)]),
        NewInference("d", at(_DAY + 1), (), [box(0, "dog", 0.9, 0)]),
    ]
    await api.store(*inferences)
    a, b, c, _ = inferences
    await tell(
        api,
        [
            (a, TruthSet([lie("dog", 0), lie("dog", 50)])),
            (b, TruthSet([])),
            (c, TruthSet([lie("dog", 0)], complete=False)),
        ],
    )
    answer = await evaluate(api, group_by="light")
    report = answer["boxes"]
    assert (answer["task"], answer["labelled"], report["images"]) == ("boxes", 3, 3)
    counts = ("true_positives", "false_positives", "false_negatives", "incomplete", "left_out")
    assert [report[name] for name in counts] == [2, 2, 1, 1, 1]
    dog, cat = report["labels"]
    assert (dog["label"], dog["truth"], dog["predicted"]) == ("dog", 3, 3)
    assert (cat["truth"], cat["average_precision"]["ap"]) == (0, None)
    # found at 0.9 and at 0.7: a precision of 1 up to a recall of 2 / 3, at .50 of 101
    assert report["average_precision"]["ap_50"] == pytest.approx(67 / 101, abs=1e-12)
    assert [(one["value"], one["figure"]["value"]) for one in answer["slices"]["items"]] == [
        ("day", 0.4),
        (None, 1.0),
    ]
    certain = (await evaluate(api, score=0.5, label="dog", iou=0.9))["boxes"]
    assert [certain[name] for name in counts[:3]] == [1, 0, 2]
    assert certain["average_precision"] == report["labels"][0]["average_precision"]
    refused = await api.ask(_PATH, {"label": "dgo"}, status=422)
    assert refused["errors"][0]["path"] == "label"
    # more boxes than are matched: a sample of the images, and it says so
    monkeypatch.setattr(boxes, "MOST_BOXES", 4)
    sampled = (await evaluate(api))["boxes"]
    assert (sampled["sampled"], sampled["images"] < 3) == (True, True)


async def test_numbers(api: Api) -> None:
    random, made = Random(3), []
    for n in range(200):
        truth = Decimal(random.randint(-(10**6), 10**6)).scaleb(-3) + 10**9
        camera = random.choice(_CAMERAS)
        guess = truth + random.randint(-5, 5) * (10 if camera == "yard" else 1)
        value = Prediction(ordinal=0, rank=1, output=0, value=guess)
        metadata = [("camera", "string", camera)] if camera else []
        made.append((NewInference(f"n-{n}", at(600 * n), metadata, [value]), truth, guess))
    await api.store(*(one for one, *_ in made))
    answer = await evaluate(api)
    assert (answer["labelled"], answer["labels"]["accuracy"]["value"]) == (0, None)
    await tell(api, [(one, TruthSet([TruthItem(value=truth)])) for one, truth, _ in made])
    answer = await evaluate(api, group_by="camera")
    report = answer["numbers"]
    true, said = [float(row[1]) for row in made], [float(row[2]) for row in made]
    assert report["mae"]["value"] == pytest.approx(metrics.mean_absolute_error(true, said))
    assert report["rmse"] == pytest.approx(metrics.root_mean_squared_error(true, said))
    assert report["r2"] == pytest.approx(metrics.r2_score(true, said), abs=1e-9)
    assert report["mae"]["n"] == answer["labelled"] == 200
    assert answer["slices"]["items"][0]["value"] == "yard"
    yard = [(float(t), float(s)) for one, t, s in made if find_camera(one) == "yard"]
    worst = metrics.mean_absolute_error(*zip(*yard, strict=True))
    assert answer["slices"]["items"][0]["figure"]["value"] == pytest.approx(worst)
