"""What waits on a connection becomes frames, or steps that hold the very same commands."""

from __future__ import annotations

from ringline.client.counters import Traffic
from ringline.client.outbox import Outbox
from ringline.wire.commands import Command
from ringline.wire.frames import REQUEST_HEADER
from ringline.wire.thin import Decoder, Encoder
from ringline.wire.thin.layouts import MOST_COMMANDS

RECOMPUTE = (Command.GRAPH_RECOMPUTE, bytes(4))
#: nothing that a step may hold.
HELLO = (Command.HELLO, bytes(24))


def sent(commands, *, encoded):
    """The frames that these commands become: (command, body), and what was counted."""
    traffic = Traffic()
    outbox = Outbox(traffic)
    outbox.encoder = Encoder() if encoded else None
    for command, body in commands:
        outbox.add(command, (body[:1], body[1:]))
    data, frames = b"".join(outbox.frames(outbox.take())), []
    while data:
        number, size = REQUEST_HEADER.unpack_from(data)
        frames.append((number, data[REQUEST_HEADER.size :][:size]))
        data = data[REQUEST_HEADER.size + size :]
    return frames, traffic


def unpacked(frames):
    """All commands in order, those of steps among them."""
    decoder, found = Decoder(), []
    for number, body in frames:
        inside = decoder.decode(memoryview(body)) if number == Command.STEP else [(number, body)]
        found += [(int(command), bytes(part)) for command, part in inside]
    return found


def test_without_an_encoder_each_command_is_a_frame():
    frames, traffic = sent([RECOMPUTE, HELLO], encoded=False)
    assert frames == [RECOMPUTE, HELLO]
    assert traffic.command_bytes == {"GRAPH_RECOMPUTE": 13, "HELLO": 33}


def test_what_a_step_may_not_hold_keeps_its_place_between_steps():
    commands = [RECOMPUTE, RECOMPUTE, HELLO, RECOMPUTE]
    frames, traffic = sent(commands, encoded=True)
    assert [number for number, _ in frames] == [Command.STEP, Command.HELLO, Command.STEP]
    assert unpacked(frames) == commands
    assert traffic.commands == {"GRAPH_RECOMPUTE": 3, "STEP": 2, "HELLO": 1}
    assert traffic.command_bytes["GRAPH_RECOMPUTE"] == 0


def test_more_than_a_step_may_hold_become_several():
    commands = [RECOMPUTE] * (2 * MOST_COMMANDS + 1)
    frames, _ = sent(commands, encoded=True)
    assert [number for number, _ in frames] == [Command.STEP] * 3
    assert unpacked(frames) == commands


def test_it_counts_bytes_and_graphs_until_they_are_taken():
    outbox = Outbox(Traffic())
    outbox.add(Command.PING, ())
    outbox.add(*RECOMPUTE[:1], (RECOMPUTE[1],))
    assert (len(outbox), outbox.size, outbox.graphs) == (2, 9 + 13, 1)
    outbox.take()
    assert (len(outbox), outbox.size, outbox.graphs) == (0, 0, 0)
