"""A disk that remembers each write and flush, so that it can be given as a power loss at any instant would leave it.

A loop device whose backing file is served by this module (FUSE, direct I/O): whatever the kernel submits to the device
is written to a log in its order, with its time. A flush of the disk's cache (an fsync of the backing file) is in the
log, too. What is in the page cache at an instant is not in the log, and lost. A disk with a volatile cache may have
written any part of what was submitted after the last flush, in any order: `image` draws one, in sectors of 4 KiB.

Needs root, /dev/fuse and loop devices; `missing` says what is not there. Not modelled: a disk that lies about flushes,
and one that tears a sector.

    python -m harness.lossy_disk MOUNTED_FILE LOG SIZE      # serves until unmounted
"""

import contextlib
import ctypes
import os
import random
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SECTOR = 4096
_HEADER, _RECORD = struct.Struct("<IIQQIIIHH"), struct.Struct("<dQi")
_GETATTR, _SETATTR, _OPEN, _READ, _WRITE, _STATFS, _RELEASE, _FSYNC, _FLUSH, _INIT = (
    3,
    4,
    14,
    15,
    16,
    17,
    18,
    20,
    25,
    26,
)
_NO_REPLY = frozenset((2, 36, 42))  # forget, interrupt, batch forget
_ENOSYS = 38
_MAX_WRITE = 1 << 20
_BIG_WRITES, _MAX_PAGES = 1 << 5, 1 << 22
_FLUSHED = -1
"""The length of a record that is a flush."""


def missing() -> str:
    """Why this machine has no such disk; empty if it has."""
    if os.geteuid():
        return "only root can mount"
    absent = [each for each in ("/dev/fuse", "/dev/loop-control") if not os.path.exists(each)]
    absent += [each for each in ("losetup", "mkfs.ext4", "mount", "umount") if not shutil.which(each)]
    if absent:
        return f"missing: {', '.join(absent)}"
    probe = subprocess.run(["losetup", "--find"], capture_output=True, text=True, check=False)
    return f"no loop device: {probe.stderr.strip()}" if probe.returncode else ""


class Server:
    """One file of `size` bytes, kept in memory, at which the kernel's FUSE looks."""

    def __init__(self, target: str, log: str, size: int) -> None:
        self._size, self._data = size, bytearray(size)
        self._log = open(log, "wb", buffering=0)  # noqa: SIM115
        self._fuse = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self._fuse},rootmode=100000,user_id=0,group_id=0,max_read={_MAX_WRITE}"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"lossy-disk", target.encode(), b"fuse", 6, options.encode()):  # no devices, no set-uid
            raise OSError(ctypes.get_errno(), f"mount {target}")

    def serve(self) -> None:
        """Answer until the file is unmounted."""
        while True:
            try:
                request = os.read(self._fuse, _MAX_WRITE + 4096)
            except OSError:
                return  # unmounted
            _, operation, unique, *_ = _HEADER.unpack_from(request)
            if operation not in _NO_REPLY:
                answer = self._answer(operation, memoryview(request)[_HEADER.size :])
                error, body = (-answer, b"") if isinstance(answer, int) else (0, answer)
                os.write(self._fuse, struct.pack("<IiQ", 16 + len(body), error, unique) + body)

    def _answer(self, operation: int, body: memoryview) -> bytes | int:
        if operation == _INIT:
            flags = _BIG_WRITES | _MAX_PAGES
            fixed = struct.pack("<IIIIHHIIHH", 7, 31, _MAX_WRITE, flags, 16, 12, _MAX_WRITE, 1, _MAX_WRITE >> 12, 0)
            return fixed.ljust(64, b"\0")
        if operation in (_GETATTR, _SETATTR):
            times = (0,) * 3 + (0,) * 3
            attributes = struct.pack(
                "<QQQQQQIIIIIIIIII", 1, self._size, self._size >> 9, *times, 0o100600, 1, 0, 0, 0, SECTOR, 0
            )
            return struct.pack("<QII", 3600, 0, 0) + attributes
        if operation == _OPEN:
            return struct.pack("<QII", 1, 1, 0)  # direct I/O
        if operation == _READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            return bytes(self._data[offset : offset + size])
        if operation == _WRITE:
            _, offset, size = struct.unpack_from("<QQI", body)
            data = body[40 : 40 + size]
            self._data[offset : offset + size] = data
            self._log.write(_RECORD.pack(time.monotonic(), offset, size) + data)
            return struct.pack("<II", size, 0)
        if operation == _FSYNC:
            self._log.write(_RECORD.pack(time.monotonic(), 0, _FLUSHED))
            return b""
        if operation == _STATFS:
            return bytes(80)
        return b"" if operation in (_RELEASE, _FLUSH) else _ENOSYS


