"""Erasures, legal holds and policies: counted, confirmed, changed; what is stale is refused."""

import json
import re
from base64 import b64decode
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from playwright.sync_api import Page, Route, expect

from inference_store.erasure.log import new_key
from tests.policy_owners import name_owner
from tests.producer import Capture, capture
from tests.servers.waiting import wait_until

from .conftest import SIGNING, Console, OpenPage
from .pictures import make_png
from .watched_page import LOOKS, check_page, open_acts


def make_captures(model: str, first: int, count: int) -> list[Capture]:
    """Return captures of pictures of a model, each with a `frame_number`."""
    return [
        capture(
            number,
            model_id=model,
            data=make_png(number),
            inference_id=f"{model}-{number}",
            extras={"task_type": "Object Detection", "data_content_type": "image/png", "ok": True},
        )
        for number in range(first, first + count)
    ]


def confirm(page: Page, count: int) -> None:
    page.get_by_label("to confirm").fill(str(count))
    page.get_by_role("button", name=f"Erase {count}").click()


def place_hold(console: Console, model: str) -> Any:
    """Place a hold on all inferences of a model, and return it."""
    body = {"name": model, "reason": "a test", "model_id": model, "filter": "frame_number >= 0"}
    return console.ask("POST", "/v1/holds", body)


def test_changed_count_erases_nothing(open_page: OpenPage, console: Console) -> None:
    console.produce(*make_captures("growing", 0, 2))
    page = open_page("#/list/erasures/new?of=model%3Agrowing&f=TRUE")
    expect(page.get_by_role("button", name="Erase 2")).to_be_visible()
    console.produce(*make_captures("growing", 2, 1))
    confirm(page, 2)
    expect(page.get_by_role("alert")).to_contain_text("The count is now 3, not 2")
    page.get_by_role("alert").get_by_role("button", name="Count again").click()
    expect(page.get_by_role("button", name="Erase 3")).to_be_visible()
    assert console.count("growing") == 3


def test_what_is_erased_is_selected_no_longer(open_page: OpenPage, console: Console) -> None:
    console.produce(*make_captures("picked-cameras", 0, 3))
    page = open_page("#/m/picked-cameras")
    for number in (0, 1):
        page.locator(".tile").nth(number).hover()
        page.keyboard.press("x")
    open_acts(page, "these")
    page.get_by_role("link", name="Erase these …").click()
    confirm(page, 2)
    expect(page.get_by_role("region", name="Progress")).to_be_visible()
    page.goto(f"{console.address}/console/#/m/picked-cameras")
    expect(page.get_by_text("Erasure of 2 inferences: ")).to_be_visible()
    expect(page.get_by_role("region", name="Selection")).to_have_count(0)
    expect(page.locator(".tile")).to_have_count(1)
    page.get_by_role("link", name="See the erasure").click()
    expect(page.get_by_role("region", name="Progress")).to_be_visible()


def test_shows_what_is_held_and_cancels_the_erasure(open_page: OpenPage, console: Console) -> None:
    console.produce(*make_captures("held-cameras", 0, 2))
    page = open_page("#/list/erasures/new?of=model%3Aheld-cameras&f=TRUE")
    expect(page.get_by_role("button", name="Erase 2")).to_be_visible()
    hold = place_hold(console, "held-cameras")
    confirm(page, 2)  # the hold comes before the confirmation
    expect(page.get_by_role("alert")).to_contain_text("The count is now 0, not 2")
    expect(page.get_by_role("alert")).to_contain_text("placed meanwhile, and keep 2 more")
    request = {"model_ids": ["held-cameras"], "filter": "TRUE"}
    erasure = console.ask("POST", "/v1/erasures", request)
    page = open_page(f"#/list/erasures/{erasure['id']}")
    expect(page.get_by_role("region", name="Progress")).to_contain_text(
        "partly held", timeout=180_000
    )
    expect(page.get_by_text("Legal holds keep 2 of them")).to_be_visible()
    page.get_by_role("button", name="Cancel the erasure …").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the erasure").click()
    expect(page.get_by_role("region", name="Progress")).to_contain_text(
        "It was cancelled", timeout=180_000
    )
    assert console.count("held-cameras") == 2
    console.ask("DELETE", f"/v1/holds/{hold['id']}?reason=over")


