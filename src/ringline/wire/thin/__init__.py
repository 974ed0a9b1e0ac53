"""The codec of extension level 5: the commands of a decode step as one small body, and back.

A step of a text under way is almost the step before: the same commands about the same tensors,
positions one further, a mask with one more zero a row. Both ends of a connection remember what was
sent; what is told is the difference. No socket, no thread; sizes are bytes. docs/protocol.md
describes the code byte by byte.

    layouts       which commands, and which bytes of a body change
    steps         the frame of a body, the digest
    skeletons     the commands of a step without what changes
    definitions, descriptors   how a new skeleton is told
    channels, fields           data: what is predicted, and how the rest is told
    tickets, graphs            the other things that change
    encoder, decoder           the two ends

A codec's two ends belong to one connection and to one thread at a time each.
"""

from ringline.wire.thin.decoder import Decoder
from ringline.wire.thin.encoder import Encoder
from ringline.wire.thin.tickets import next_ticket

__all__ = ["Decoder", "Encoder", "next_ticket"]
