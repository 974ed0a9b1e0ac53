"""The conversation of `ringline chat`: does commands, shows answers, remembers turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from ringline.cli.chat_partner import Partner, Reply, Turn
from ringline.errors import CallerError, RinglineError

__all__ = ["COMMANDS", "Conversation"]

#: command -> what it does.
COMMANDS: Final = {
    "/help": "show these commands",
    "/reset": "forget the conversation; the system prompt stays",
    "/system TEXT": "set the system prompt; without TEXT show it, with - remove it",
    "/quit": "end, as Ctrl-D does",
    "a space": "before the / of a message that is no command",
}


class Conversation:
    """Turns so far, and who answers them."""

    def __init__(
        self,
        partner: Partner,
        *,
        system: str,
        show: Callable[[str], object],
        say: Callable[[str], object],
    ) -> None:
        """Begin.

        Args:
            partner: who answers.
            system: the system prompt; "" for none.
            show: takes the text of answers as it comes.
            say: takes lines about the conversation.
        """
        self._partner = partner
        self._system = system
        self._show, self._say = show, say
        self._turns: list[Turn] = []

    def run(self, lines: Iterator[str]) -> None:
        """Answer line after line, until there are no more or one says /quit.

        Ctrl-C stops the answer under way; where there is none it does nothing.

        Raises:
            RinglineError: nobody can answer any more.
        """
        while True:
            try:
                line = next(lines, None)
                if line is None or line.strip() == "/quit":
                    return
                self.take(line.rstrip())
            except KeyboardInterrupt:
                self._say("(Ctrl-D or /quit ends the chat)")

    def take(self, line: str) -> None:
        """Do a command, or answer a message; a space in front makes a message of a command.

        Raises:
            RinglineError: nobody can answer any more.
        """
        if line.startswith("/"):
            self._command(*line.split(maxsplit=1))
        elif line.strip():
            self._answer(line.strip())

    def _command(self, name: str, text: str = "") -> None:
        match name:
            case "/help":
                width = max(map(len, COMMANDS))
                for command, meaning in COMMANDS.items():
                    self._say(f"{command:{width}}  {meaning}")
            case "/reset":
                self._turns.clear()
                self._say("(the conversation is forgotten)")
            case "/system" if text:
                self._system = "" if text == "-" else text
                self._say("(the system prompt is set)" if self._system else "(no system prompt)")
            case "/system":
                self._say(self._system or "(no system prompt)")
            case _:
                self._say(f"{name} is no command: /help shows them")

    def _answer(self, line: str) -> None:
        """Answer a message; what could not be answered is not remembered."""
        asked = Turn("user", line)
        system = [Turn("system", self._system)] if self._system else []
        try:
            reply = self._partner.answer([*system, *self._turns, asked])
            text = self._written(reply)
        except KeyboardInterrupt:
            self._say("(stopped)")
            return
        except RinglineError as error:
            if not (self._partner.lasting or isinstance(error, CallerError)):
                raise
            self._say(f"error: {error}")
            return
        if text:
            self._turns += [asked, Turn("assistant", text)]

    def _written(self, reply: Reply) -> str:
        """Show an answer as it comes; what came until it ended or was stopped."""
        pieces: list[str] = []
        try:
            for piece in reply:
                pieces.append(piece)
                self._show(piece)
        except KeyboardInterrupt:
            reply.stop()
        except RinglineError:
            if pieces:
                self._show("\n")
            raise
        self._show("\n")
        self._say(f"({reply.speed()})")
        return "".join(pieces)
