"""Errors as OpenAI's clients expect them: {"error": {message, type, param, code}}."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ringline.errors import BusyError, CallerError, PromptTooLongError, RinglineError

__all__ = ["ApiError", "bad_request", "error_of", "install", "unavailable"]

#: seconds after which a client may ask again, where the server has no better idea.
_RETRY_SECONDS = 2
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
}


class ApiError(Exception):
    """What a client is told instead of an answer.

    Attributes:
        status: of HTTP.
        message: a sentence.
        param: the field that is wrong, or None.
        code: a word for programs, or None.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    def body(self) -> bytes:
        """The JSON object that the client gets, also as an event of a stream."""
        kind = _TYPES.get(self.status, "server_error")
        facts = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": facts})

    def response(self) -> Response:
        """The answer of HTTP."""
        headers = {"Retry-After": str(_RETRY_SECONDS)} if self.status == 503 else {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return Response(self.body(), self.status, headers, media_type="application/json")


def bad_request(message: str, param: str | None = None) -> ApiError:
    """The client has to ask for something else."""
    return ApiError(400, message, param=param)


def unavailable(message: str, code: str) -> ApiError:
    """The same request may be answered later."""
    return ApiError(503, message, code=code)


def error_of(error: RinglineError, *, fields: Mapping[str, str] | None = None) -> ApiError:
    """Turn an error of ours into what the client is told.

    Args:
        error: what happened.
        fields: how a sentence about a field begins, and the field's name.
    """
    message = str(error)
    about = (field for start, field in (fields or {}).items() if message.startswith(f"{start} "))
    param = next(about, None)
    match error:
        case BusyError():
            return unavailable(message, "queue_full")
        case PromptTooLongError():
            return ApiError(400, message, param=param, code="context_length_exceeded")
        case CallerError():
            return bad_request(message, param)
        case _:
            return unavailable(message, "engine_failed")


def install(app: FastAPI) -> None:
    """Have every error of an app told in this shape."""
    app.add_exception_handler(ApiError, _told)
    app.add_exception_handler(RinglineError, _told)
    app.add_exception_handler(HTTPException, _told)
    app.add_exception_handler(Exception, _unexpected)


async def _told(request: Request, error: Exception) -> Response:
    match error:
        case ApiError():
            return error.response()
        case RinglineError():
            return error_of(error).response()
        case HTTPException(status_code=404):
            return ApiError(404, f"there is nothing at {request.url.path}").response()
        case HTTPException(status_code=405):
            headers = error.headers or {}
            takes = f"{request.url.path} takes {headers.get('Allow', 'other methods')}"
            told = ApiError(405, f"{takes}, and not {request.method}").response()
            told.headers.update(headers)
            return told
        case HTTPException():
            return ApiError(error.status_code, str(error.detail)).response()
    return await _unexpected(request, error)


async def _unexpected(request: Request, error: Exception) -> Response:
    phrase = HTTPStatus.INTERNAL_SERVER_ERROR.phrase
    return ApiError(500, f"{phrase}: the server's log says more").response()