@dataclass(frozen=True)
class Record:
    """A write of `size` bytes at `offset`, whose data are in the log at `data_at`; or a flush (`size` is -1). `at` is
    by the monotonic clock, which all processes of a machine share."""

    at: float
    offset: int
    size: int
    data_at: int


class Recording:
    """What a disk was given, and the images that it may have at an instant."""

    def __init__(self, log: Path, size: int) -> None:
        self.log, self._size, self.records = log, size, list(_read(log))
        self.flushes = [index for index, record in enumerate(self.records) if record.size == _FLUSHED]

    def image(self, at: float, path: Path, seed: int) -> None:
        """Write the disk as a power loss at this time leaves it: with all before the last flush, and of what came
        after that, as the seed says, all, nothing or any sectors. `path` must be new: a mount of an older file lives on
        in each mount namespace that was made meanwhile (a container's), and its kernel would write to this one."""
        draw = random.Random(seed)
        share = draw.choice((0.0, 1.0, draw.random()))
        gone = next((index for index, record in enumerate(self.records) if record.at > at), len(self.records))
        flushed = max((index for index in self.flushes if index < gone), default=0)
        with open(self.log, "rb") as log, open(path, "xb") as image:
            image.truncate(self._size)
            for index, record in enumerate(self.records[:gone]):
                if record.size <= 0:
                    continue
                log.seek(record.data_at)
                data = log.read(record.size)
                if index < flushed:
                    image.seek(record.offset)
                    image.write(data)
                    continue
                for begin in range(0, record.size, SECTOR):
                    if draw.random() < share:
                        image.seek(record.offset + begin)
                        image.write(data[begin : begin + SECTOR])


def _read(log: Path) -> Iterator[Record]:
    end, position = log.stat().st_size, 0
    with open(log, "rb") as file:
        while position + _RECORD.size <= end:
            file.seek(position)
            at, offset, size = _RECORD.unpack(file.read(_RECORD.size))
            yield Record(at, offset, size, position + _RECORD.size)
            position += _RECORD.size + max(size, 0)


@contextlib.contextmanager
def mounted(image: Path, folder: Path, options: str = "") -> Iterator[None]:
    """A file system in a file, by a loop device, with the mount options that it has by default, and these."""
    folder.mkdir(exist_ok=True)
    device = _run("losetup", "--find", "--show", image)
    try:
        _run("mount", *(("-o", options) if options else ()), device, folder)
        try:
            yield
        finally:
            _run("umount", folder)
    finally:
        _run("losetup", "--detach", device)


@contextlib.contextmanager
def lossy_disk(
    directory: Path, size: int, make: tuple[str, ...] = ("mkfs.ext4", "-q"), options: str = ""
) -> Iterator[tuple[Path, Path]]:
    """A new file system on such a disk; gives where it is mounted, and the log."""
    disk, log, folder = directory / "disk", directory / "log", directory / "volume"
    disk.touch()
    server = subprocess.Popen([sys.executable, __file__, str(disk), str(log), str(size)])
    try:
        end = time.monotonic() + 30
        while disk.stat().st_size != size:
            assert server.poll() is None, "the disk's server has ended"
            assert time.monotonic() < end, "no disk within 30 s"
            time.sleep(0.01)
        try:
            _run(*make, disk)
            with mounted(disk, folder, options):
                yield folder, log
        finally:
            _run("umount", "--lazy", disk)
        server.wait(30)
    finally:
        server.kill()
        server.wait()


def _run(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    Server(sys.argv[1], sys.argv[2], int(sys.argv[3])).serve()
