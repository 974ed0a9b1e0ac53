"""Bodies: read up to a limit, decoded into a struct; what is wrong is one sentence and a 400."""

from __future__ import annotations

import asyncio
import re
from typing import Final, TypeVar

import msgspec
from fastapi import Request

from ringline.api.errors import ApiError, bad_request

__all__ = ["MOST_BODY", "read_body"]

T = TypeVar("T")

#: bytes; a prompt of a million tokens fits.
MOST_BODY: Final = 16 * 1024 * 1024
_BODY_SECONDS: Final = 60.0
#: how msgspec ends a sentence about a field: - at `$.messages[0].role`
_PLACE = re.compile(r" - at `\$\.?(?P<place>[^`]*)`$")
_FIELD = re.compile(r"required field `(?P<name>[^`]+)`")


async def read_body(request: Request, kind: type[T]) -> T:
    """Read the body of a request.

    Args:
        request: whose.
        kind: the struct that its JSON has to be.

    Raises:
        ApiError: it is too large or too slow, no JSON, or a field is missing or has a wrong type.
    """
    body = await _bytes_of(request)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise bad_request("the body is nested too deeply") from None


async def _bytes_of(request: Request) -> bytearray:
    """The body.

    Raises:
        ApiError: it is too large, or takes too long to come.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > MOST_BODY:
                    raise ApiError(413, f"the body is larger than {MOST_BODY} bytes")
    except TimeoutError:
        raise ApiError(408, f"the body did not come within {_BODY_SECONDS:g} s") from None
    return body


def _wrong_field(sentence: str) -> ApiError:
    found = _PLACE.search(sentence)
    place = found["place"] if found else ""
    cause = _PLACE.sub("", sentence)
    missing = _FIELD.search(cause)
    if missing:
        param = ".".join(filter(None, (place, missing["name"])))
        return bad_request(f"the field {param} is missing", param)
    return bad_request(f"{place or 'the body'}: {cause[:1].lower()}{cause[1:]}", place or None)
