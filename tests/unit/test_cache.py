"""The informer against a scripted API server: what is listed, watched and written, in every order that can happen."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import REGISTRY

from elastic_tfjob.controller.kube.errors import Expired, TooLarge, Unavailable
from elastic_tfjob.controller.kube.informer import Informer
from elastic_tfjob.controller.model.job import Key
from elastic_tfjob.controller.model.pod import Pod


def raw(name: str, version: int, *, uid: str = "", phase: str = "Pending") -> dict[str, Any]:
    """A pod of job ns/j as the API sends it."""
    return {
        "metadata": {
            "namespace": "ns",
            "name": name,
            "uid": uid or f"{name}-uid",
            "resourceVersion": str(version),
            "labels": {"training.kubeflow.org/job-name": "j"},
        },
        "status": {"phase": phase},
    }


class Script:
    """An API server that plays lists and watches in turn and then stays silent."""

    def __init__(self, lists: Iterable[Any], watches: Iterable[Any] = ()) -> None:
        self.lists = list(lists)
        self.watches = list(watches)
        self.watched_from: list[str] = []
        self.finished = asyncio.Event()

    async def get(self, path: str, *, accept: str, **params: str) -> dict[str, Any]:
        if not self.lists:
            self.finished.set()
            await asyncio.Event().wait()
        found: dict[str, Any] | Exception = self.lists.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    async def watch(self, path: str, *, version: str, accept: str, **params: str) -> AsyncIterator[dict[str, Any]]:
        self.watched_from.append(version)
        if not self.watches:
            self.finished.set()
            await asyncio.Event().wait()
        for event in self.watches.pop(0):
            if isinstance(event, Exception):
                raise event
            yield event


def listed(version: int, *items: dict[str, Any], more: str = "") -> dict[str, Any]:
    """One page of a list."""
    return {"items": list(items), "metadata": {"resourceVersion": str(version), "continue": more}}


def event(kind: str, item: dict[str, Any]) -> dict[str, Any]:
    """One event of a watch."""
    return {"type": kind, "object": item}


async def play(script: Script, prepare: Any = None) -> tuple[dict[str, tuple[int, str]], list[Key]]:
    """Run an informer to the end of the script: what it holds then, and the keys it called out."""
    changed: list[Key] = []
    informer: Informer[Pod] = Informer(script, "/api/v1/pods", Pod.parse, changed.append)  # type: ignore[arg-type]
    if prepare:
        prepare(informer)
    task = asyncio.create_task(informer.run())
    await asyncio.wait_for(script.finished.wait(), 60)
    task.cancel()
    return {pod.name: (pod.version, pod.phase) for pod in informer.of_job(("ns", "j"))}, changed


async def test_list_in_pages_then_watch() -> None:
    """Pages are joined, and the watch begins at the list's version."""
    script = Script(
        [listed(5, raw("a", 1), more="next"), listed(5, raw("b", 2))],
        [[event("MODIFIED", raw("a", 6, phase="Running")), event("DELETED", raw("b", 7))]],
    )
    held, changed = await play(script)
    assert held == {"a": (6, "Running")}
    assert changed == [("ns", "j")] * 4
    assert script.watched_from == ["5", "7"]


async def test_large_objects_come_in_small_pages() -> None:
    """A hundred of 1.5 MB were one answer, and one step of the event loop: seconds, and a gigabyte."""
    limits: list[int] = []

    class Large(Script):
        async def get(self, path: str, *, accept: str, **params: Any) -> dict[str, Any]:
            limit, begin = int(params["limit"]), int(params.get("continue", "0"))
            limits.append(limit)
            here = sizes[begin : begin + limit]
            if params["most_bytes"] is not None and sum(here) > params["most_bytes"]:
                raise TooLarge("GET", 0, "TooLarge", "")
            end = begin + len(here)
            return listed(5, *(raw(f"p{i}", 1) for i in range(begin, end)), more=str(end) if end < len(sizes) else "")

    sizes = [8_000] * 250 + [1_500_000] * 5 + [5_000_000] + [8_000] * 250
    held, _ = await play(Large([]))
    assert len(held) == len(sizes)
    assert limits[:3] == [100, 100, 100]
    assert 1 in limits
    assert max(limits) == limits[-1] == 100
    assert len(limits) < 40


