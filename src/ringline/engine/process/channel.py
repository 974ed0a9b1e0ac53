"""Messages over a local socket: `size u32 | msgpack[size]`, little-endian. Sizes are bytes.

One thread reads. Any thread sends: what it sends goes into a queue, and one thread takes all that
is there and writes it in one piece, so that whoever decodes never waits for a reader that is slow.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
from typing import Final, Generic, TypeVar

import msgspec

from ringline.errors import CallerError, EngineError

__all__ = ["Channel"]

T = TypeVar("T")

_HEADER: Final = struct.Struct("<I")
#: a prompt of a million tokens fits; more is not what the other end would say.
_MOST: Final = 64 * 1024 * 1024


class Channel(Generic[T]):
    """One end of a socket. `T` is what the other end says."""

    def __init__(self, end: socket.socket, decoder: msgspec.msgpack.Decoder[T]) -> None:
        """Take over a connected stream socket.

        Args:
            end: ours; closed with the channel.
            decoder: of what comes.
        """
        self._socket = end
        self._reader = end.makefile("rb")
        self._decoder = decoder
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="channel", daemon=True)
        self._writer.start()

    def send(self, message: msgspec.Struct) -> bool:
        """Queue a message; False: the other end has gone, and the message is dropped.

        Raises:
            CallerError: a number in it has more than 64 bits.
        """
        try:
            self._queue.put(msgspec.msgpack.encode(message))
        except OverflowError:
            raise CallerError("a number is too large: it must fit into 64 bits") from None
        return self._writer.is_alive()

    def receive(self) -> T | None:
        """Wait for the next message; None: the other end has gone.

        Raises:
            EngineError: it says what no message is.
        """
        body = self._frame()
        if body is None:
            return None
        try:
            return self._decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise EngineError(
                f"the other end of the engine's socket makes no sense: {error}"
            ) from None

    def close(self) -> None:
        """Write what is queued, if the other end takes it, and close; may be called again."""
        self._queue.put(None)
        self._writer.join(timeout=2.0)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.close()
        self._socket.close()

    def _frame(self) -> bytes | None:
        try:
            header = self._reader.read(_HEADER.size)
            if len(header) < _HEADER.size:
                return None
            (size,) = _HEADER.unpack(header)
            if size > _MOST:
                raise EngineError(f"a message of {size} bytes came over the engine's socket")
            body = self._reader.read(size)
        except (OSError, ValueError):  # reset, or closed by us
            return None
        return body if len(body) == size else None

    def _write(self) -> None:
        going = True
        while going:
            bodies = [self._queue.get()]
            while not self._queue.empty():
                bodies.append(self._queue.get())
            going = None not in bodies
            frames = bytearray()
            for body in bodies:
                if body is not None:
                    frames += _HEADER.pack(len(body)) + body
            try:
                self._socket.sendall(frames)
            except OSError:
                return
