"""Comparisons of the bucket with the index: started, followed, with findings by kind."""

import re

from playwright.sync_api import expect

from .conftest import OpenPage


def test_starts_and_follows_a_comparison(open_page: OpenPage) -> None:
    page = open_page("#/list/reconcile")
    page.get_by_role("button", name="Compare now").click()
    expect(page).to_have_url(re.compile("list/reconcile/[0-9a-f-]{36}$"))
    expect(page.get_by_role("status").first).to_have_text(
        re.compile("Bucket and index agree|orphans|missing"), timeout=180_000
    )
    expect(page.get_by_text("objects that rows name")).to_be_visible()
    expect(page.get_by_text(re.compile(r"\d+ stored \+ 0 rebuilt"))).to_be_visible()
    page.get_by_role("link", name=re.compile("Missing")).click()
    expect(page).to_have_url(re.compile(r"\?kind=missing$"))
    expect(page.locator("tbody tr, .none").first).to_be_visible()
    page.get_by_role("link", name="← Reconcile").click()
    expect(page.locator("tbody tr").first).to_contain_text(re.compile("they (agree|differ)"))
