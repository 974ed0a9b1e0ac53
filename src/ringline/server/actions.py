"""What a connection may ask for, as one table per role and level: looked up once a command."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final

from ringline.server.handlers import HANDLERS, Handler
from ringline.wire.commands import RULES, Command, Reply
from ringline.wire.extension import Role
from ringline.wire.messages import AllocBuffer, CopyTensor, Message, SetTensorHash

__all__ = ["Action", "actions_for"]

#: a peer may write, and ask whether that has been done; it may read nothing and compute nothing.
_FOR_PEERS: Final = frozenset(
    {
        Command.SET_TENSOR,
        Command.SET_TENSORS,
        Command.PEER_DATA,
        Command.PEER_BARRIER,
        Command.PING,
    }
)
#: these read their bodies piece by piece, or hold other commands: none has a handler.
_STREAMED: Final = frozenset(
    {Command.SET_TENSOR, Command.SET_TENSORS, Command.PEER_DATA, Command.STEP}
)
#: the replies of the base protocol that have room for "no".
_REFUSALS: Final[dict[Command, Message]] = {
    Command.ALLOC_BUFFER: AllocBuffer.Reply(0, 0),
    Command.COPY_TENSOR: CopyTensor.Reply(0),
    Command.SET_TENSOR_HASH: SetTensorHash.Reply(0),
}


@dataclass(frozen=True, slots=True)
class Action:
    """One command as a connection sees it.

    Attributes:
        command: which.
        least, most: allowed sizes of its body, bytes.
        answered: whether it has a reply.
        handler: what to call; None: its body is read piece by piece.
        refusal: the reply that says no in the base protocol, where there is one.
    """

    command: Command
    least: int
    most: int
    answered: bool
    handler: Handler | None
    refusal: Message | None


def _most(command: Command, role: Role) -> int:
    """Largest body; a client may only void a ticket by PEER_DATA, which carries no data."""
    rule = RULES[command]
    return rule.least if command is Command.PEER_DATA and role is not Role.PEER else rule.most


@functools.cache
def actions_for(role: Role, level: int) -> dict[int, Action]:
    """The commands that a connection of this role and extension level may send, by number."""
    allowed = _FOR_PEERS if role is Role.PEER else HANDLERS.keys() | _STREAMED
    return {
        int(command): Action(
            command,
            RULES[command].least,
            _most(command, role),
            RULES[command].reply is not Reply.NONE,
            HANDLERS.get(command),
            _REFUSALS.get(command),
        )
        for command in allowed
        if RULES[command].level <= level
    }
