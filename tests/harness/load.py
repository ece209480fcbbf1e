"""A load generator for a model server: open loop, so that a slow server gets no fewer requests. It runs alone, too, in
any container that has aiohttp:

    python load.py http://digits-server/v1/models/digits:predict --curve '[[0, 2], [60, 20], [120, 2]]'

The curve's points are [seconds, requests a second]; between them the rate changes evenly. The first line that it prints
is {"begin": UNIX TIME}, and then one for each request: when it was due (Unix time), the seconds from then until it was
answered, so that one which was sent late counts as slow, and what was wrong ("": nothing).
"""

import argparse
import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import aiohttp

Curve = Sequence[Sequence[float]]
"""Points (seconds from the begin, requests a second), in the order of time."""
STEP_S = 0.01
TIMEOUT_S = 5.0
MAX_WAITING = 256
"""Requests that wait for an answer at most; further ones fail at once, and say so."""
BODY = {"instances": [[0.0] * 64]}


@dataclass(frozen=True, slots=True)
class Request:
    """`at`: when it was due, Unix time. `s`: seconds from then to its answer. `error`: what was wrong, or nothing."""

    at: float
    s: float
    error: str = ""


def rate(curve: Curve, at_s: float) -> float:
    """Requests a second at a time; before the first point and after the last as there."""
    for (x0, y0), (x1, y1) in pairwise(curve):
        if at_s < x1:
            return float(y0 + (y1 - y0) * max(0.0, at_s - x0) / (x1 - x0))
    return float(curve[-1][1])


def due(curve: Curve) -> Iterator[float]:
    """When requests are sent, in seconds from the begin, evenly by the rate of the moment."""
    owed = 0.0
    for k in range(round(curve[-1][0] / STEP_S)):
        owed += rate(curve, k * STEP_S) * STEP_S
        while owed >= 1:
            owed -= 1
            yield k * STEP_S


async def generate(url: str, curve: Curve, take: Callable[[Request], None], body: Any = None) -> None:
    """Send the requests of a curve, each on a connection of its own as one behind a Service has to be, so that none
    stays with one replica; `take` each when it has been answered or has failed."""
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    begin, begin_unix = time.monotonic(), time.time()
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def send(at_s: float) -> None:
            error = await _asked(session, url, BODY if body is None else body)
            take(Request(round(begin_unix + at_s, 3), round(time.monotonic() - begin - at_s, 4), error))

        waiting: set[asyncio.Task[None]] = set()
        for at_s in due(curve):
            await asyncio.sleep(max(0.0, begin + at_s - time.monotonic()))
            if len(waiting) >= MAX_WAITING:
                take(Request(round(begin_unix + at_s, 3), 0.0, f"not sent: {MAX_WAITING} requests wait"))
                continue
            task = asyncio.create_task(send(at_s))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
        await asyncio.gather(*waiting)


async def _asked(session: aiohttp.ClientSession, url: str, body: Any) -> str:
    """What was wrong with a request, or nothing: any answer but 200 with predictions."""
    try:
        async with session.post(url, json=body) as response:
            answer = await response.json(content_type=None)
            if response.status == 200 and isinstance(answer, dict) and answer.get("predictions"):
                return ""
            return f"answer {response.status}: {str(answer)[:100]}"
    except TimeoutError:
        return f"no answer within {TIMEOUT_S:g} s"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"[:200]


def parse(text: str) -> tuple[float, list[Request]]:
    """What a generator printed: when it began (Unix time; 0: not yet), and its requests. A line that is cut off, as the
    last of a log that is read while it is written, is left out."""
    begin, found = 0.0, []
    for line in text.splitlines():
        try:
            raw = json.loads(line)
            if "begin" in raw:
                begin = float(raw["begin"])
            else:
                found.append(Request(float(raw["at"]), float(raw["s"]), str(raw["error"])))
        except (ValueError, KeyError, TypeError):
            continue
    return begin, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--curve", type=json.loads, required=True, help="points as JSON")
    options = parser.parse_args()
    print(json.dumps({"begin": time.time()}), flush=True)
    asyncio.run(generate(options.url, options.curve, lambda request: print(json.dumps(asdict(request)), flush=True)))


if __name__ == "__main__":
    main()