def test_explains_that_nothing_matches(open_page: OpenPage, console: Console) -> None:
    console.produce(*make_captures("sentences", 0, 1))
    page = open_page("#/list/erasures/new?of=model%3Asentences")
    page.get_by_role("button", name="By ID").click()
    page.get_by_label("one per line").fill("nobody-has-this\n")
    page.get_by_role("button", name="Count", exact=True).click()
    expect(page.get_by_role("main")).to_contain_text("There is no inference")
    page.get_by_role("button", name="By a subject").click()
    page.get_by_label("Metadata key").fill("data_source")
    page.get_by_label("Value", exact=True).fill("nobody")
    page.get_by_role("button", name="Count", exact=True).click()
    expect(page.get_by_role("main")).to_contain_text("there is nothing to erase")


NEW = "#/list/holds/new"
_LATER = "2099-12-31T12:00"


def test_places_inspects_and_releases_a_hold(open_page: OpenPage, console: Console) -> None:
    console.produce(*make_captures("hallway", 0, 5))
    page = open_page("#/list/holds")
    page.get_by_role("link", name="Place a hold …").click()
    page.get_by_label("Model").select_option("model:hallway")
    page.get_by_role("combobox", name="Filter").fill("frame_number < 3")
    page.get_by_role("button", name="Count").click()
    expect(page.get_by_text("The filter matches 3 inferences now.")).to_be_visible()
    page.get_by_label("Name").fill("hallway incident")
    page.get_by_label("Reason").fill("file <i>4711</i>")
    page.get_by_label("Until").fill(_LATER)
    page.get_by_role("button", name="Place the hold").click()
    expect(page.get_by_role("heading", name="“hallway incident” is in force")).to_be_visible()
    page.get_by_role("link", name="See what it keeps").click()
    held = page.get_by_role("region", name="What it keeps")
    expect(held.locator("dd").first).to_have_text("3")
    expect(page.get_by_text("file <i>4711</i>", exact=True).first).to_be_visible()
    page.get_by_role("button", name="Release …").click()
    page.get_by_label("Reason").fill("the case is closed")
    page.get_by_role("button", name="Release", exact=True).click()
    expect(page.get_by_text("It was released")).to_be_visible()
    expect(page.get_by_role("region", name="History")).to_contain_text("the case is closed")
    expect(page.get_by_role("button", name="Release …")).to_have_count(0)
    page.get_by_role("link", name="← Legal holds").click()
    page.get_by_label("State").select_option("released")
    expect(page).to_have_url(re.compile("state=released"))
    expect(page.locator("tbody tr").first).to_contain_text("hallway incident")


def test_warns_about_unknown_key_of_a_hold(open_page: OpenPage, console: Console) -> None:
    console.produce(*make_captures("warned", 0, 1))
    page = open_page(f"{NEW}?of=model%3Awarned")
    page.get_by_role("combobox", name="Filter").fill("camera_x = 'hall'")
    page.get_by_role("button", name="Count").click()
    expect(page.locator("mark")).to_have_text("camera_x")
    page.get_by_label("Name").fill("a mistake")
    page.get_by_label("Reason").fill("a test")
    page.get_by_role("button", name="Place the hold").click()
    expect(page.get_by_role("main")).to_contain_text("a mistake holds the wrong data")
    [hold] = [
        item for item in console.ask("GET", "/v1/holds")["items"] if item["name"] == "a mistake"
    ]
    console.ask("DELETE", f"/v1/holds/{hold['id']}?reason=over")


