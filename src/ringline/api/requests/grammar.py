"""Where a text's grammar comes from: GBNF as it is, or a JSON schema that the engine converts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from ringline.api.choices import answered
from ringline.api.errors import bad_request, error_of
from ringline.api.requests.sampling import NOTHING
from ringline.engine.process.client import EngineProcess
from ringline.engine.process.questions import AskGrammar, Said
from ringline.errors import CallerError

__all__ = ["ANY_OBJECT", "GrammarSource", "ResponseFormat"]

ANY_OBJECT: Final = '{"type": "object"}'
_MOST_GRAMMAR: Final = 64 * 1024


class JsonSchemaFormat(msgspec.Struct, frozen=True):
    """The schema of a response_format."""

    schema: msgspec.Raw = NOTHING
    name: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    """response_format: text, json_object (with llama.cpp's `schema`) or json_schema."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    schema: msgspec.Raw = NOTHING

    def wanted_schema(self) -> str | None:
        """The schema, as JSON; None: any text.

        Raises:
            ApiError: the type is unknown, or its schema is missing.
        """
        match self.type:
            case "text":
                return None
            case "json_object":
                return _text(self.schema) or ANY_OBJECT
            case "json_schema":
                given = _text(self.json_schema.schema if self.json_schema else self.schema)
                if given is None:
                    raise bad_request(
                        "response_format.json_schema.schema is missing", "response_format"
                    )
                return given
        raise bad_request(
            f"response_format.type is {self.type!r}: it must be text, json_object or json_schema",
            "response_format",
        )


def _text(raw: msgspec.Raw) -> str | None:
    """The JSON of a field; None: it is not given, or null."""
    return None if bytes(raw) == b"null" else bytes(raw).decode()


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """One of both.

    Attributes:
        grammar: in GBNF.
        schema: as JSON.
        param: the field that it came from.
    """

    grammar: str | None
    schema: str | None
    param: str

    @classmethod
    def of(
        cls,
        *,
        grammar: str | None = None,
        schema: msgspec.Raw = NOTHING,
        response_format: ResponseFormat | None = None,
    ) -> GrammarSource | None:
        """What is wanted of the three fields; None: any text will do.

        Raises:
            ApiError: more than one of them is given, or one makes no sense.
        """
        found = []
        if grammar:
            if len(grammar) > _MOST_GRAMMAR:
                raise bad_request(
                    f"grammar has {len(grammar)} characters: {_MOST_GRAMMAR} are allowed", "grammar"
                )
            found.append(cls(grammar, None, "grammar"))
        if (text := _text(schema)) is not None:
            found.append(cls(None, text, "json_schema"))
        wanted = response_format.wanted_schema() if response_format else None
        if wanted is not None:
            found.append(cls(None, wanted, "response_format"))
        if len(found) > 1:
            names = " and ".join(source.param for source in found)
            raise bad_request(f"{names} exclude each other: give one of them", found[1].param)
        return found[0] if found else None

    async def resolve(self, engine: EngineProcess) -> str:
        """The grammar.

        Raises:
            ApiError: the schema cannot be used; says why.
        """
        if self.schema is None:
            assert self.grammar is not None
            return self.grammar
        schema = self.schema
        try:
            return (await answered(engine.ask(lambda n: AskGrammar(n, schema), Said))).text
        except CallerError as error:
            told = error_of(error)
            told.param = self.param
            raise told from None
