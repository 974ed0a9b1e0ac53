"""The command `ringline`: finds the subcommand and turns errors into one sentence.

Subcommands are imported when they are used: `ringline serve` must not load what it does not need.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from ringline import __version__
from ringline.errors import RinglineError
from ringline.settings import debug_level

__all__ = ["main"]

#: subcommand -> (module with a typer app or function `command`, one line of help).
COMMANDS: Final = {
    "serve": ("ringline.cli.serve", "Lend this machine's devices to a ring."),
    "generate": ("ringline.cli.generate", "Continue a prompt with a model over a ring."),
    "chat": ("ringline.cli.chat", "Chat with a model over a ring, or with a running server."),
    "api": ("ringline.cli.api", "Serve a model over HTTP, with OpenAI's API."),
    "devices": ("ringline.cli.devices", "List nodes with their devices, memory and versions."),
    "doctor": ("ringline.cli.doctor", "Look at nodes and the ways between them: would a ring run?"),
    "certs": ("ringline.cli.certs", "Make the certificates of a ring with TLS."),
    "demo": ("ringline.cli.demo", "Run a real model over three nodes and compare the paths."),
    "bench": ("ringline.cli.bench", "Measure against the stock client and server."),
}


class _Lazy(TyperGroup):
    """A group whose commands are imported when they are called or their help is shown."""

    def list_commands(self, ctx: object) -> list[str]:
        """Names of all commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: object, cmd_name: str) -> TyperCommand | TyperGroup | None:
        """The command of that name, imported now; None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        module, summary = COMMANDS[cmd_name]
        app: typer.Typer = importlib.import_module(module).app
        command = get_command(app)
        assert isinstance(command, TyperCommand | TyperGroup)
        command.name = cmd_name
        command.short_help = summary
        _plain_text(command)
        return command


def _plain_text(command: TyperCommand | TyperGroup) -> None:
    """Show help as it is written: lines flow, and [default: ...] is no markup."""
    command.rich_markup_mode = "markdown"
    if isinstance(command, TyperGroup):
        for below in command.commands.values():
            assert isinstance(below, TyperCommand | TyperGroup)
            _plain_text(below)


app = typer.Typer(
    cls=_Lazy,
    help="One language model over several machines, stage to stage in a ring.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"ringline {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version."
    ),
) -> None:
    """One language model over several machines, stage to stage in a ring."""


def main() -> None:
    """Run the command line; ends the process with the exit code."""
    # OpenBLAS would start a thread per core that nobody uses; must be set before numpy is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    level = logging.DEBUG if debug_level() else logging.WARNING
    logging.basicConfig(stream=sys.stderr, level=level, format="ringline: %(message)s")
    if not debug_level():
        logging.getLogger("ringline.llama").addFilter(_is_news)
    try:
        app(prog_name="ringline")
    except RinglineError as error:
        _tell(error)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has gone, as `ringline ... | head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _is_news(record: logging.LogRecord) -> bool:
    """Whether libllama says what our own sentence about a failure does not say."""
    tidying_up = "removing memory module entries" in record.getMessage()
    return record.levelno < logging.ERROR and not tidying_up


def _tell(error: RinglineError) -> None:
    if debug_level():
        logging.getLogger(__name__).error("here is where it happened", exc_info=error)
    print(f"error: {error}", file=sys.stderr)
