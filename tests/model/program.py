"""What the client of the model asks for: the same commands as client/transfer.py, step by step.

A step sends `ubatches` pieces through all stages. The input of a stage has `copies` places that are
used in turn, as libllama does; its output has one. The last stage's results are read at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.state import Command, Tag


class Op(NamedTuple):
    """One thing that a client does.

    Attributes:
        kind: put (queue a command), wait (until a node has done all), set (queue a SET of what was
            fetched).
        node: where.
        command: what is put; the SET to be filled in.
    """

    kind: str
    node: int
    command: Command = Command("", -1)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """How large the world is, and what may go wrong in it.

    Attributes:
        stages: the node of each stage, in order.
        path: rendezvous, copy-to, hub, or push: what carries data from stage to stage.
        lanes, steps, ubatches, copies: see above; each lane has buffers of its own.
        room, queue: parcels that an inbox and a worker's queue hold.
        losses: parcels that may get lost, each in any way; deadlines: RECVs that may give up.
        barrier: copy-to waits until the destination has done all that was sent.
        in_stream: data are written when their RECV is reached, not when they come.
        snapshot: SEND copies the bytes; if not, the worker reads them when it sends.
        patient: RECV does not give up while data arrive.
        remembers: data that come after their RECV gave up are thrown away.
        voids: after a failure the client gives up the tickets of the step.
    """

    stages: tuple[int, ...] = (0, 1)
    path: str = "rendezvous"
    lanes: int = 1
    steps: int = 1
    ubatches: int = 2
    copies: int = 1
    room: int = 1
    queue: int = 2
    losses: int = 0
    deadlines: int = 0
    barrier: bool = True
    in_stream: bool = True
    snapshot: bool = True
    patient: bool = True
    remembers: bool = True
    voids: bool = True

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return max(self.stages) + 1

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The nodes between which data go."""
        neighbours = zip(self.stages, self.stages[1:], strict=False)
        return sorted({pair for pair in neighbours if pair[0] != pair[1]})

    @property
    def per_lane(self) -> int:
        """Buffers of one lane: for each stage its inputs and its output."""
        return len(self.stages) * (self.copies + 1)

    def entrance(self, lane: int, stage: int, ubatch: int) -> int:
        """The buffer that a stage reads."""
        return lane * self.per_lane + stage * (self.copies + 1) + ubatch % self.copies

    def exit(self, lane: int, stage: int) -> int:
        """The buffer that a stage writes."""
        return lane * self.per_lane + stage * (self.copies + 1) + self.copies


def program(scenario: Scenario, lane: int, step: int, attempt: int) -> tuple[Op, ...]:
    """One step of a lane; what failed once goes through the hub."""
    path = "hub" if attempt else scenario.path
    ops: list[Op] = []
    for ubatch in range(scenario.ubatches):
        for stage, node in enumerate(scenario.stages):
            entrance = scenario.entrance(lane, stage, ubatch)
            tag = Tag(lane, step, attempt, ubatch, stage)
            if stage == 0:
                ops.append(Op("put", node, Command("SET", entrance, value=tag)))
            else:
                ops += _boundary(scenario, path, tag, entrance)
            made = tag._replace(stage=stage + 1)
            out = scenario.exit(lane, stage)
            compute = Command("COMPUTE", entrance, expected=tag, value=made, target=out)
            ops.append(Op("put", node, compute))
        ops.append(Op("put", node, Command("GET", out, expected=made)))
    return (*ops, Op("wait", scenario.stages[-1]))


def _boundary(scenario: Scenario, path: str, tag: Tag, entrance: int) -> Iterator[Op]:
    """Bring the output of the stage before `tag.stage` to its input, `entrance`."""
    source, target = scenario.stages[tag.stage - 1], scenario.stages[tag.stage]
    out = scenario.exit(tag.lane, tag.stage - 1)
    if path == "rendezvous":
        send = Command("SEND", out, target=entrance, ticket=tag, node=target)
        yield Op("put", source, send)
        yield Op("put", target, Command("RECV", entrance, ticket=tag))
    elif path == "push":
        push = Command("PUSH", out, target=entrance, ticket=tag, node=target)
        yield Op("put", source, push)
        yield Op("wait", source)
    elif path == "copy-to":
        if scenario.barrier:
            yield Op("wait", target)
        yield Op("put", source, Command("COPY", out, target=entrance))
        yield Op("wait", source)
    else:
        yield Op("put", source, Command("FETCH", out))
        yield Op("wait", source)
        yield Op("set", target, Command("SET", entrance))
