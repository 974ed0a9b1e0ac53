"""The body of /v1/embeddings."""

from __future__ import annotations

from typing import Final

import msgspec

from ringline.api.errors import bad_request
from ringline.api.requests.texts import Given, Text, texts_of

__all__ = ["EmbeddingsBody"]

#: inputs of one request, as OpenAI has it.
_MOST_INPUTS: Final = 2048
_FORMATS: Final = ("float", "base64")


class EmbeddingsBody(msgspec.Struct, frozen=True, kw_only=True):
    """The fields; others are ignored."""

    input: Given
    encoding_format: str | None = None
    dimensions: int | None = None

    @property
    def base64(self) -> bool:
        """Whether vectors are wanted as base64 of f32 numbers, little-endian.

        Raises:
            ApiError: another format is.
        """
        wanted = self.encoding_format or _FORMATS[0]
        if wanted not in _FORMATS:
            raise bad_request(
                f"encoding_format is {wanted!r}: it must be one of {', '.join(_FORMATS)}",
                "encoding_format",
            )
        return wanted == "base64"

    def texts(self) -> list[Text]:
        """What is embedded.

        Raises:
            ApiError: there is nothing, or too much.
        """
        texts = texts_of(self.input, "input")
        if len(texts) > _MOST_INPUTS:
            raise bad_request(
                f"input has {len(texts)} entries: {_MOST_INPUTS} are allowed", "input"
            )
        return texts

    def check_width(self, width: int) -> None:
        """Refuse other dimensions than the model's: a vector is no better for being cut.

        Raises:
            ApiError: they were asked for.
        """
        if self.dimensions is not None and self.dimensions != width:
            raise bad_request(
                f"dimensions is {self.dimensions}: this model's vectors have {width}, "
                "and are not shortened",
                "dimensions",
            )