def test_change_a_hold(open_page: OpenPage, console: Console) -> None:
    console.produce(*make_captures("corridor", 0, 4))
    body = {"name": "corridor", "reason": "a test", "model_id": "corridor"}
    until = f"{_LATER}:30Z"
    hold = console.ask("POST", "/v1/holds", body | {"filter": "frame_number < 1", "until": until})
    page = open_page(f"#/list/holds/{hold['id']}")
    page.get_by_role("button", name="Change …").click()
    page.get_by_role("combobox", name="Filter").fill("frame_number < 3")
    page.get_by_role("button", name="Count").click()
    expect(page.get_by_text("The filter matches 3 inferences now.")).to_be_visible()
    page.get_by_label("Name").fill("the <b>corridor</b>")
    page.get_by_role("button", name="Save the change").click()
    expect(page.get_by_role("heading", name="“the <b>corridor</b>” is in force")).to_be_visible()
    changed = console.ask("GET", f"/v1/holds/{hold['id']}")
    assert (changed["name"], changed["reason"]) == ("the <b>corridor</b>", "a test")
    assert changed["filter"] == "metadata.frame_number < 3"
    assert (changed["until"], changed["revision"]) == (hold["until"], 2)  # also its seconds
    page.get_by_role("button", name="See what it keeps").click()
    held = page.get_by_role("region", name="What it keeps")
    expect(held.locator("dd").first).to_have_text("3")
    expect(page.get_by_role("region", name="History")).to_contain_text("changed")
    console.ask("DELETE", f"/v1/holds/{hold['id']}?reason=over")


def test_a_stale_change_is_refused_and_stays_typed(open_page: OpenPage, console: Console) -> None:
    console.produce(*make_captures("stale-changes", 0, 1))
    what: Any = {"model_id": "stale-changes", "inference_ids": ["stale-changes-0"]}
    hold = console.ask("POST", "/v1/holds", {"name": "first", "reason": "a test", **what})
    page = open_page(f"#/list/holds/{hold['id']}")
    page.get_by_role("button", name="Change …").click()
    page.get_by_label("Name").fill("of somebody slower")
    faster = {"name": "of somebody faster", "reason": "a better one", "model_id": "stale-changes"}
    what = {"filter": "lens = 'wide'", "types": {"lens": "string"}}
    console.ask("PUT", f"/v1/holds/{hold['id']}", faster | what)
    page.get_by_role("button", name="Save the change").click()
    expect(page.get_by_role("alert")).to_contain_text("Someone else changed it after you opened it")
    page.get_by_role("button", name="Load again").click()
    expect(page.get_by_text("What you typed stays")).to_be_visible()
    expect(page.get_by_label("Name")).to_have_value("of somebody slower")
    expect(page.get_by_label("Reason")).to_have_value("a better one")
    expect(page.get_by_role("combobox", name="Filter")).to_have_value("metadata.lens = 'wide'")
    page.get_by_role("button", name="Save the change").click()
    expect(page.get_by_role("heading", name="“of somebody slower” is in force")).to_be_visible()
    changed = console.ask("GET", f"/v1/holds/{hold['id']}")
    assert (changed["revision"], changed["types"]) == (3, what["types"])
    console.ask("DELETE", f"/v1/holds/{hold['id']}?reason=over")


SHORT = {"rules": [{"name": "short", "keep_inference": "PT30M"}]}
LONG = {"rules": [{"name": "long", "keep_inference": "P9Y"}]}


def open_editor(open_page: OpenPage, model: str) -> Page:
    page = open_page(f"#/list/retention/model%3A{model}")
    page.get_by_role("link", name="…").click()
    expect(page.get_by_role("region", name="Change the policy")).to_be_visible()
    return page


def preview(page: Page) -> None:
    page.get_by_role("button", name="See what it would delete").click()
    expect(page.get_by_role("region", name="Preview")).to_be_visible()


