"""A chat partner over HTTP: any server that speaks OpenAI's streaming chat completions.

Plain http.client: a chat needs one request at a time. Closing the connection stops the answer.
"""

from __future__ import annotations

import http
import http.client
import time
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import urlsplit

import msgspec

from ringline.cli.chat_partner import Reply, Speed, Turn
from ringline.cli.chat_stream import Chunk, Models, Usage, error_message
from ringline.engine.job import Request
from ringline.errors import CallerError, DeadlineError, NetworkError, PeerError
from ringline.settings import CONNECT_TIMEOUT, reply_timeout

__all__ = ["ServerPartner"]

#: of an answer that is no stream: an error is a few hundred bytes.
_MOST_BODY = 1 << 20
_LIMITS = {"length": "cut off by -n or by the server's context"}


class ServerPartner:
    """A server, which is asked for its model at once.

    Attributes:
        model: the name of the model that answers.
    """

    lasting = True

    def __init__(self, url: str, key: str | None, request: Request) -> None:
        """Ask a server who it is.

        Args:
            url: `http://host:port`, with or without /v1 behind it.
            key: an API key, or None.
            request: how each answer is chosen.

        Raises:
            CallerError: the URL cannot be used, or the key. NetworkError, PeerError: the server
                cannot be reached, or is none.
        """
        self._connect, self._path, self._peer = _address(url)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._request = request
        self.model = self._first_model()

    def answer(self, turns: Sequence[Turn]) -> Reply:
        """Begin to answer; see Partner."""
        sampling = self._request.sampling
        body: dict[str, object] = {
            "model": self.model,
            "messages": [{"role": turn.role, "content": turn.content} for turn in turns],
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": sampling.temperature,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if self._request.n_predict >= 0:
            body["max_tokens"] = self._request.n_predict
        begin = time.monotonic()
        asked = self._ask("POST", "/chat/completions", msgspec.json.encode(body))
        return _ServerReply(*asked, begin, self._peer)

    def _first_model(self) -> str:
        connection, response = self._ask("GET", "/models", None)
        try:
            models = msgspec.json.decode(response.read(_MOST_BODY), type=Models)
            return models.data[0].id
        except (msgspec.MsgspecError, UnicodeDecodeError, IndexError):
            raise PeerError(
                f"{self._peer}{self._path}/models does not name a model as OpenAI's API does"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise _network(error, self._peer) from None
        finally:
            connection.close()

    def _ask(
        self, method: str, path: str, body: bytes | None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Send a request, and read the head of its answer.

        Raises:
            CallerError: the server refuses it. NetworkError, PeerError: it failed.
        """
        connection = self._connect()
        headers = {"Content-Type": "application/json", **self._headers}
        try:
            connection.connect()
            connection.sock.settimeout(reply_timeout())
            connection.request(method, self._path + path, body, headers)
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                raise _refusal(response, self._peer)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError | http.client.HTTPException):
                raise _network(error, self._peer) from None
            raise
        return connection, response


class _ServerReply:
    """A stream of server-sent events."""

    def __init__(
        self,
        connection: http.client.HTTPConnection,
        response: http.client.HTTPResponse,
        begin: float,
        peer: str,
    ) -> None:
        self._connection = connection
        self._response = response
        self._peer = peer
        self._begin, self._first, self._last = begin, 0.0, 0.0
        self._usage = Usage()
        self._limit = ""
        self._ended = False

    def __iter__(self) -> Iterator[str]:
        try:
            for chunk in self._chunks():
                text = self._take(chunk)
                if text:
                    self._last = time.monotonic()
                    self._first = self._first or self._last
                    yield text
        except (OSError, http.client.HTTPException) as error:
            raise _network(error, self._peer) from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise PeerError(f"{self._peer}: its stream is not OpenAI's: {error}") from None
        finally:
            self._connection.close()

    def stop(self) -> None:
        self._connection.close()
        if not self._ended:
            self._limit = "stopped"

    def speed(self) -> Speed:
        n_tokens = self._usage.completion_tokens
        details = self._usage.prompt_tokens_details
        seconds = self._last - self._first
        return Speed(
            first_token=self._first - self._begin if self._first else 0.0,
            n_tokens=n_tokens,
            rate=(n_tokens - 1) / seconds if n_tokens and seconds > 0 else 0.0,
            n_prompt=self._usage.prompt_tokens,
            n_reused=(details.cached_tokens if details else None) or 0,
            limit=self._limit,
        )

    def _chunks(self) -> Iterator[Chunk]:
        while line := self._response.readline():
            text = line.strip()
            if text == b"data: [DONE]":
                self._ended = True
                return
            if text.startswith(b"data:"):
                yield msgspec.json.decode(text.removeprefix(b"data:"), type=Chunk)
        raise NetworkError(f"{self._peer}: the stream ended in the middle of an answer")

    def _take(self, chunk: Chunk) -> str:
        if chunk.error is not None:
            raise PeerError(f"{self._peer}: {error_message(chunk.error)}")
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices:
            self._limit = _LIMITS.get(choice.finish_reason or "", self._limit)
        return "".join(choice.delta.content or "" for choice in chunk.choices)


def _address(url: str) -> tuple[Callable[[], http.client.HTTPConnection], str, str]:
    """What connects to a server, the path of its API, its name in sentences."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if parts.scheme not in ("http", "https") or not host:
        raise CallerError(f"--server {url}: write http://HOST:PORT")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    path = parts.path.rstrip("/").removesuffix("/v1")
    return lambda: kind(host, port, timeout=CONNECT_TIMEOUT), f"{path}/v1", parts.netloc


def _refusal(response: http.client.HTTPResponse, peer: str) -> CallerError | PeerError:
    try:
        message = error_message(msgspec.json.decode(response.read(_MOST_BODY)))
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError, http.client.HTTPException):
        message = response.reason
    if response.status in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN):
        return CallerError(f"{peer} wants an API key (--api-key, RINGLINE_API_KEY): {message}")
    if http.HTTPStatus.BAD_REQUEST <= response.status < http.HTTPStatus.INTERNAL_SERVER_ERROR:
        return CallerError(f"{peer} answers {response.status}: {message}")
    return PeerError(f"{peer} answers {response.status}: {message}")


def _network(error: OSError | http.client.HTTPException, peer: str) -> NetworkError:
    if isinstance(error, TimeoutError):
        seconds = reply_timeout()
        return DeadlineError(f"{peer}: nothing came for {seconds:g} s", peer="", seconds=seconds)
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return NetworkError(f"{peer}: the connection failed: {reason or type(error).__name__}")
