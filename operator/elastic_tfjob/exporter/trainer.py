"""Progress for Kubeflow Trainer v2: the exporter reports it to Trainer's server, and the TrainJob's status shows it.

Trainer puts the server's address and a token into a TrainJob's pods (`KUBEFLOW_TRAINER_SERVER_...`, its feature gate
TrainJobStatus). A failure here does not affect training.
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
LAST_TIMEOUT_S = 2.0
"""For the last report, while the pod ends."""
_MOST_S = 2**31 - 1
_TOKEN_BYTES = 64 << 10


def trainer_status(status: Mapping[str, Any], now: float) -> dict[str, Any] | None:
    """Trainer's `trainerStatus` (trainer.kubeflow.org/v1alpha1) from an answer to /status; None where no step is known,
    as in parameter servers. `now`: Unix time in seconds."""
    step, total, speed = status["step"], status["total_steps"], status["steps_per_s"]
    if step is None:
        return None
    metrics = {"step": step, "steps_per_second": speed, "loss": status["loss"]}
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
    """Reports the progress in the files of `directory` to the server that `environment` names, if it names one."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._directory = directory
        self._url, self._ca, self._token = (environment.get(name, "") for name in (URL, CA_CERT, TOKEN))
        self._reported_step: object = None
        self._failed = False
        self._lock = threading.Lock()

    @property
    def enabled(self) -> bool:
        """Whether there is a server to report to."""
        return self._url.startswith("https://") and bool(self._ca and self._token)

    def run(self) -> None:
        """Report every EVERY_S seconds, without end."""
        while True:
            self.report()
            time.sleep(EVERY_S)

    def report(self, timeout_s: float = TIMEOUT_S) -> None:
        """Report now, if there is a new step. Errors are only printed."""
        with self._lock:
            try:
                found = status(self._directory)
                body = trainer_status(found, time.time())
                if body is None or found["step"] == self._reported_step:
                    return
                self._post(body, timeout_s)
                self._reported_step, self._failed = found["step"], False
            except Exception as error:  # of the server, the network or a certificate
                if not self._failed:
                    print(
                        f"progress is not reported to {self._url}: {type(error).__name__}: {error}",
                        file=sys.stderr,
                        flush=True,
                    )
                self._failed = True

    def _post(self, body: Mapping[str, Any], timeout_s: float) -> None:
        with open(self._token, encoding="utf-8") as file:
            token = file.read(_TOKEN_BYTES).strip()  # the kubelet replaces it from time to time
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        request = Request(self._url, json.dumps({"trainerStatus": body}).encode(), headers, method="POST")
        with urlopen(request, timeout=timeout_s, context=ssl.create_default_context(cafile=self._ca)) as answer:
            answer.read(_TOKEN_BYTES)


def begin(directory: Path) -> Callable[[], None] | None:
    """Report in the background where Trainer asks for it; returns the function for the last report."""
    reporter = TrainerReporter(directory, os.environ)
    if not reporter.enabled:
        return None
    threading.Thread(target=reporter.run, name="trainer", daemon=True).start()
    return partial(reporter.report, LAST_TIMEOUT_S)