def test_a_policy_is_previewed_saved_and_run(open_page: OpenPage, console: Console) -> None:
    console.produce(*make_captures("aged-cameras", 0, 3))
    page = open_editor(open_page, "aged-cameras")
    page.get_by_label("Name").fill("short")
    page.get_by_label("Keep everything").fill("PT30M")
    expect(page.get_by_text("30 minutes")).to_be_visible()
    expect(page.get_by_role("button", name="Save this policy")).to_have_count(0)
    preview(page)
    region = page.get_by_role("region", name="Preview")
    expect(region.locator("dd").first).to_have_text("3")
    expect(region.locator("tbody tr").first).to_contain_text("aged-cameras")
    page.get_by_label("Immediately").check()
    page.get_by_role("button", name="Save this policy").click()
    expect(page.get_by_role("region", name="What applies")).to_contain_text(
        "Everything is kept for 30 minutes."
    )
    page.get_by_role("button", name="Run now for aged-cameras").click()
    runs = page.get_by_role("region", name="Recent runs").locator("tbody tr")
    run = runs.filter(has_text="aged-cameras").first  # one of the whole store may begin too
    expect(run).to_contain_text("done", timeout=180_000)
    assert console.count("aged-cameras") == 0


def test_requires_a_new_preview_after_a_change(open_page: OpenPage, console: Console) -> None:
    console.produce(*make_captures("edited-cameras", 0, 1))
    page = open_editor(open_page, "edited-cameras")
    page.get_by_label("Keep everything").fill("P8Y")
    preview(page)
    page.get_by_label("Name").fill("another")
    expect(page.get_by_role("button", name="Save this policy")).to_have_count(0)
    expect(page.get_by_text("Changed since the preview")).to_be_visible()
    page.get_by_role("button", name="JSON").click()
    text = page.get_by_label("Policy as JSON")
    expected = {"rules": [{"name": "another", "keep_inference": "P8Y"}]}
    assert json.loads(text.input_value()) == expected
    text.fill("{")
    page.get_by_role("button", name="See what it would delete").click()
    expect(page.get_by_role("alert")).to_contain_text("Invalid JSON")
    text.fill(json.dumps({"rules": [{"keep_inference": "30 days"}]}))
    page.get_by_role("button", name="See what it would delete").click()
    expect(page.get_by_role("alert")).to_contain_text("rules")
    text.fill(json.dumps(LONG))
    preview(page)
    page.get_by_role("button", name="Save this policy").click()
    expect(page.get_by_role("region", name="Its own policy")).to_contain_text("for 9 years")


def test_stale_revision_keeps_the_draft(open_page: OpenPage, console: Console) -> None:
    console.produce(*make_captures("stale-cameras", 0, 1))
    page = open_editor(open_page, "stale-cameras")
    page.get_by_label("Keep everything").fill("P8Y")
    preview(page)
    path = "/v1/models/stale-cameras/retention-policy"
    console.ask("PUT", path, name_owner(path, LONG))
    page.get_by_role("button", name="Save this policy").click()
    expect(page.get_by_role("alert")).to_contain_text("Someone else changed it after you opened it")
    page.get_by_role("button", name="Load again").click()
    expect(page.get_by_role("region", name="What applies")).to_contain_text("for 9 years")
    expect(page.get_by_label("Keep everything")).to_have_value("P8Y")
    preview(page)
    page.get_by_role("button", name="Save this policy").click()
    expect(page.get_by_role("region", name="What applies")).to_contain_text("for 8 years")


def test_revokes_a_version_and_removes_a_policy(open_page: OpenPage, console: Console) -> None:
    model = "waiting-cameras"
    console.produce(*make_captures(model, 0, 1))
    path = f"/v1/models/{model}/retention-policy"
    for policy in (LONG, SHORT):
        console.ask("PUT", path, name_owner(path, policy))
    page = open_page(f"#/list/retention/model%3A{model}")
    own = page.get_by_role("region", name="Its own policy")
    expect(own).to_contain_text("A new version takes effect at")
    own.get_by_role("button", name="Revoke …").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(own).not_to_contain_text("takes effect at")
    own.get_by_role("button", name="Remove …").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(own).to_contain_text("No policy of its own is in force")
    expect(page.get_by_role("region", name="Versions").locator("summary")).to_have_count(3)
    page.get_by_role("link", name="Set a policy …").click()  # of a revision that was removed
    preview(page)