async def test_bookmarks_move_on() -> None:
    """A bookmark is only a place to resume from."""
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "40"}}}
    script = Script([listed(5)], [[bookmark]])
    held, changed = await play(script)
    assert (held, changed, script.watched_from) == ({}, [], ["5", "40"])


@pytest.mark.parametrize("error", [Expired("WATCH", 410, "Expired", ""), Expired("WATCH", 410, "Gone", "")])
async def test_an_expired_watch_lists_again(error: Exception) -> None:
    """What vanished meanwhile is noticed, what came too."""
    script = Script([listed(5, raw("a", 1), raw("b", 2)), listed(9, raw("b", 2), raw("c", 8))], [[error]])
    held, changed = await play(script)
    assert held == {"b": (2, "Pending"), "c": (8, "Pending")}
    assert len(changed) == 4  # a, b; then c is new and a is gone


async def test_broken_connections_resume() -> None:
    """A broken watch goes on from the last version seen; a failed list is tried again."""
    broken = Unavailable("WATCH", 0, "ClientPayloadError", "")
    script = Script(
        [Unavailable("LIST", 503, "", ""), listed(5)],
        [[event("ADDED", raw("a", 6)), broken], [event("ADDED", raw("b", 7))]],
    )
    held, _ = await play(script)
    assert sorted(held) == ["a", "b"]
    assert script.watched_from == ["5", "6", "7"]


async def test_a_write_is_seen_at_once_and_its_echo_is_no_news() -> None:
    """The answer to our own write is held; the watch event of the same version calls nobody."""
    script = Script([listed(5)], [[event("ADDED", raw("a", 6))]])
    held, changed = await play(script, lambda informer: informer.written(raw("a", 6)))
    assert held == {"a": (6, "Pending")}
    assert changed == []


async def test_an_object_that_was_read_counts_as_news() -> None:
    """An object found where a creation was refused may have moved on: its job is called, and its echo is no news."""
    changed: list[Key] = []
    informer: Informer[Pod] = Informer(Script([]), "/api/v1/pods", Pod.parse, changed.append)  # type: ignore[arg-type]
    informer.seen(raw("a", 6, phase="Running"))
    informer.seen(raw("a", 6, phase="Running"))
    assert changed == [("ns", "j")]


async def test_an_old_list_does_not_forget_a_newer_write() -> None:
    """What was created while the list was being read is not taken for deleted."""
    held, _ = await play(Script([listed(5)]), lambda informer: informer.written(raw("a", 6)))
    assert held == {"a": (6, "Pending")}


async def test_a_late_answer_does_not_raise_the_dead() -> None:
    """The watch told of the deletion before the answer to the creation arrived."""
    script = Script([listed(5)], [[event("ADDED", raw("a", 6)), event("DELETED", raw("a", 7))]])
    changed: list[Key] = []
    informer: Informer[Pod] = Informer(script, "/api/v1/pods", Pod.parse, changed.append)  # type: ignore[arg-type]
    task = asyncio.create_task(informer.run())
    await asyncio.wait_for(script.finished.wait(), 60)
    task.cancel()
    informer.written(raw("a", 6))
    assert informer.of_job(("ns", "j")) == ()
    informer.written(raw("a", 8, uid="another"))
    assert [pod.uid for pod in informer.of_job(("ns", "j"))] == ["another"]


async def test_assumptions_last_until_the_next_version() -> None:
    """A deletion we asked for counts as begun, and gives way to what the API server says."""
    informer: Informer[Pod] = Informer(Script([]), "/api/v1/pods", Pod.parse, lambda key: None)  # type: ignore[arg-type]
    informer.written(raw("a", 6))
    (pod,) = informer.of_job(("ns", "j"))
    informer.assume(replace(pod, terminating=True))
    assert informer.of_job(("ns", "j"))[0].terminating
    informer.written(raw("a", 7))
    assert not informer.of_job(("ns", "j"))[0].terminating
    informer.assume(replace(pod, terminating=True))  # made from an old view
    assert not informer.of_job(("ns", "j"))[0].terminating


def relabelled(item: dict[str, Any], job: str) -> dict[str, Any]:
    """The same object with another job's label."""
    return {**item, "metadata": {**item["metadata"], "labels": {"training.kubeflow.org/job-name": job}}}


