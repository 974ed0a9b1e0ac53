"""The vocabulary of a session's model, for all its connections. Sizes are bytes.

It comes as the metadata of the model's file, in parts; libllama makes a tokenizer of it. Loading
libllama takes a moment, so nothing of it happens before the first vocabulary is whole.
"""

from __future__ import annotations

import hashlib
import threading

from ringline.errors import RefusedError
from ringline.llama.model import Model
from ringline.llama.vocabulary import load_vocabulary
from ringline.server.limits import MOST_VOCABULARY

__all__ = ["SessionVocabulary"]


class SessionVocabulary:
    """One vocabulary, which stays until the session ends: samplers point into it."""

    def __init__(self) -> None:
        #: guards all of the below; not held while libllama loads.
        self._lock = threading.Lock()
        self._parts: dict[int, bytearray] = {}
        self._digest = b""
        self._model: Model | None = None

    @property
    def model(self) -> Model | None:
        """The vocabulary, as a model without weights; None where none has come yet."""
        return self._model

    def take(self, visitor: int, data: bytes | memoryview) -> None:
        """Take the next bytes that a connection sends.

        Raises:
            RefusedError: that is too much; the bytes of this connection are forgotten.
        """
        with self._lock:
            held = sum(map(len, self._parts.values()))
            if len(data) <= MOST_VOCABULARY - held:
                self._parts.setdefault(visitor, bytearray()).extend(data)
                return
            self._parts.pop(visitor, None)
        raise RefusedError(
            f"a vocabulary of more than {MOST_VOCABULARY} bytes, or several at once, is too large",
            rule="limit-vocabulary",
        )

    def finish(self, visitor: int) -> None:
        """All has come from this connection: load it, unless the session has the same already.

        Raises:
            RefusedError: the session has another vocabulary.
            CallerError: libllama cannot use it.
            LibraryError: llama-cpp-python is missing or has another version.
        """
        with self._lock:
            data = self._parts.pop(visitor, bytearray())
            digest = hashlib.sha256(data).digest()
            if self._has(digest):
                return
        model = load_vocabulary(data)
        if not self._adopt(model, digest):
            model.close()
            with self._lock:
                self._has(digest)

    def _adopt(self, model: Model, digest: bytes) -> bool:
        """Keep a vocabulary; False where another connection was faster."""
        with self._lock:
            if self._model is not None:
                return False
            self._model, self._digest = model, digest
            return True

    def _has(self, digest: bytes) -> bool:
        """Whether the session has this vocabulary; RefusedError where it has another one."""
        if self._model is not None and self._digest != digest:
            raise RefusedError("this session has the vocabulary of another model already")
        return self._model is not None

    def leave(self, visitor: int) -> None:
        """A connection has ended."""
        with self._lock:
            self._parts.pop(visitor, None)