def test_policies_of_a_project_apply_to_its_models(open_page: OpenPage, console: Console) -> None:
    console.produce(*make_captures("yard-cameras", 0, 1))
    registration = {"task_type": "object_detection", "project_id": "yard"}
    console.ask("PUT", "/v1/models/yard-cameras", registration)
    policy = {"rules": [{"filter": "ok", "keep_inference": "P7Y"}], "max_inferences": 5000}
    path = "/v1/projects/yard/retention-policy"
    console.ask("PUT", path, name_owner(path, policy))
    page = open_page("#/list/retention")
    page.get_by_label("Policy of").select_option("model:yard-cameras")
    applies = page.get_by_role("region", name="What applies")
    expect(applies).to_contain_text("of the project yard")
    expect(applies).to_contain_text("Everything is kept for 7 years.")
    expect(applies).to_contain_text("at most 5,000 inferences")
    own = page.get_by_role("region", name="Its own policy")
    expect(own).to_contain_text("No policy of its own is in force")


def test_a_move_warns_which_policies_will_apply(open_page: OpenPage, console: Console) -> None:
    path = "/v1/projects/archive/retention-policy"
    console.ask("PUT", path, name_owner(path, SHORT))
    for project in ("street", "archive"):
        console.ask("PUT", "/v1/models/moved-cameras", {"project_id": project})
    page = open_page("#/list/retention/model%3Amoved-cameras")
    expect(page.get_by_role("status")).to_contain_text("was moved here from the project street.")
    applies = page.get_by_role("region", name="What applies")
    expect(applies).to_contain_text("of the project archive")
    expect(applies).to_contain_text("Everything is kept for 30 minutes.")


def test_asks_nothing_about_a_model_called_dots(open_page: OpenPage) -> None:
    """The browser would resolve its path to that of the default policy."""
    for extent in ("model:..", "project:..", "model:."):
        page = open_page(f"#/list/retention/{quote(extent, safe='')}?edit=1")
        expect(page.get_by_text("Invalid ID")).to_be_visible()
        expect(page.get_by_role("region", name="Change the policy")).to_have_count(0)


def test_ids_are_shown_without_hidden_characters(open_page: OpenPage, console: Console) -> None:
    model = "turned\u202ecameras\u200b"
    console.ask("PUT", f"/v1/models/{quote(model)}", {"project_id": "yard\ufeff"})
    page = open_page("#/")
    cards = page.locator("article")
    expect(cards.get_by_role("link", name=r"turned\u202ecameras\u200b")).to_be_visible()
    expect(page.get_by_role("heading", name=r"yard\ufeff")).to_be_visible()
    cards.get_by_role("link", name="turned").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(r"turned\u202ecameras\u200b")


# Certificates are verified in the browser with the reader's key; one byte makes them invalid.

LIST = "#/list/certificates"
MODEL = "certified-cameras"
STEPS = ["Form", "Number", "Signature", "Predecessor", "Hash", "List"]


def is_certified(console: Console, erasure: str) -> bool:
    return console.ask("GET", erasure)["certificate"] is not None


@pytest.fixture(scope="module")
def certificate(console: Console) -> int:
    """The number of the certificate of an erasure, after two other erasures."""
    console.produce(*make_captures(MODEL, 0, 3))
    for number in range(3):
        path = f"/v1/models/{MODEL}/inferences/{MODEL}-{number}"
        erasure = f"/v1/erasures/{console.ask('DELETE', path)['id']}"
        certified = partial(is_certified, console, erasure)
        wait_until(certified, seconds=180, what="the certificate")
    return int(console.ask("GET", "/v1/certificates")["items"][0]["number"])


def trust(page: Page, text: str = SIGNING.public.pem) -> None:
    page.get_by_label("Trusted key").fill(text)


def expect_steps(page: Page, **outcomes: str) -> None:
    """Expect that each step passed, except those with another outcome."""
    for title in STEPS:
        outcome = outcomes.get(title, "passed")
        step = page.locator(f"[data-step={title}]")
        expect(step).to_contain_text(f"{title}: {outcome}")


