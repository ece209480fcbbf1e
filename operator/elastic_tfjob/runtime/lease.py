"""The lease of a checkpoint directory: a file by which one job at a time may write there. Its chief renews it.

Two jobs that write to one directory would resume from each other's weights. So a job waits until another one's lease
has expired. A job that ends releases its lease, and a killed one stops renewing it: a recreated job resumes from the
same directory after EXPIRES_S at the latest. Clocks need not agree: a lease has expired when its content has not
changed for EXPIRES_S. A program that no operator started has no job, and no lease.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from elastic_tfjob.runtime import protocol

FILE = "elastic.lease"
RENEW_S, EXPIRES_S = 10.0, 35.0
STALE_S = 300.0
"""A lease that was last renewed this long ago has expired, unless clocks are very wrong."""
SAME_NAME_S = 120.0
"""A recreated job waits this long for the pods of the previous job of the same name."""
_POLL_S = 1.0
_READ_BYTES = 4096


class InUse(RuntimeError):
    """Another running job writes its checkpoints to this directory."""


@dataclass(frozen=True)
class Owner:
    """A job: `name` is namespace/name."""

    name: str
    uid: str

    @classmethod
    def of(cls, text: str | None) -> Owner | None:
        """Parse $ELASTIC_TFJOB_JOB, `namespace/name/uid`; None for anything else."""
        name, _, uid = (text or "").rpartition("/")
        return cls(name, uid) if name and uid else None

    @classmethod
    def read(cls, content: Any) -> Owner | None:
        """Parse the result of `written`; None for anything else."""
        if not isinstance(content, dict):
            return None
        name, uid = content.get("name"), content.get("uid")
        return cls(name, uid) if isinstance(name, str) and isinstance(uid, str) else None

    def written(self) -> dict[str, str]:
        return {"name": self.name, "uid": self.uid}

    def continues(self, other: Owner) -> bool:
        """Whether this job is the other one, or was recreated under its name."""
        return self.uid == other.uid or self.name == other.name


@dataclass(frozen=True)
class _Held:
    owner: Owner
    at: float
    nonce: str


class Lease:
    """A directory's lease, as this program uses it. `lost`: why this program must not write there; None if it may."""

    def __init__(self, tf: Any, directory: str) -> None:
        self._tf, self._path = tf, f"{directory}/{FILE}"
        self.owner = Owner.of(os.environ.get(protocol.JOB))
        self.lost: str | None = None
        self._nonce = os.urandom(8).hex()
        self._count = 0
        self._acquired = False
        self._lock = threading.RLock()
        """Guards the renewal and the release, in two threads: a renewal must not end after the release."""
        self._other: tuple[_Held, float] | None = None  # another job's lease, and when it last changed

    def acquire(self) -> None:
        """Take the lease once it is free. Waits at most SAME_NAME_S for a job of the same name, and EXPIRES_S for
        others. Raises InUse if another job renews it."""
        begin = changed_at = time.monotonic()
        held = self._read()
        printed = False
        while held is not None and not self._is_free(held) and time.monotonic() - changed_at < EXPIRES_S:
            if not printed:
                printed = True
                print(
                    f"{self._path}: job {held.owner.name} (uid {held.owner.uid}) wrote its checkpoints here. Waiting "
                    f"up to {EXPIRES_S:g} s to learn whether it is still running",
                    file=sys.stderr,
                    flush=True,
                )
            time.sleep(_POLL_S)
            now = self._read()
            if now is not None and now != held and not self._is_free(now):
                same = self.owner is not None and self.owner.name == now.owner.name
                if not same or time.monotonic() - begin > SAME_NAME_S:
                    raise InUse(self._in_use(now))
                changed_at = time.monotonic()
            held = now
        self._acquired = True
        self._write()

    def take_over(self) -> None:
        """Take the lease without a check: the previous program of the same job has it, and training stands still."""
        self._acquired = True

    def renew(self) -> None:
        """Renew the lease; to be called every RENEW_S seconds. Sets `lost` if another job took it at the same
        moment."""
        with self._lock:
            self._renew()

    def _renew(self) -> None:
        if not self._acquired or self.owner is None:
            return
        held = self._read()
        if held is None or held.owner.uid == self.owner.uid:
            self.lost, self._other = None, None
            self._write()
            return
        if self._other is None or self._other[0] != held:
            self._other = (held, time.monotonic())
        if time.monotonic() - self._other[1] >= EXPIRES_S:
            self.lost, self._other = None, None
            self._write()
        elif self.lost is None:
            self.lost = self._in_use(held)
            print(f"WARNING: from now on no checkpoint is saved: {self.lost}", file=sys.stderr, flush=True)

    def release(self) -> None:
        """Release the lease, unless the next program of this job has it. Never raises."""
        with self._lock, contextlib.suppress(Exception):
            if self._acquired and self.owner is not None:
                self._acquired = False
                held = self._read()
                if held is not None and held.nonce.partition("-")[0] == self._nonce:
                    self._tf.io.gfile.remove(self._path)

    def _is_free(self, held: _Held) -> bool:
        own = self.owner is not None and held.owner.uid == self.owner.uid
        return own or time.time() - held.at > STALE_S

    def _in_use(self, held: _Held) -> str:
        folder = self._path.rpartition("/")[0]
        return (
            f"job {held.owner.name} (uid {held.owner.uid}) is running and writes its checkpoints to {folder}, too. "
            "Each job needs a checkpoint directory of its own"
        )

    def _read(self) -> _Held | None:
        """The content of the file; None if it cannot be read or parsed: the next renewal replaces it."""
        try:
            with self._tf.io.gfile.GFile(self._path, "r") as file:
                content = json.loads(file.read(_READ_BYTES))
            owner = Owner.read(content)
            return _Held(owner, float(content["at"]), str(content["nonce"])) if owner is not None else None
        except Exception:
            return None

    def _write(self) -> None:
        """Errors are only printed: the next save reports a directory that cannot be written to."""
        if self.owner is None:
            return
        self._count += 1
        content = {**self.owner.written(), "at": time.time(), "nonce": f"{self._nonce}-{self._count}"}
        files = self._tf.io.gfile
        temporary = f"{self._path}.{self._nonce}"
        try:
            files.makedirs(self._path.rpartition("/")[0])
            with files.GFile(temporary, "w") as file:
                file.write(json.dumps(content))
            files.rename(temporary, self._path, overwrite=True)
        except Exception as error:
            print(f"WARNING: the lease {self._path} cannot be written: {error}", file=sys.stderr, flush=True)
            with contextlib.suppress(Exception):
                files.remove(temporary)
