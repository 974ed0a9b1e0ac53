"""Ask the devices what they are, in a child process.

An accelerator's runtime does not survive a fork once it has been started. The gatekeeper forks all
the time, so it must not ask itself: a child asks, reports JSON over a pipe, and ends.
"""

from __future__ import annotations

import json
import os
import select
import signal
import traceback
from collections.abc import Sequence
from typing import NoReturn

from ringline.errors import CallerError, LibraryError, RinglineError
from ringline.ggml.devices import find_devices
from ringline.net.deadline import Deadline
from ringline.server.limits import PROBE_TIMEOUT
from ringline.server.options import DeviceInfo

__all__ = ["describe_devices"]


def describe_devices(names: Sequence[str]) -> tuple[DeviceInfo, ...]:
    """The devices of this machine that the node will lend.

    Args:
        names: which; none means all accelerators, else the CPU.

    Raises:
        CallerError: a name is unknown, or there is no device.
        LibraryError: the devices cannot be asked; says what happened to the child that did.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _report(writing, names)
    os.close(writing)
    try:
        text = _read_to_end(reading)
    except RinglineError:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        os.close(reading)
        _, status = os.waitpid(pid, 0)
    return _understand(text, os.waitstatus_to_exitcode(status))


def _report(writing: int, names: Sequence[str]) -> NoReturn:
    """The child: write the answer and end, whatever happens."""
    try:
        with os.fdopen(writing, "w") as pipe:
            json.dump(_ask(names), pipe)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def _ask(names: Sequence[str]) -> object:
    try:
        devices = find_devices(list(names))
        return [
            (
                device.name,
                device.description,
                device.kind,
                device.type.name,
                *device.memory(),
                device.alignment(),
                device.max_size(),
            )
            for device in devices
        ]
    except CallerError as error:
        return {"caller": str(error)}
    except RinglineError as error:
        return {"library": str(error)}


def _read_to_end(reading: int) -> bytes:
    deadline = Deadline(PROBE_TIMEOUT)
    text = bytearray()
    poller = select.poll()
    poller.register(reading, select.POLLIN)
    while poller.poll(deadline.left_ms()):
        part = os.read(reading, 65536)
        if not part:
            return bytes(text)
        text += part
    raise LibraryError(f"the devices of this machine gave no answer within {PROBE_TIMEOUT:g} s")


def _understand(text: bytes, code: int) -> tuple[DeviceInfo, ...]:
    if code != 0:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        raise LibraryError(f"the process that asked this machine's devices what they are {how}")
    answer = json.loads(text)
    if isinstance(answer, dict):
        if "caller" in answer:
            raise CallerError(answer["caller"])
        raise LibraryError(answer["library"])
    if not answer:
        raise CallerError("this machine has no device that ggml can use, not even a CPU")
    return tuple(DeviceInfo(*facts) for facts in answer)
