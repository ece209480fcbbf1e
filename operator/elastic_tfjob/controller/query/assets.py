"""The live page: its files, from the package. They are the same for everybody and tell nothing; what they ask does."""

from collections.abc import Awaitable, Callable
from hashlib import blake2b
from importlib.resources import files
from typing import Final

from aiohttp import web

__all__ = ["add"]

_KINDS: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_HEADERS: Final = {
    # Scripts and styles from here only, none in the page itself: words of tenants cannot become programs.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
_FOLDERS: Final = ("", "vendor/")


def add(router: web.UrlDispatcher) -> None:
    """Serve the page at `/`. Its own links are relative, so it works below any path."""
    page = files("elastic_tfjob.controller.query").joinpath("page")
    for folder in _FOLDERS:
        for file in page.joinpath(folder).iterdir():
            kind = _KINDS.get("." + file.name.rpartition(".")[2])
            if file.is_file() and kind is not None:
                answer = _file(file.read_bytes(), kind)
                router.add_get(f"/{folder}{file.name}", answer, allow_head=False)
                if f"{folder}{file.name}" == "index.html":
                    router.add_get("/", answer, allow_head=False)


def _file(body: bytes, kind: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    tag = f'"{blake2b(body, digest_size=12).hexdigest()}"'

    async def answer(request: web.Request) -> web.StreamResponse:
        headers = {**_HEADERS, "ETag": tag}
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)

    return answer
