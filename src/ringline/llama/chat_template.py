"""A model's chat template: a conversation becomes the prompt that the model was trained on.

The Jinja comes from the model's file; llama_cpp's own formatter renders it, in a sandbox.
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any, Final, Self

from ringline.errors import CallerError
from ringline.llama.library import libllama
from ringline.llama.model import Model

__all__ = ["CHATML", "ChatTemplate"]

#: what llama.cpp takes for a model that has no template (common/chat.cpp).
CHATML: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_WHAT: Final = "the conversation"


class ChatTemplate:
    """A template, compiled when it is first used; by one thread at a time."""

    def __init__(self, source: str | None, *, bos: str, eos: str, adds_bos: bool) -> None:
        """Take a template.

        Args:
            source: in Jinja; None: ChatML.
            bos: text of the token that begins a text, "" for none.
            eos: text of the one that ends it.
            adds_bos: whether the tokenizer puts `bos` before every text by itself.
        """
        self._source = CHATML if source is None else source
        self._bos, self._eos = bos, eos
        self._adds_bos = adds_bos
        self._formatter: Any = None

    @classmethod
    def of(cls, model: Model) -> Self:
        """The template of a model."""
        bos, eos = model.text_of(model.bos), model.text_of(model.eos)
        return cls(model.chat_template, bos=bos, eos=eos, adds_bos=model.adds_bos)

    @property
    def stops(self) -> tuple[str, ...]:
        """What ends a turn besides tokens: ChatML's own end, where the model has no template."""
        return ("<|im_end|>",) if self._source is CHATML else ()

    def render(self, variables: str) -> str:
        """Render a conversation, for a tokenizer that knows the names of control tokens.

        Args:
            variables: a JSON object with `messages`, and what else the template may ask for:
                `tools`, `add_generation_prompt`, variables of its own.

        Raises:
            CallerError: the template cannot be used, or refuses this conversation; says why.
        """
        try:
            values = json.loads(variables)
            formatter = self._compiled()
            formatter.add_generation_prompt = values.pop("add_generation_prompt", True)
            prompt = str(formatter(**values).prompt)
        except RecursionError:
            raise CallerError(f"{_WHAT} is nested too deeply for a template") from None
        except Exception as error:  # Jinja's own, and whatever the template's code runs into
            raise CallerError(f"the chat template refuses {_WHAT}: {_reason(error)}") from None
        # The tokenizer adds it again, and a model that sees it twice answers worse.
        return prompt.removeprefix(self._bos) if self._adds_bos and self._bos else prompt

    def _compiled(self) -> Any:
        if self._formatter is None:
            libllama()  # the import below loads the library: ours has to be the first
            formats = import_module("llama_cpp.llama_chat_format")
            self._formatter = formats.Jinja2ChatFormatter(self._source, self._eos, self._bos)
        return self._formatter


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
