"""docs/cli.md is what the commands say of themselves."""

from __future__ import annotations

import make_cli_docs
from ringline.cli.main import COMMANDS
from ringline.settings import VARIABLES


def test_the_reference_is_what_help_says_in_any_terminal_and_with_any_setting(monkeypatch):
    terminal = {"COLUMNS": "50", "FORCE_COLOR": "1", "TERM": "xterm-256color", "LANG": "C"}
    for name, value in {**terminal, **dict.fromkeys(VARIABLES, "1")}.items():
        monkeypatch.setenv(name, value)
    written = make_cli_docs.PATH.read_text(encoding="utf-8")
    assert written == make_cli_docs.reference(), "run: python tools/make_cli_docs.py"


def test_every_command_has_a_section():
    written = make_cli_docs.PATH.read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"\n## ringline {name}\n" not in written] == []
