"""Sends the log of a run: its end first, then what is added, across rotation, truncation and deletion.

Answers are JSON lines ``{"log": text}``. Writing blocks while nobody reads, so the log itself is the buffer
and memory stays at some chunks.
"""

from __future__ import annotations

import codecs
import os
import re
import select
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from dflash_backend.hostside import _procs, _runfolder, _runlist

CHUNK = 32 * 1024
IDLE_S = 0.05
SETTLE_S = 1.0
"""A run is over; so long its log may still get lines from what it left."""
STAMP = re.compile(rb"^\[?(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)", re.MULTILINE)
WINDOW = 64 * 1024


class Log:
    """The log and what was rotated away from it, read as one stream from a place near the end."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.before = path + ".1"
        self.stream: BinaryIO | None = None
        self.offset = 0
        self.inode: int | None = None

    def start(self, last_bytes: int) -> Iterator[bytes]:
        """The last ``last_bytes`` from the begin of a line, out of the rotated file too."""
        self._open()
        end = _runlist.size(self.path) or 0
        if end < last_bytes:
            yield from self._old_end(last_bytes - end)
            return
        if self.stream is not None and end > last_bytes:
            self.offset = end - last_bytes
            yield from self._from_line_begin(self.stream, self.offset, end)

    def since(self, moment: float) -> Iterator[bytes]:
        """Everything from the first line that is stamped at ``moment`` or later (the host's local time)."""
        self._open()
        wanted = time.strftime("%Y%m%d%H%M%S", time.localtime(moment)).encode()
        old = self._opened(self.before)
        if old is not None:
            with old:
                end = old.seek(0, os.SEEK_END)
                begin = first_since(old, end, wanted)
                yield from chunks(old, begin, end)
                if begin < end:
                    return
        if self.stream is not None:
            self.offset = first_since(self.stream, _runlist.size(self.path) or 0, wanted)

    def more(self) -> bytes:
        """What was added since the last call; empty when nothing was."""
        if self.stream is None:
            self._open()
            if self.stream is None:
                return b""
        self.stream.seek(self.offset)
        data = self.stream.read(CHUNK)
        self.offset += len(data)
        if data:
            return data
        try:
            facts = os.stat(self.path)
        except OSError:
            return b""  # deleted: what is written to the open file still comes
        if facts.st_ino != self.inode:
            self._open()  # replaced: everything of the old file has been read
            return self.more() if facts.st_size else b""
        if facts.st_size < self.offset:
            rest = self._rotated_rest()
            self.offset = 0
            return rest
        return b""

    def _rotated_rest(self) -> bytes:
        """After a rotation: what was written between the last read and the cut."""
        old = self._opened(self.before)
        if old is None:
            return b""
        with old:
            if os.fstat(old.fileno()).st_size <= self.offset:
                return b""
            old.seek(self.offset)
            return old.read(4 * 1024 * 1024)

    def _old_end(self, length: int) -> Iterator[bytes]:
        old = self._opened(self.before)
        if old is None:
            return
        with old:
            end = old.seek(0, os.SEEK_END)
            begin = max(0, end - length)
            yield from self._from_line_begin(old, begin, end) if begin else chunks(old, 0, end)

    def _from_line_begin(self, stream: BinaryIO, begin: int, end: int) -> Iterator[bytes]:
        stream.seek(begin - 1)
        head = stream.read(min(WINDOW, end - begin + 1))
        cut = head.find(b"\n")
        # Without a line end in reach the cut line is better than nothing.
        begin = begin + cut if cut >= 0 else begin
        if stream is self.stream:
            self.offset = begin
            return
        yield from chunks(stream, begin, end)

    def _open(self) -> None:
        if self.stream is not None:
            self.stream.close()
        self.stream = self._opened(self.path)
        self.offset = 0
        self.inode = os.fstat(self.stream.fileno()).st_ino if self.stream is not None else None

    @staticmethod
    def _opened(path: str) -> BinaryIO | None:
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        return os.fdopen(handle, "rb", buffering=0)


def chunks(stream: BinaryIO, begin: int, end: int) -> Iterator[bytes]:
    """A part of a file in pieces."""
    stream.seek(begin)
    while begin < end:
        data = stream.read(min(CHUNK, end - begin))
        if not data:
            return
        begin += len(data)
        yield data


def first_since(stream: BinaryIO, end: int, wanted: bytes) -> int:
    """Offset of the first line stamped ``wanted`` (YYYYmmddHHMMSS) or later, by bisection; else ``end``.

    Lines without a stamp belong to the stamped line above them.
    """
    low, high = 0, end
    while high - low > WINDOW:
        middle = (low + high) // 2
        found = stamped(stream, middle, high)
        if found is None or found[0] >= wanted:
            high = middle
        else:
            low = found[1]
    at = low
    while at < end:
        stream.seek(at)
        block = stream.read(2 * WINDOW)
        if not block:
            return end
        for match in STAMP.finditer(block):
            if b"".join(match.groups()) >= wanted:
                return at + match.start()
        last = block.rfind(b"\n") + 1
        at += last if 0 < last < len(block) else len(block)
    return end


def stamped(stream: BinaryIO, begin: int, end: int) -> tuple[bytes, int] | None:
    """(stamp, offset) of the first stamped line that begins after ``begin``."""
    at = begin
    while at < end:
        stream.seek(at)
        block = stream.read(min(WINDOW, end - at))
        if not block:
            return None
        newline = block.find(b"\n")
        match = STAMP.search(block, newline + 1) if newline >= 0 else None
        if match:
            return b"".join(match.groups()), at + match.start()
        at += len(block)
    return None


def follow(request: dict[str, Any], emit: Callable[[Any], None], stdin: BinaryIO) -> None:
    """Keys: run_id, last_bytes, since_s (seconds back from now, or None), follow. Returns at the end.

    The end is: everything is sent and ``follow`` is off, the run is over, or the channel is closed.
    """
    folder = _runfolder.folder_of(request["run_id"])
    why = _runfolder.distrust(folder)
    if why:
        raise _runfolder.HostError("refused", f"run folder {folder} {why}")
    runs = _runlist.RunList()
    log = Log(row_of(runs, folder)["log_path"])
    if _runlist.size(log.path) is None and _runlist.size(log.before) is None and not request["follow"]:
        raise _runfolder.HostError("failed", f"there is no log at {log.path}")
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def send(data: bytes) -> None:
        for begin in range(0, len(data), CHUNK):
            text = decoder.decode(data[begin : begin + CHUNK])
            if text:
                emit({"log": text})

    since = request.get("since_s")
    for data in log.start(request["last_bytes"]) if since is None else log.since(time.time() - since):
        send(data)
    quiet_since = time.monotonic()
    poll = select.poll()
    poll.register(stdin.fileno(), select.POLLIN | select.POLLHUP)
    looked = time.monotonic()
    over = False
    while True:
        data = log.more()
        if data:
            send(data)
            quiet_since = time.monotonic()
            continue
        now = time.monotonic()
        if not request["follow"] or (over and now - quiet_since > SETTLE_S):
            break
        if now - looked > 0.5:
            looked = now
            over = not row_of(runs, folder)["alive"]
        if poll.poll(IDLE_S * 1000) and not os.read(stdin.fileno(), 4096):
            break
    send(decoder.decode(b"", final=True).encode())


def row_of(runs: _runlist.RunList, folder: str) -> dict[str, Any]:
    """The row of one run, without a look at all the others."""
    identity = None
    try:
        identity = _runfolder.read_identity(folder)
    except (OSError, ValueError):
        identity = None
    table = {}
    if identity is not None:
        one = _procs.process(identity.pid)
        if one is not None:
            table[one.pid] = one
    return runs.row(os.path.basename(folder), table, _procs.boot_id())