def informer_of(script: Script, changed: list[Key]) -> Informer[Pod]:
    return Informer(script, "/api/v1/pods", Pod.parse, changed.append)  # type: ignore[arg-type]


async def test_an_object_that_cannot_be_read_is_set_aside_alone() -> None:
    """In a list, in a watch and when it goes: what was known of it stays until then, and the others are followed."""
    odd = raw("odd", 8)
    odd["metadata"]["labels"] = 5
    script = Script(
        [listed(5, raw("a", 1), {**odd, "metadata": {**odd["metadata"], "uid": "other"}}, raw("odd", 2))],
        [[event("MODIFIED", odd), event("ADDED", raw("b", 9))], [event("DELETED", {**odd, "spec": 3})]],
    )
    before = unreadable()
    changed: list[Key] = []
    informer = informer_of(script, changed)
    task = asyncio.create_task(informer.run())
    await asyncio.wait_for(script.finished.wait(), 60)
    assert not task.done()
    task.cancel()
    assert script.watched_from == ["5", "9", "8"]
    assert sorted(pod.name for pod in informer) == ["a", "b"]
    assert unreadable() - before == 2


def unreadable() -> float:
    return REGISTRY.get_sample_value("elastic_tfjob_unreadable_objects_total", {"resource": "pods"}) or 0.0


@pytest.mark.parametrize("error", [RecursionError(), MemoryError(), KeyError("x")])
async def test_any_error_of_reading_is_set_aside(error: Exception) -> None:
    def parse(item: Any) -> Pod:
        if item["metadata"]["name"] == "odd":
            raise error
        return Pod.parse(item)

    script = Script([listed(5, raw("odd", 1), raw("a", 2))])
    informer: Informer[Pod] = Informer(script, "/api/v1/pods", parse, lambda _: None)  # type: ignore[arg-type]
    task = asyncio.create_task(informer.run())
    await asyncio.wait_for(script.finished.wait(), 60)
    task.cancel()
    assert [pod.name for pod in informer] == ["a"]


async def test_a_pod_that_is_relabelled_moves() -> None:
    """It leaves nothing behind under the job that it was of, and both jobs hear of it."""
    changed: list[Key] = []
    informer = informer_of(Script([]), changed)
    informer.seen(raw("a", 6))
    changed.clear()
    informer.seen(relabelled(raw("a", 7), "k"))
    assert (informer.of_job(("ns", "j")), len(informer)) == ((), 1)
    assert [pod.version for pod in informer.of_job(("ns", "k"))] == [7]
    assert sorted(changed) == [("ns", "j"), ("ns", "k")]
    informer.seen(raw("a", 6))  # a late answer to a write from before
    assert informer.of_job(("ns", "j")) == ()


async def test_a_relabelled_pod_that_goes_is_gone() -> None:
    script = Script(
        [listed(5, raw("a", 1), raw("b", 2)), listed(9)],
        [[event("DELETED", relabelled(raw("a", 6), "k")), Expired("WATCH", 410, "Expired", "")]],
    )
    changed: list[Key] = []
    informer = informer_of(script, changed)
    task = asyncio.create_task(informer.run())
    await asyncio.wait_for(script.finished.wait(), 60)
    task.cancel()
    assert list(informer) == []
    assert changed == [("ns", "j")] * 4


async def test_a_pod_that_the_selector_finds_again_is_back() -> None:
    """It was deleted for the watch only, and its uid is the same; older answers do not bring it back."""
    script = Script([listed(5, raw("a", 1))], [[event("DELETED", raw("a", 6)), event("ADDED", raw("a", 8))]])
    held, _ = await play(script)
    assert held == {"a": (8, "Pending")}


@pytest.mark.parametrize("ends", [[], [Expired("WATCH", 410, "Expired", "")], [Unavailable("WATCH", 0, "", "")]])
async def test_watches_that_end_at_once_are_begun_ever_later(ends: list[Any]) -> None:
    """However they end."""
    script = Script([listed(5)] * 1000, [ends] * 1000)
    begun = asyncio.get_running_loop().time()
    task = asyncio.create_task(informer_of(script, []).run())
    async with asyncio.timeout(60):
        while len(script.watched_from) < 6:
            await asyncio.sleep(0.01)
    task.cancel()
    assert asyncio.get_running_loop().time() - begun >= 1.0  # after 0.1, 0.2, 0.4, 0.8 s
