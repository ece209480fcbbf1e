"""What people see of live jobs, held against what happens: the page in a real Chromium, and what-if questions.

Not in `make e2e`: it needs Chromium and minutes of an idle machine. `make e2e-people` runs it; with PICTURES=1 it
writes docs/images/page-live.png, too.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.cluster import Cluster
from harness.controlplane import free_port
from harness.demo import PAGE_SERVICE
from harness.deploy import NAMESPACE, deploy
from harness.jobs import Jobs, Object, until
from harness.training import Annotations, Lines, wait_for_step

from .test_elastic import ask, elastic

pytestmark = pytest.mark.people

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or ""
IMAGES = Path(__file__).parents[1] / "docs" / "images"
SHOWN_WITHIN_S = 2.0
RIGHT_WITHIN = 0.15


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    return deploy(components=["query-api"])


@pytest.fixture
def person(jobs: Jobs, cluster: Cluster, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The token of somebody who may do everything, and a kubeconfig with it."""
    user = f"{jobs.namespace}:person"
    binding = f"{jobs.namespace}-person"
    jobs.kubectl("create", "serviceaccount", "person")
    cluster.kubectl("create", "clusterrolebinding", binding, "--clusterrole=cluster-admin", f"--serviceaccount={user}")
    token = jobs.kubectl("create", "token", "person", "--duration=2h").strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    for each in config["users"]:
        each["user"] = {"token": token}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    yield token, path
    cluster.kubectl("delete", "clusterrolebinding", binding)


def fixed(jobs: Jobs, name: str, steps: int) -> Object:
    """A job that keeps its size and trains as fast as it can, and whose model has a name."""
    bounds = {"min-workers": "1", "max-workers": "1", "min-ps": "1", "max-ps": "1", "model": "digits-live"}
    return elastic(jobs, name, steps=steps, at_most=0, cpu_m=400, annotations=bounds)


# -- the page


@contextmanager
def page_of(cluster: Cluster, token: str, where: str) -> Iterator[Any]:
    """The live page at this view, through a port-forward, in Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is missing: `make e2e-people` has it")
    if not CHROMIUM:
        pytest.skip("Chromium is missing: Debian's package chromium, or CHROMIUM=PATH")
    port = free_port()
    command = cluster.command("-n", NAMESPACE, "port-forward", f"service/{PAGE_SERVICE}", f"{port}:80")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forward:
        try:
            assert forward.stdout is not None
            assert forward.stdout.readline().startswith("Forwarding")
            with playwright.sync_playwright() as found:
                browser = found.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                page = browser.new_page(viewport={"width": 1180, "height": 1150}, color_scheme="light")
                page.set_default_timeout(400_000)
                page.goto(f"http://127.0.0.1:{port}/{where}")
                page.fill("form.ask input", token)
                page.click("form.ask button")
                page.wait_for_selector(".status.live")
                yield page
                browser.close()
        finally:
            forward.terminate()


class Watched(Annotations):
    """When the operator had written that a job is stable in its `rescales`-th size."""

    def __init__(self, cluster: Cluster, namespace: str, name: str) -> None:
        self.at: dict[int, float] = {}
        super().__init__(cluster, namespace, name)

    def _take(self, text: str) -> None:
        super()._take(text)
        if state := self.said("state"):
            self.at.setdefault(int(state.get("rescales", 0)), time.monotonic())


FIGURE = """name => [...document.querySelectorAll(".figure")]
    .find(each => each.querySelector("dt").textContent === name)?.querySelector("dd").textContent ?? "" """


def shown_at(page: Any, figure: str, begin: str) -> float:
    """When this figure of the page began with these words. Its own rules let Playwright wait for nothing."""
    deadline = time.monotonic() + 400
    while not page.evaluate(FIGURE, figure).startswith(begin):
        assert time.monotonic() < deadline, f"{figure} never was {begin}"
        page.wait_for_timeout(50)
    return time.monotonic()


def test_the_page_shows_a_rescale_of_a_real_job_within_seconds(jobs: Jobs, person: tuple[str, Path]) -> None:
    """A person grows a job and shrinks it again, with the page open: each change is there soon after it was stored."""
    jobs.apply(elastic(jobs, "shown", steps=1_000_000))
    with Lines(jobs.cluster, jobs.namespace, "shown-chief-0") as lines:
        wait_for_step(lines, 100, 400)
    token, _ = person
    with (
        page_of(jobs.cluster, token, f"#/job/{jobs.namespace}/shown") as page,
        Watched(jobs.cluster, jobs.namespace, "shown") as watched,
    ):
        page.wait_for_selector(".steps svg")
        delays = []
        for number, workers in ((1, 2), (2, 1)):
            ask(jobs, "shown", workers=workers)
            seen = shown_at(page, "Rescales", str(number))
            until(lambda wanted=number: wanted in watched.at, 60, lambda: f"no such rescale: {watched.at}")  # type: ignore[misc]
            delays.append(seen - watched.at[number])
            assert f"{workers} worker" in page.evaluate(FIGURE, "Size")
            page.wait_for_timeout(8000)
        assert page.locator(".marker").count() >= 2
        assert "steps lost" not in page.inner_text(".events")
        if os.environ.get("PICTURES"):
            page.screenshot(path=IMAGES / "page-live.png")
    print(f"on the page {', '.join(f'{delay:.2f}' for delay in delays)} s after it was stored")
    assert max(delays) <= SHOWN_WITHIN_S


# -- what-if


def what_if(kubeconfig: Path, namespace: str, manifest: Object) -> dict[str, dict[str, Any]]:
    """The rows of the answer for this job, by name."""
    command: list[str | Path] = [
        Path(sys.executable).with_name("elastic-tfjob"),
        "what-if",
        f"--kubeconfig={kubeconfig}",
    ]
    command += [f"--namespace={namespace}", "--filename=-", "--output=json"]
    ended = subprocess.run(command, input=yaml.safe_dump(manifest), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return {row["name"]: row for row in json.loads(ended.stdout)["items"]}


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def ended_at(jobs: Jobs, name: str) -> float:
    jobs.wait_for(name, "Succeeded", 900)
    return moment(jobs.get("tfjob", name)["status"]["completionTime"])


def test_a_what_if_forecast_is_right_for_jobs_that_then_run(jobs: Jobs, person: tuple[str, Path]) -> None:
    """One that trains by now, and one of its model that is submitted when the question was answered and that nothing
    else disturbs."""
    _, kubeconfig = person
    jobs.apply(fixed(jobs, "first", 8000))
    with Lines(jobs.cluster, jobs.namespace, "first-chief-0") as lines:
        wait_for_step(lines, 1500, 400)
    asked = time.time()
    foreseen = moment(what_if(kubeconfig, jobs.namespace, fixed(jobs, "other", 4000))["first"]["ends_now"])
    errors = {"the one that trains": (ended_at(jobs, "first") - foreseen) / (foreseen - asked)}
    row = what_if(kubeconfig, jobs.namespace, fixed(jobs, "second", 8000))["second"]
    asked = time.time()
    jobs.apply(fixed(jobs, "second", 8000))
    foreseen = moment(row["ends_then"])
    errors["the new one"] = (ended_at(jobs, "second") - foreseen) / (foreseen - asked)
    print(f"later than foreseen, of the time from the question: {errors}")
    assert all(abs(error) <= RIGHT_WITHIN for error in errors.values()), errors
