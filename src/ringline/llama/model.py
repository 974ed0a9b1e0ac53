"""A loaded model: its facts, its vocabulary, its lifetime. Sizes are bytes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from ringline.errors import CallerError
from ringline.interrupts import deliver, held
from ringline.llama.gguf_file import check_model_file
from ringline.llama.library import Check, libllama, no_check
from ringline.llama.loading import LoadOptions, Progress, load_handle

__all__ = ["Model"]

#: longest description that libllama is asked for.
_DESCRIPTION_SIZE = 256
#: room for the bytes of one token at the first try; longer ones ask for what they need.
_PIECE_SIZE = 64


class _Closable(Protocol):
    def close(self) -> None: ...


class Model:
    """A llama_model and its vocabulary. Close it, or use it as a context manager.

    Contexts that are still open are closed with it: they point into it.
    """

    def __init__(self, handle: int, path: Path) -> None:
        self.path = path
        self._library = libllama()
        self._handle: int | None = handle
        self._vocab = self._library.llama_model_get_vocab(handle)
        self._dependants: list[_Closable] = []
        #: number of tokens in the vocabulary; kept because it is read for each row of logits.
        self.n_vocab = int(self._library.llama_vocab_n_tokens(self._vocab))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        devices: Sequence[int] = (),
        n_gpu_layers: int = -1,
        tensor_split: Sequence[float] = (),
        use_mmap: bool = True,
        repack: bool = True,
        progress: Progress | None = None,
        check: Check = no_check,
    ) -> Model:
        """Load a GGUF file, or all shards of a model by the first of them.

        Args:
            path: the file.
            devices: addresses of ggml_backend_dev_t in the order of the layers; none: local CPU.
            n_gpu_layers: layers that go to the devices, counted from the end; negative: all.
            tensor_split: each device's share of these layers; empty: by free memory.
            use_mmap: whether weights are read from a mapping of the file.
            repack: whether the local CPU may re-order weights for speed; off to compare exactly.
            progress: called with the loaded share, 0 to 1; returns False to stop.
            check: called while and after loading; raises what went wrong on a device.

        Raises:
            CallerError: no such file, no GGUF file, a missing shard, a contradictory plan, a file
                that libllama refuses (with its reason), or a load that `progress` stopped.
            LibraryError: llama-cpp-python is missing or has another version.
        """
        file = Path(path)
        check_model_file(file)
        options = LoadOptions(tuple(devices), n_gpu_layers, tuple(tensor_split), use_mmap, repack)
        return cls(load_handle(file, options, progress, check), file)

    def close(self) -> None:
        """Free the model and the contexts that are still open on it; a second call does nothing."""
        handle, self._handle = self._handle, None
        for dependant in self._dependants[::-1]:
            dependant.close()
        self._dependants.clear()
        if handle is not None:
            with held():
                self._library.llama_model_free(handle)
            deliver()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def handle(self) -> int:
        """Address of the llama_model, for this room only.

        Raises:
            CallerError: the model is closed.
        """
        return self._require_open()

    def _require_open(self) -> int:
        if self._handle is None:
            raise CallerError(f"the model {self.path.name} is closed")
        return self._handle

    @property
    def vocab(self) -> Any:
        """Address of the llama_vocab, for this room only.

        Raises:
            CallerError: the model is closed.
        """
        self._require_open()
        return self._vocab

    def adopt(self, dependant: _Closable) -> None:
        """Close `dependant` before this model is freed; for what points into it."""
        self._dependants.append(dependant)

    def disown(self, dependant: _Closable) -> None:
        """Forget a dependant that has been closed."""
        if dependant in self._dependants:
            self._dependants.remove(dependant)

    @property
    def n_layer(self) -> int:
        """Number of layers, without the output layer."""
        return int(self._library.llama_model_n_layer(self.handle))

    @property
    def n_embd(self) -> int:
        """Width of the hidden state, in numbers."""
        return int(self._library.llama_model_n_embd(self.handle))

    @property
    def n_embd_out(self) -> int:
        """Width of an embedding, in numbers."""
        return int(self._library.llama_model_n_embd_out(self.handle))

    @property
    def architecture(self) -> str:
        """What its file calls its architecture, such as `llama` or `bert`."""
        return self.metadata("general.architecture") or ""

    @property
    def encodes_for_decoder(self) -> bool:
        """Whether an encoder reads a text and a decoder of its own writes another (T5)."""
        library, handle = self._library, self.handle
        return bool(
            library.llama_model_has_encoder(handle) and library.llama_model_has_decoder(handle)
        )

    @property
    def n_ctx_train(self) -> int:
        """Context that the model was trained for, in tokens."""
        return int(self._library.llama_model_n_ctx_train(self.handle))

    @property
    def forgets_partly(self) -> bool:
        """Whether a sequence can be cut at any position and goes on from there.

        A recurrent state has no positions, and a sliding window has lost those before it.
        """
        library, handle = self._library, self.handle
        return not (
            library.llama_model_is_recurrent(handle)
            or library.llama_model_is_hybrid(handle)
            or library.llama_model_n_swa(handle) > 0
        )

    @property
    def n_params(self) -> int:
        """Number of parameters."""
        return int(self._library.llama_model_n_params(self.handle))

    @property
    def size_bytes(self) -> int:
        """Size of all weights in the file."""
        return int(self._library.llama_model_size(self.handle))

    @property
    def description(self) -> str:
        """Architecture, size and type of weights, as `llama 135M Q4_1`."""
        buffer = ctypes.create_string_buffer(_DESCRIPTION_SIZE)
        self._library.llama_model_desc(self.handle, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    @property
    def chat_template(self) -> str | None:
        """The model's default chat template (Jinja), or None."""
        template: bytes | None = self._library.llama_model_chat_template(self.handle, None)
        return None if template is None else template.decode("utf-8", "replace")

    def metadata(self, key: str) -> str | None:
        """Return a value of the file's metadata as text, such as `general.name`; None: no such key.

        Arrays have no text: they count as missing.
        """
        function, name = self._library.llama_model_meta_val_str, key.encode()
        size = function(self.handle, name, None, 0)
        if size < 0:
            return None
        buffer = ctypes.create_string_buffer(size + 1)
        function(self.handle, name, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    @property
    def bos(self) -> int | None:
        """The token that begins a text, or None."""
        return _token(self._library.llama_vocab_bos(self.vocab))

    @property
    def eos(self) -> int | None:
        """The token that ends a text, or None. A text may also end with others: see is_end()."""
        return _token(self._library.llama_vocab_eos(self.vocab))

    @property
    def eot(self) -> int | None:
        """The token that ends a turn of a chat, or None."""
        return _token(self._library.llama_vocab_eot(self.vocab))

    @property
    def adds_bos(self) -> bool:
        """Whether tokenize(add_special=True) begins with the token `bos`."""
        return bool(self._library.llama_vocab_get_add_bos(self.vocab))

    def is_end(self, token: int) -> bool:
        """Whether generation ends with this token (end of text, of turn, of message)."""
        return bool(self._library.llama_vocab_is_eog(self.vocab, token))

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Turn text into tokens.

        Args:
            text: any text, also empty.
            add_special: whether the tokens that begin or end a text are added, where the model
                wants them.
            parse_special: whether the names of control tokens in the text, such as `<|im_start|>`,
                become these tokens; leave it off for text from strangers.

        Raises:
            CallerError: the text holds halves of surrogate pairs, which no encoding can carry.
        """
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise CallerError(
                f"character {error.start} of the text is half of a surrogate pair: not valid text"
            ) from error
        # No token is shorter than a byte, except for those at both ends and a leading space.
        room = len(data) + 8
        tokens = (self._library.llama_token * room)()
        count = self._library.llama_tokenize(
            self.vocab, data, len(data), tokens, room, add_special, parse_special
        )
        if count < 0:
            raise CallerError(f"a text of {len(data)} bytes is too long to tokenize")
        return list(tokens[:count])

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes of a token; they need not be whole characters.

        Args:
            token: 0 .. n_vocab - 1.
            special: whether control tokens give their name instead of nothing.

        Raises:
            CallerError: there is no such token.
        """
        if not 0 <= token < self.n_vocab:
            raise CallerError(f"token {token} is not in the vocabulary of {self.n_vocab} tokens")
        function, size = self._library.llama_token_to_piece, _PIECE_SIZE
        while True:
            buffer = ctypes.create_string_buffer(size)
            written = function(self.vocab, token, buffer, size, 0, special)
            if written >= 0:
                return buffer.raw[:written]
            size = -written

    def text_of(self, token: int | None) -> str:
        """The text of a token, control tokens by their name; "" for None."""
        return "" if token is None else self.piece(token, special=True).decode("utf-8", "replace")


def _token(number: int) -> int | None:
    """Turn libllama's LLAMA_TOKEN_NULL, -1, into None."""
    return None if number < 0 else int(number)
