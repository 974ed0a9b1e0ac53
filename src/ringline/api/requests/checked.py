"""Errors of fields, with the name of the field in `param`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ringline.api.choices import Wish
from ringline.api.errors import bad_request, error_of
from ringline.api.requests.sampling import GenerationFields
from ringline.errors import CallerError

__all__ = ["MOST_JOBS", "checked_wishes"]

#: prompts times choices of one request.
MOST_JOBS = 512


def checked_wishes(make: Callable[[], Sequence[Wish]]) -> Sequence[Wish]:
    """Make wishes; a value that cannot be is told with its field.

    Raises:
        ApiError: which field it is, or that there are too many.
    """
    fields = dict.fromkeys(GenerationFields.__struct_fields__)
    try:
        wishes = make()
    except CallerError as error:
        raise error_of(error, fields=fields) from None
    if len(wishes) > MOST_JOBS:
        raise bad_request(
            f"{len(wishes)} texts are too many for one request: {MOST_JOBS} are allowed"
        )
    return wishes
