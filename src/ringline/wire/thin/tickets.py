"""Tickets come in chains: each is made of the one before, so that it need not be sent.

A chain begins with 16 random bytes. Whoever does not know them cannot guess a later ticket.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from ringline.wire.thin.codes import Reader, put_varint, wrong
from ringline.wire.thin.skeletons import Item
from ringline.wire.thin.tables import Table

__all__ = ["MOST_CHAINS", "Chains", "next_ticket"]

MOST_CHAINS: Final = 64
_SIZE: Final = 16
_PERSON: Final = b"ringline-ticket"


def next_ticket(ticket: bytes) -> bytes:
    """The ticket that follows `ticket` in its chain; both are 16 bytes."""
    return blake2b(ticket, digest_size=_SIZE, person=_PERSON).digest()


class Chains:
    """The ticket that each known chain will give next."""

    __slots__ = ("_next", "_numbers")

    def __init__(self) -> None:
        self._next: Table[bytes] = Table(MOST_CHAINS)
        self._numbers: dict[bytes, int] = {}  # next ticket -> number of the chain

    def encode(self, item: Item, ticket: bytes, out: bytearray) -> bool:
        """Code one ticket; True: the item's chain gives it, nothing was written.

        Otherwise: the number of the chain + 1, or 0 and the ticket, which begins a chain.
        """
        chain = item.last
        if chain is not None and self._next.values[chain] == ticket:
            self._advance(item, chain, ticket)
            return True
        chain = self._numbers.get(ticket)
        put_varint(out, 0 if chain is None else chain + 1)
        if chain is None:
            out += ticket
            self._begin(item, ticket)
        else:
            self._advance(item, chain, ticket)
        return False

    def predicted(self, item: Item) -> bytes:
        """The ticket that encode() wrote nothing for.

        Raises:
            ProtocolError: the item has no chain yet.
        """
        if item.last is None:
            raise wrong("a ticket is said to continue a chain, but none was used at its place")
        ticket = self._next.values[item.last]
        self._advance(item, item.last, ticket)
        return ticket

    def decode(self, item: Item, reader: Reader) -> bytes:
        """Read what encode() wrote.

        Raises:
            ProtocolError: there is no such chain.
        """
        chain = reader.varint(len(self._next.values)) - 1
        if chain < 0:
            ticket = reader.take(_SIZE)
            self._begin(item, ticket)
        else:
            ticket = self._next.values[chain]
            self._advance(item, chain, ticket)
        return ticket

    def _begin(self, item: Item, ticket: bytes) -> None:
        following = next_ticket(ticket)
        item.last, gone = self._next.add(following)
        if gone is not None:
            self._forget(gone, item.last)
        self._numbers[following] = item.last

    def _advance(self, item: Item, chain: int, ticket: bytes) -> None:
        item.last = chain
        self._forget(ticket, chain)
        following = self._next.values[chain] = next_ticket(ticket)
        self._numbers[following] = chain
        self._next.use(chain)

    def _forget(self, ticket: bytes, chain: int) -> None:
        # Two chains may give the same ticket: the entry may be the other one's.
        if self._numbers.get(ticket) == chain:
            del self._numbers[ticket]
