"""The live page in a real Chromium: `make test-page`. Pictures for docs/images are taken where PICTURES=1 is set."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.hostile_text import MARKUP
from unit.query import build
from unit.query.build import Held, World

from . import vendor
from .demo import SHOWN, Serving, demo, serving, small, trained

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or ""
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is missing: `make test-page` has it")
pytestmark = [
    pytest.mark.skipif(not CHROMIUM, reason="Chromium is missing: Debian's package chromium, or CHROMIUM=PATH"),
    pytest.mark.skipif(not shutil.which("npm"), reason="npm is missing, which axe-core comes by"),
    pytest.mark.xdist_group("page"),
]

IMAGES = Path(__file__).parents[2] / "docs" / "images"
JOB = f"#/job/ns/{SHOWN}"
PATIENCE_MS = 240_000
NAME = MARKUP.replace("/", "")  # which would be another path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as found:
        started = found.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE_MS)
        yield started
        started.close()


@contextmanager
def opened(browser: Any, url: str, *, wide: int = 1180, high: int = 820, **options: Any) -> Iterator[Any]:
    """A page of its own, on which nothing may fail."""
    context = browser.new_context(viewport={"width": wide, "height": high}, **options)
    context.set_default_timeout(PATIENCE_MS)
    failed: list[str] = []
    page = context.new_page()
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.on("console", lambda said: failed.append(said.text) if "Content Security Policy" in said.text else None)
    page.goto(url)
    yield page
    context.close()
    assert not failed


def serious(page: Any) -> list[str]:
    """What axe finds that keeps people out."""
    axe = (vendor.install() / "axe-core" / "axe.min.js").read_text()
    page.evaluate(axe)  # the page's own rules let no other script in
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']}: {node['html'][:200]}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


@pytest.fixture(scope="module")
def shown() -> Iterator[Serving]:
    with serving(demo(400)) as server:
        yield server


VIEWS = [
    ("job", JOB, ".steps svg", {"high": 1150, "color_scheme": "light"}),
    ("cluster-dark", "#/", ".bar", {"color_scheme": "dark"}),
    ("queue", "#/queue", ".all .row a", {"color_scheme": "light"}),
    ("job-phone", JOB, ".steps svg", {"wide": 390, "high": 844, "color_scheme": "light"}),
    ("jobs-phone-dark", "#/jobs", ".all .row a", {"wide": 390, "high": 844, "color_scheme": "dark"}),
]


@pytest.mark.parametrize("view", VIEWS, ids=[each[0] for each in VIEWS])
def test_every_view_is_there_for_everybody(
    browser: Any, shown: Serving, view: tuple[str, str, str, dict[str, Any]]
) -> None:
    """Below the path of a proxy, in both themes and on a phone: nothing sticks out, axe finds nothing serious."""
    name, where, there, options = view
    with opened(browser, shown.behind_proxy + where, reduced_motion="reduce", **options) as page:
        page.wait_for_selector(there)
        page.wait_for_selector(".status.live")
        if os.environ.get("PICTURES"):
            page.wait_for_timeout(4000)
            IMAGES.mkdir(exist_ok=True)
            page.screenshot(path=IMAGES / f"page-{name}.png")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert serious(page) == []


def test_pools_and_loans_are_shown(browser: Any, shown: Serving) -> None:
    with opened(browser, shown.address + "#/") as page:
        page.wait_for_selector("td:has-text('inference')")  # the chart's legend is a table, too
        assert page.inner_text("tbody tr").split() == ["inference", "1", "1", "1"]
        lent = page.locator(".nodes li", has_text="pool-0")
        assert re.search(r"lent 1[4-9] min ago", lent.inner_text())  # 14 minutes before the server began
        assert lent.locator(".loaned").get_attribute("title") == "1 waiting jobs can use it"
        assert "recalled" in page.locator(".nodes li", has_text="pool-1").inner_text()
        assert not page.locator(".nodes li", has_text="node-0").locator(".pool").count()


def test_words_of_tenants_stay_words(browser: Any) -> None:
    """Names and reasons full of markup are shown as they are, and no script runs. The API server admits no such name,
    so the API refuses the page of such a job."""
    raw = trained("hostile", "ns")
    raw["metadata"]["annotations"][f"{build.PREFIX}max-workers"] = MARKUP
    named = {**raw, "metadata": {**raw["metadata"], "name": NAME}}
    waits = build.waiting("waits", why=MARKUP), build.waiting(f"{NAME}2", why=MARKUP)
    with serving(World(jobs=Held(*map(build.job, (raw, named, *waits))))) as server:
        for where, name in (("#/jobs", "hostile"), ("#/queue", "waits")):
            with opened(browser, server.address + where) as page:
                page.wait_for_selector(".all .row a")
                assert MARKUP[:20] in page.inner_text("main")
                for each, there in ((NAME, ".status.wrong"), (name, ".figures")):
                    link = page.locator(".all .row a", has_text=each).last
                    link.click()
                    page.wait_for_selector(there)
                    assert each[:20] in page.inner_text("h1")
                    assert MARKUP[:20] in page.inner_text("main")
                    assert page.evaluate("window.owned") is None
                    assert page.evaluate("document.querySelectorAll('main script, main img').length") == 0
                    page.go_back()
                    page.wait_for_selector(".all .row a")


@pytest.mark.parametrize(
    ("status", "state", "words"),
    [(404, "missing", "Not found"), (403, "refused", "Not allowed"), (400, "wrong", "Invalid request")],
)
def test_the_page_shows_each_kind_of_refusal(browser: Any, status: int, state: str, words: str) -> None:
    with serving(demo(3)) as server, opened(browser, "about:blank") as page:
        body = '{"error": {"message": "why it is so"}}'
        if status != 404:  # which this server says by itself
            answer = {"status": status, "content_type": "application/json", "body": body}
            page.route("**/api/v1/**", lambda route: route.fulfill(**answer))
        page.goto(server.address + "#/job/ns/nobody")
        page.wait_for_selector(f".status.{state}")
        told = page.inner_text(f".status.{state}")
        assert told.startswith(words)
        assert ("this namespace has no TFJob of this name" if status == 404 else "why it is so") in told


def test_a_page_outlives_the_operator_and_shows_what_changed(browser: Any) -> None:
    with serving(demo(10)) as server, opened(browser, server.address + JOB) as page:
        page.wait_for_selector(".status.live")
        server.do(server.stop())
        page.wait_for_selector(".status.lost")
        assert "61,200" in page.inner_text("main")  # what was known stays there
        server.world.reports = {}
        changed = build.job(trained(SHOWN, "ns", step=70_000, version=8))
        server.world.jobs.entries = [changed, *server.world.jobs.entries[1:]]
        server.do(server.start())
        page.wait_for_selector(".status.live")
        page.wait_for_selector("text=70,000 of 100,000 steps")
        # and, without a new snapshot, what changes while it is there
        server.world.jobs.entries = [build.job(trained(SHOWN, "ns", step=80_000, version=9))]
        page.wait_for_selector("text=80,000 of 100,000 steps")


def test_ten_thousand_jobs_are_scrolled_and_reached_by_keyboard(browser: Any) -> None:
    world = World(jobs=Held(*(build.job(small(i)) for i in range(10_000))))
    with serving(world) as server, opened(browser, server.address + "#/jobs") as page:
        page.wait_for_selector(".all .row a")
        assert "10,000 jobs" in page.inner_text(".above")
        page.focus(".scroll")
        page.keyboard.press("End")
        page.wait_for_selector("text=train-09997")
        # whatever is scrolled to, only what is seen is in the page, and little is kept
        assert page.evaluate("document.querySelectorAll('.all .row').length") < 60
        page.locator(".all .row a").last.focus()
        page.keyboard.press("Enter")
        page.wait_for_selector(".figures")
        assert page.evaluate("document.activeElement.id") == "main"


def test_jobs_are_filtered_by_the_code_of_their_reason(browser: Any) -> None:
    jobs = (build.job(build.waiting(name, why={"code": code})) for name, code in (("a", "short"), ("b", "behind")))
    with serving(World(jobs=Held(*jobs))) as server, opened(browser, server.address + "#/jobs") as page:
        page.locator("option", has_text="no-nodes").wait_for(state="attached")
        page.get_by_label("Reason").select_option("short")
        page.locator(".all .row a", has_text="b").wait_for(state="detached")
        assert page.inner_text(".all .row a") == "ns/a"


def test_a_page_that_is_left_open_keeps_little(browser: Any, shown: Serving) -> None:
    with opened(browser, shown.address) as page:
        kept = page.evaluate(
            """async () => {
                const {remember} = await import("./charts.js");
                const samples = [];
                for (let i = 0; i < 20000; i++) remember(samples, 2000 * i, [i]);
                return [samples.length, samples.at(-1)[1]];
            }"""
        )
        assert kept == [1800, 19_999]


def test_foreign_files_are_those_of_the_lock_file() -> None:
    expected = vendor.vendored(vendor.install())
    assert {file.name: file.read_text() for file in vendor.VENDOR.iterdir()} == expected