def change(page: Page, number: int, old: bytes, new: bytes) -> None:
    """Change the api's answer about a document."""

    def answer(route: Route) -> None:
        response = route.fetch()
        body = response.body()
        assert old in body
        route.fulfill(response=response, body=body.replace(old, new, 1))

    page.route(f"**/v1/certificates/{number}", answer)


def test_verifies_with_the_readers_key(
    open_page: OpenPage, certificate: int, tmp_path: Path
) -> None:
    page = open_page(LIST)
    page.get_by_role("link", name=str(certificate), exact=True).click()
    status = page.get_by_role("status").first
    expect(page.get_by_text("1 inference and")).to_be_visible()
    for form in (SIGNING.public.pem, SIGNING.public.text, SIGNING.public.id):
        trust(page, "")
        expect(status).to_have_text("Not verified yet: enter the key that you trust.")
        expect_steps(page, Signature="not checked")
        trust(page, form)
        expect(status).to_have_text(f"Certificate {certificate} is valid.")
        expect_steps(page)
    trust(page, "")
    expect_steps(page, Signature="not checked")
    (tmp_path / "key.pem").write_text(SIGNING.public.pem)
    page.get_by_label("File with the key").set_input_files(tmp_path / "key.pem")
    expect(status).to_have_text(f"Certificate {certificate} is valid.")


@LOOKS
def test_it_is_accessible(open_page: OpenPage, certificate: int, scheme: str, narrow: bool) -> None:
    page = open_page(f"{LIST}/{certificate}", scheme=scheme, narrow=narrow)
    for key, outcome in ((SIGNING, "passed"), (new_key(), "failed")):
        trust(page, key.public.id)
        expect_steps(page, Signature=outcome)
        check_page(page)


def test_foreign_key_proves_nothing(open_page: OpenPage, certificate: int) -> None:
    page = open_page(f"{LIST}/{certificate}")
    trust(page, new_key().public.pem)
    expect_steps(page, Signature="failed")
    expect(page.get_by_role("status").first).to_contain_text("which you do not trust")
    trust(page, "hunter2")
    expect(page.get_by_text("“hunter2” is neither a public key")).to_be_visible()
    trust(page, SIGNING.pem)
    expect(page.get_by_text("This is a private key.")).to_be_visible()


def test_downloads_are_the_signed_bytes(
    open_page: OpenPage, certificate: int, console: Console, tmp_path: Path
) -> None:
    page = open_page(f"{LIST}/{certificate}")
    for name in ("Download", "Download the signed bytes"):
        with page.expect_download() as download:
            page.get_by_role("button", name=name, exact=True).click()
        download.value.save_as(tmp_path / download.value.suggested_filename)
    envelope = json.loads((tmp_path / f"{certificate:010d}.json").read_bytes())
    assert envelope == console.ask("GET", f"/v1/certificates/{certificate}")
    key = Ed25519PublicKey.from_public_bytes(SIGNING.public.raw)
    signed = (tmp_path / f"{certificate:010d}.signed").read_bytes()
    key.verify(b64decode(envelope["signature"]), signed)


def test_verifies_the_whole_chain(open_page: OpenPage, certificate: int) -> None:
    page = open_page(LIST)
    button = page.get_by_role("button", name="Verify the chain")
    expect(button).to_be_disabled()
    trust(page)
    button.click()
    expect(page.get_by_text("The chain is valid: ")).to_contain_text(
        f"from number 1 to {certificate}"
    )
    change(page, certificate - 1, b'"inferences":1', b'"inferences":2')
    button.click()
    expect(page.get_by_text("The chain is invalid: ")).to_be_visible()
    fault = page.get_by_role("listitem").filter(has_text=f"Number {certificate - 1}")
    expect(fault.first).to_contain_text("The signature is not of key")
    trust(page, new_key().public.id)
    page.unroute(re.compile(".*"))
    button.click()
    expect(page.get_by_text("which is none that you trust")).to_be_visible()
