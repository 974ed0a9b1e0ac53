"""Errors of fields, with the name of the field in `param`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ringline.api.choices import Wish
from ringline.api.errors import bad_request, error_of
from ringline.api.requests.sampling import GenerationFields
from ringline.errors import CallerError

__all__ = ["checked_wishes"]


def checked_wishes(make: Callable[[], Sequence[Wish]], *, count: int, room: int) -> Sequence[Wish]:
    """Make wishes; a value that cannot be is told with its field.

    Args:
        make: makes them.
        count: how many there will be.
        room: how many requests the server takes at once; more could never be taken.

    Raises:
        ApiError: which field it is, or that there are too many.
    """
    if count > room:
        raise bad_request(
            f"the request wants {count} texts and this server takes {room} at once: ask for fewer"
        )
    fields = dict.fromkeys(GenerationFields.__struct_fields__)
    try:
        return make()
    except CallerError as error:
        raise error_of(error, fields=fields) from None
