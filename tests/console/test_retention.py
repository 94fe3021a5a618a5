"""Policies: saved only after a preview of the same revision; runs with their deletions."""

import json
from urllib.parse import quote

from playwright.sync_api import Page, expect

from tests.policy_owners import name_owner

from .conftest import Console, OpenPage
from .test_erasures import make_captures

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
    page.get_by_label("At once").check()
    page.get_by_role("button", name="Save this policy").click()
    expect(page.get_by_role("region", name="What applies")).to_contain_text(
        "Everything is kept for 30 minutes."
    )
    page.get_by_role("button", name="Run now for aged-cameras").click()
    runs = page.get_by_role("region", name="The newest runs").locator("tbody tr")
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
    expect(page.get_by_text("It changed since the preview")).to_be_visible()
    page.get_by_role("button", name="JSON").click()
    text = page.get_by_label("Policy as JSON")
    expected = {"rules": [{"name": "another", "keep_inference": "P8Y"}]}
    assert json.loads(text.input_value()) == expected
    text.fill("{")
    page.get_by_role("button", name="See what it would delete").click()
    expect(page.get_by_role("alert")).to_contain_text("This is no JSON")
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
    expect(page.get_by_role("alert")).to_contain_text("Somebody changed it after you opened it")
    page.get_by_role("button", name="Load again").click()
    expect(page.get_by_role("region", name="What applies")).to_contain_text("for 9 years")
    expect(page.get_by_label("Keep everything")).to_have_value("P8Y")
    preview(page)
    page.get_by_role("button", name="Save this policy").click()
    expect(page.get_by_role("region", name="What applies")).to_contain_text("for 8 years")


def test_revokes_a_pending_version_and_removes_a_policy(
    open_page: OpenPage, console: Console
) -> None:
    model = "waiting-cameras"
    console.produce(*make_captures(model, 0, 1))
    path = f"/v1/models/{model}/retention-policy"
    for policy in (LONG, SHORT):
        console.ask("PUT", path, name_owner(path, policy))
    page = open_page(f"#/list/retention/model%3A{model}")
    own = page.get_by_role("region", name="Its own policy")
    expect(own).to_contain_text("A new version waits and begins at")
    own.get_by_role("button", name="Revoke …").click()
    page.get_by_role("dialog").get_by_role("button", name="Take it back").click()
    expect(own).not_to_contain_text("waits and begins")
    own.get_by_role("button", name="Remove …").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove it").click()
    expect(own).to_contain_text("It has none of its own in force")
    expect(page.get_by_role("region", name="Versions").locator("summary")).to_have_count(3)
    page.get_by_role("link", name="Set a policy …").click()  # of a revision that was removed
    preview(page)


def test_the_policies_of_a_project_apply_to_its_models(
    open_page: OpenPage, console: Console
) -> None:
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
    expect(own).to_contain_text("It has none of its own in force")


def test_a_move_warns_which_policies_will_apply(open_page: OpenPage, console: Console) -> None:
    path = "/v1/projects/archive/retention-policy"
    console.ask("PUT", path, name_owner(path, SHORT))
    for project in ("street", "archive"):
        console.ask("PUT", "/v1/models/moved-cameras", {"project_id": project})
    page = open_page("#/list/retention/model%3Amoved-cameras")
    expect(page.get_by_role("status")).to_contain_text("It was moved here from the project street.")
    applies = page.get_by_role("region", name="What applies")
    expect(applies).to_contain_text("of the project archive")
    expect(applies).to_contain_text("Everything is kept for 30 minutes.")


def test_asks_nothing_about_a_model_called_dots(open_page: OpenPage) -> None:
    """The browser would resolve its path to that of the default policy."""
    for extent in ("model:..", "project:..", "model:."):
        page = open_page(f"#/list/retention/{quote(extent, safe='')}?edit=1")
        expect(page.get_by_text("No such ID")).to_be_visible()
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
