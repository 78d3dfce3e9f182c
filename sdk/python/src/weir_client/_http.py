"""HTTP/1.1 as far as a client of one server needs it, for blocking sockets and for asyncio.

The timeout applies to a call in total, so each read and write gets the remaining time. http.client has
only a timeout for each operation, and does not report whether an answer began.
"""

from __future__ import annotations

import asyncio
import re
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult

from ._errors import Cause, NoDecision, Undecided
from ._fork import after_fork

MAX_IDLE = 64
_MAX_HEAD = 64 << 10
_IDLE_SECONDS = 30.0
_READ = 64 << 10
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) (\d{3})(?: .*)?")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})(?:[ \t]*;.*)?")


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer. The names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Malformed(Exception):
    """The answer is not HTTP."""


class Reading:
    """Reads one answer from the bytes of a connection."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._buffer = bytearray()
        self._status = 0  # until the header is complete
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._left: int | None = None  # bytes of the body; None if it ends with the connection
        self._chunked = False
        self._trailers = False
        self.began = False
        self.keep_alive = False
        self.answer: Answer | None = None

    def feed(self, data: bytes) -> None:
        """Adds bytes that were read. No bytes mean the end of the connection."""
        if not data:
            if self._status and self._left is None and not self._chunked:
                self._finish()
                return
            raise ConnectionResetError("the connection was closed before the answer was complete")
        self.began = True
        self._buffer += data
        while self.answer is None and self._advance():
            pass
        if self.answer is not None and self._buffer:
            self.keep_alive = False  # more bytes than the answer has

    def _advance(self) -> bool:
        """Reads a piece, if it is complete."""
        if not self._status:
            return self._read_head()
        if self._trailers:
            line = self._line()
            if line == b"":
                self._finish()
            return line is not None
        if self._chunked and self._left == 0:
            return self._read_chunk_size()
        return self._read_body()

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n")
        if end < 0:
            if len(self._buffer) > _MAX_HEAD:
                raise _Malformed("a line of the answer is too long")
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _read_head(self) -> bool:
        if not self._buffer.startswith(b"HTTP/"[: len(self._buffer)]):
            raise _Malformed("the answer is not HTTP")
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _MAX_HEAD:
                raise _Malformed("the head of the answer is too long")
            return False
        first, *lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + 4]
        found = _STATUS_LINE.fullmatch(first)
        if not found:
            raise _Malformed("the answer is not HTTP/1")
        status = int(found[2])
        if 100 <= status < 200:
            return True  # another header follows
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon:
                raise _Malformed("a header of the answer has no colon")
            key = name.decode("latin-1").lower()
            text = value.strip().decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        self._status, self._headers = status, headers
        self.keep_alive = found[1] == b"1" and "close" not in headers.get("connection", "").lower()
        self._begin_body()
        return True

    def _begin_body(self) -> None:
        length = self._headers.get("content-length")
        if self._status in (204, 304):
            self._left = 0
            self._finish()
        elif "transfer-encoding" in self._headers:
            if self._headers["transfer-encoding"].lower() != "chunked":
                raise _Malformed("the answer has an unknown transfer encoding")
            self._chunked, self._left = True, 0
        elif length is None:
            self.keep_alive = False
        else:
            if not (length.isascii() and length.isdecimal()):
                raise _Malformed("the answer has a length that is no number")
            self._left = int(length)
            self._refuse_longer(self._left)
            if self._left == 0:
                self._finish()

    def _read_chunk_size(self) -> bool:
        line = self._line()
        if line is None:
            return False
        found = _CHUNK_SIZE.fullmatch(line)
        if not found:
            raise _Malformed("a chunk of the answer has no size")
        size = int(found[1], 16)
        if size == 0:
            self._trailers = True
        else:
            self._refuse_longer(len(self._body) + size)
            self._left = size + 2  # and the line break after it
        return True

    def _read_body(self) -> bool:
        take = len(self._buffer) if self._left is None else min(self._left, len(self._buffer))
        if take == 0:
            return False
        self._body += self._buffer[:take]
        del self._buffer[:take]
        if self._left is None:
            self._refuse_longer(len(self._body))
            return False
        self._left -= take
        if self._left == 0:
            if not self._chunked:
                self._finish()
            elif self._body.endswith(b"\r\n"):
                del self._body[-2:]
            else:
                raise _Malformed("a chunk of the answer is longer than its size")
        return True

    def _refuse_longer(self, size: int) -> None:
        if size > self._most:
            error = ValueError(f"the answer has more than {self._most} bytes")
            raise Undecided(NoDecision("invalid_answer", self._status, error=error))

    def _finish(self) -> None:
        self.answer = Answer(self._status, self._headers, bytes(self._body))


def failed(error: BaseException, reading: Reading | None) -> Undecided:
    """Classifies an error of a connection."""
    if isinstance(error, Undecided):
        return error
    cause: Cause = "connection_lost"
    if isinstance(error, TimeoutError):
        cause = "timeout"
    elif isinstance(error, ConnectionRefusedError):
        cause = "connection_refused"
    elif isinstance(error, _Malformed):
        cause = "invalid_answer"
    elif isinstance(error, OSError) and "Multiple exceptions" in str(error):
        # asyncio joins the errors of several addresses in one text.
        cause = "connection_refused" if "Connect call failed" in str(error) else cause
    began = reading is not None and reading.began
    resendable = not began and cause in ("connection_refused", "connection_lost")
    return Undecided(NoDecision(cause, error=error), resendable)


class Address:
    """The address of a server."""

    def __init__(self, url: SplitResult) -> None:
        assert url.hostname is not None
        self.host = url.hostname
        self.port = url.port or (443 if url.scheme == "https" else 80)
        self.tls = ssl.create_default_context() if url.scheme == "https" else None
        self.path = url.path.rstrip("/")
        self.name = url.netloc

    def request(self, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
        head = [f"POST {self.path}{path} HTTP/1.1", f"Host: {self.name}", f"Content-Length: {len(body)}"]
        head += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body


class Connections:
    """A pool of blocking connections. It is thread-safe."""

    def __init__(self, address: Address, connect_seconds: float) -> None:
        self._address = address
        self._connect_seconds = connect_seconds
        self._idle: deque[tuple[socket.socket, float]] = deque()  # with the time since which it is idle
        self.forked()
        after_fork(self)

    def forked(self) -> None:
        self._lock = threading.RLock()  # as in Returns
        self.close()  # they belong to the other process

    def exchange(self, request: bytes, until: float, most: int) -> Answer:
        """Sends a request and reads its answer, until a deadline of time.monotonic."""
        reading = None
        connection = None
        try:
            connection = self._take() or self._connect(until)
            connection.settimeout(_left(until))
            connection.sendall(request)
            reading = Reading(most)
            while reading.answer is None:
                connection.settimeout(_left(until))
                reading.feed(connection.recv(_READ))
        except (OSError, _Malformed, Undecided) as error:
            if connection is not None:
                connection.close()
            raise failed(error, reading) from None
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        if reading.keep_alive:
            self._give(connection)
        else:
            connection.close()
        return reading.answer

    def close(self) -> None:
        """Closes idle connections."""
        with self._lock:
            idle, self._idle = self._idle, deque()
        for connection, _ in idle:
            connection.close()

    def _take(self) -> socket.socket | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection, since = self._idle.pop()
            # If an idle connection is readable, the server has closed it.
            if time.monotonic() - since < _IDLE_SECONDS and not _readable(connection):
                return connection
            connection.close()

    def _give(self, connection: socket.socket) -> None:
        with self._lock:
            self._idle.append((connection, time.monotonic()))
            oldest = self._idle.popleft()[0] if len(self._idle) > MAX_IDLE else None
        if oldest is not None:
            oldest.close()

    def _connect(self, until: float) -> socket.socket:
        address = self._address
        seconds = min(self._connect_seconds, _left(until))
        connection = socket.create_connection((address.host, address.port), seconds)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls is not None:
                connection.settimeout(_left(until))
                return address.tls.wrap_socket(connection, server_hostname=address.host)
        except BaseException:
            connection.close()
            raise
        return connection


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("the timeout of the client has passed")
    return left


def _readable(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


class AsyncConnections:
    """A pool of asyncio connections, for one event loop at a time."""

    def __init__(self, address: Address, connect_seconds: float) -> None:
        self._address = address
        self._connect_seconds = connect_seconds
        self._idle: deque[tuple[asyncio.StreamReader, asyncio.StreamWriter, float]] = deque()
        self._inherited: list[object] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        after_fork(self)

    def forked(self) -> None:
        # Kept, because a closed one would leave the selector, which the parent's event loop shares.
        self._inherited.append(self._idle)
        self._idle = deque()

    async def exchange(self, request: bytes, until: float, most: int) -> Answer:
        """Sends a request and reads its answer, until a deadline of time.monotonic."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # connections belong to the loop that opened them
            self._loop = loop
            self._idle.clear()
        reading = None
        writer = None
        try:
            async with asyncio.timeout(_left(until)):
                reader, writer = self._take() or await self._connect()
                writer.write(request)
                await writer.drain()
                reading = Reading(most)
                while reading.answer is None:
                    reading.feed(await reader.read(_READ))
        except (OSError, _Malformed, Undecided) as error:
            _abort(writer)
            raise failed(error, reading) from None
        except BaseException:
            _abort(writer)
            raise
        if reading.keep_alive:
            self._give(reader, writer)
        else:
            writer.close()
        return reading.answer

    async def close(self) -> None:
        """Closes idle connections."""
        idle, self._idle = self._idle, deque()
        for _, writer, _ in idle:
            writer.close()
        for _, writer, _ in idle:
            try:
                await writer.wait_closed()
            except OSError:
                pass  # it was lost before

    def _take(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        while self._idle:
            reader, writer, since = self._idle.pop()
            if time.monotonic() - since < _IDLE_SECONDS and not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        return None

    def _give(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._idle.append((reader, writer, time.monotonic()))
        if len(self._idle) > MAX_IDLE:
            self._idle.popleft()[1].close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        address = self._address
        name = address.host if address.tls else None
        async with asyncio.timeout(self._connect_seconds):
            return await asyncio.open_connection(address.host, address.port, ssl=address.tls, server_hostname=name)


def _abort(writer: asyncio.StreamWriter | None) -> None:
    if writer is not None:
        writer.transport.abort()
