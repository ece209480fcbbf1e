"""Objects of one tenant that are nested too deep, beside those of others."""

import asyncio

import orjson
import pytest
from aiohttp import web

from elastic_tfjob.controller.kube.client import MAX_DEPTH, decode
from elastic_tfjob.controller.kube.informer import Informer
from elastic_tfjob.controller.model.job import TFJob
from harness.background import until

from .test_client import client_of

PATH = "/apis/kubeflow.org/v1/tfjobs"


def deep(levels: int) -> str:
    """As a tenant may write it into managedFields: the API server keeps it."""
    return '{"f:x":' * levels + '"}]\\""' + "}" * levels


def tfjob(name: str, version: int, fields: bytes = b"{}") -> bytes:
    head = f'"namespace":"{name}","name":"{name}","uid":"{name}","resourceVersion":"{version}"'.encode()
    head += b',"managedFields":[{"manager":"m","fieldsV1":%s}]' % fields
    return b'{"apiVersion":"kubeflow.org/v1","kind":"TFJob","metadata":{%s},"spec":{"tfReplicaSpecs":{}}}' % head


@pytest.mark.parametrize("levels", [MAX_DEPTH, 1025, 9000])
def test_values_that_are_too_deep_are_emptied_and_the_rest_is_read(levels: int) -> None:
    text = f'{{"items": [{deep(levels)}, {{"name": "[{{\\"", "odd": [1, [2]]}}], "kind": "L"}}'
    found = decode(text.encode())
    assert found["items"][1] == {"name": '[{"', "odd": [1, [2]]}
    assert found["kind"] == "L"
    assert orjson.loads(orjson.dumps(found)) == found  # whoever takes it may write it


def test_lists_in_lists_and_what_is_left_open() -> None:
    assert decode(b"[" * 2000 + b"]" * 2000)
    with pytest.raises(orjson.JSONDecodeError):
        decode(b"[" * 2000 + b"]" * 1999)
    with pytest.raises(orjson.JSONDecodeError):
        decode(b'{"a": "b}')
    with pytest.raises(orjson.JSONDecodeError):
        decode(b"]" * 2000)


def test_invalid_json_is_scanned_once() -> None:
    """It took hours where each quotation mark was tried as the beginning of a string that has no end."""
    for odd in (b'"' * 1_000_001, b'"\\' * 500_000, b"[" * 2000 + b'"\\"' * 500_000):
        with pytest.raises(orjson.JSONDecodeError):
            decode(odd)


NO_TEXT = b'{"f:\xff\xc3":{}}'
"""No UTF-8: the API server keeps that, too (tests/integration/test_faults.py)."""


def test_invalid_utf8_is_replaced_and_the_rest_is_read() -> None:
    found = decode(b'{"odd": %s, "text": "\\n\xc3\xa9", "deep": %s}' % (NO_TEXT, deep(2000).encode()))
    assert (found["odd"], found["text"]) == ({"f:\ufffd\ufffd": {}}, "\n\u00e9")
    assert orjson.loads(orjson.dumps(found)) == found


@pytest.mark.parametrize("fields", [deep(1025).encode(), deep(9000).encode(), NO_TEXT])
@pytest.mark.parametrize("when", ["list", "watch"])
async def test_an_unreadable_object_does_not_hide_others_from_an_informer(when: str, fields: bytes) -> None:
    evil = tfjob("evil", 20, fields)

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            items = [tfjob("first", 10), *([evil] if when == "list" else [])]
            return web.Response(body=b'{"metadata":{"resourceVersion":"15"},"items":[%s]}' % b",".join(items))
        response = web.StreamResponse()
        await response.prepare(request)
        changed = [evil] if when == "watch" else []
        for item in [*changed, tfjob("later", 30)]:
            await response.write(b'{"type":"ADDED","object":%s}\n' % item)
        await asyncio.sleep(60)
        return response

    async with client_of(answer) as api:
        informer = Informer(api, PATH, TFJob.parse, lambda _: None)
        task = asyncio.create_task(informer.run())
        await until(lambda: {("first", "first"), ("later", "later"), ("evil", "evil")} <= set(informer.keys))
        task.cancel()
