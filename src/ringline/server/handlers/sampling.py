"""Level 5: tokens are chosen where the logits are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ringline.errors import LibraryError, RefusedError, RinglineError
from ringline.server.context import Context
from ringline.server.handlers.tensors import Bytes, read
from ringline.wire.messages import Message
from ringline.wire.sampling import (
    KeepRows,
    ReadKept,
    Sample,
    SamplerFree,
    SamplerNew,
    VocabularyPart,
)
from ringline.wire.tensor import Tensor

#: ggml_type.
_F32: Final = 0
_F32_SIZE: Final = 4


def keep_rows(request: KeepRows, context: Context) -> None:
    """Copy rows of logits as they are at this point of the stream."""
    region = context.registry.resolve(request.tensor)
    kind = Tensor.unpack(request.tensor).type
    if kind != _F32:
        raise RefusedError(f"rows of logits are f32, not of type {kind}")
    if request.width == 0 or request.size % (_F32_SIZE * request.width):
        raise RefusedError(f"{request.size} bytes are no rows of {request.width} logits")
    region.check(request.offset, request.size)
    context.samplers.rows.check_room(request.size)
    context.samplers.rows.keep(read(region, request.offset, request.size), request.width)


def sampler_new(request: SamplerNew, context: Context) -> None:
    """Make a sampler; one that cannot be made says so when it is used."""
    context.samplers.add(request.sampler, request.text, request.tokens, context.session.vocabulary)


def sampler_free(request: SamplerFree, context: Context) -> None:
    """Forget a sampler, if there is one of this number."""
    context.samplers.free(request.sampler)


def sample(request: Sample, context: Context) -> Sequence[Bytes]:
    """Choose a token for each row."""
    return [context.samplers.sample(request, context.session.vocabulary)]


def read_kept(request: ReadKept, context: Context) -> Sequence[Bytes]:
    """The rows themselves."""
    return context.samplers.rows.read(request.rows)


def vocabulary(request: VocabularyPart, context: Context) -> Message:
    """Take a part of the vocabulary in; the last one makes it."""
    found = context.session.vocabulary
    found.take(context.visitor, request.data)
    if request.part:
        try:
            found.finish(context.visitor)
        except (RefusedError, LibraryError):
            raise
        except RinglineError as error:
            raise RefusedError(str(error)) from None
    return VocabularyPart.Reply(1)
