"""Progress for Kubeflow Trainer v2: where a TrainJob's pods are told its server, the exporter says there how far the
training is, and the TrainJob's status shows it (its feature gate TrainJobStatus).

Environment and token are Trainer's (`KUBEFLOW_TRAINER_SERVER_...`). Nothing that goes wrong with it touches training.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from elastic_tfjob.exporter.status import status

__all__ = ["CA_CERT", "TOKEN", "URL", "TrainerReporter", "begin", "trainer_status"]

URL, CA_CERT, TOKEN = (f"KUBEFLOW_TRAINER_SERVER_{name}" for name in ("URL", "CA_CERT", "TOKEN"))
EVERY_S = 10.0
TIMEOUT_S = 5.0
LAST_S = 2.0
"""For the last word, while the pod ends."""
_MOST_S = 2**31 - 1
_TOKEN_BYTES = 64 << 10


def trainer_status(said: Mapping[str, Any], now: float) -> dict[str, Any] | None:
    """The body of Trainer's `trainerStatus` (trainer.kubeflow.org/v1alpha1) for an answer to /status; None where no
    step is known, as in pods that only hold parameters."""
    step, total, speed = said["step"], said["total_steps"], said["steps_per_s"]
    if step is None:
        return None
    metrics = {"step": step, "steps_per_second": speed, "loss": said["loss"]}
    found: dict[str, Any] = {
        "lastUpdatedTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)),
        "metrics": [{"name": name, "value": f"{value:.6g}"} for name, value in metrics.items() if value is not None],
    }
    if total is not None and total > 0:
        found["progressPercentage"] = max(0, min(100, int(100 * step / total)))
        left = max(0, total - step)
        if left == 0:
            found["estimatedRemainingSeconds"] = 0
        elif speed is not None and speed > 0:
            found["estimatedRemainingSeconds"] = int(min(left / speed, _MOST_S))
    return found


class TrainerReporter:
    """Tells the server in `environment` what the files in `directory` say. There is none where it is not named."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._directory = directory
        self._url, self._ca, self._token = (environment.get(name, "") for name in (URL, CA_CERT, TOKEN))
        self._told: object = None
        self._failed = False
        self._one = threading.Lock()

    @property
    def asked(self) -> bool:
        """Whether there is a server to tell."""
        return self._url.startswith("https://") and bool(self._ca and self._token)

    def run(self) -> None:
        """Tell for ever, each time that a step was made since."""
        while True:
            self.tell()
            time.sleep(EVERY_S)

    def tell(self, timeout_s: float = TIMEOUT_S) -> None:
        """Tell now, if there is news."""
        with self._one:
            try:
                said = status(self._directory)
                body = trainer_status(said, time.time())
                if body is None or said["step"] == self._told:
                    return
                self._post(body, timeout_s)
                self._told, self._failed = said["step"], False
            except Exception as error:  # whatever the server, the network or a certificate does
                if not self._failed:
                    print(
                        f"progress not told to {self._url}: {type(error).__name__}: {error}",
                        file=sys.stderr,
                        flush=True,
                    )
                self._failed = True

    def _post(self, body: Mapping[str, Any], timeout_s: float) -> None:
        with open(self._token, encoding="utf-8") as file:
            token = file.read(_TOKEN_BYTES).strip()  # the kubelet replaces it now and then
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        request = Request(self._url, json.dumps({"trainerStatus": body}).encode(), headers, method="POST")
        with urlopen(request, timeout=timeout_s, context=ssl.create_default_context(cafile=self._ca)) as answer:
            answer.read(_TOKEN_BYTES)


def begin(directory: Path) -> Callable[[], None] | None:
    """Begin to tell in the background, where Trainer asks for it; returns what tells for the last time."""
    teller = TrainerReporter(directory, os.environ)
    if not teller.asked:
        return None
    threading.Thread(target=teller.run, name="trainer", daemon=True).start()
    return partial(teller.tell, LAST_S)
