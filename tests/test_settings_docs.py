"""docs/settings.md says what the code says: variables, and events of a node's log."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from ringline.settings import VARIABLES

ROOT = Path(__file__).resolve().parent.parent
ROW = re.compile(r"^\| `([A-Z0-9_]+)` \| (.+) \|$", re.MULTILINE)
NAME = re.compile(r"[\"'](RINGLINE_[A-Z0-9_]+|GGML_RPC_[A-Z0-9_]+)[\"']")


def documented() -> dict[str, str]:
    return dict(ROW.findall((ROOT / "docs" / "settings.md").read_text(encoding="utf-8")))


def test_every_setting_is_documented():
    assert {name: documented().get(name) for name in VARIABLES} == VARIABLES


def test_every_documented_setting_exists():
    assert set(documented()) <= set(VARIABLES)


def test_the_code_reads_no_other_setting():
    sources = (ROOT / "src").rglob("*.py")
    read = {name for source in sources for name in NAME.findall(source.read_text(encoding="utf-8"))}
    assert read <= set(VARIABLES)


#: who logs an event -> which argument is its name.
TELLERS = {"tell": 2, "_warn": 0, "_refuse": 1}


def told(source: Path) -> Iterator[str]:
    """The events that a file of the server logs, where their names stand in it."""
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            place = TELLERS.get(name, len(node.args))
            if place < len(node.args) and isinstance(node.args[place], ast.Constant):
                yield node.args[place].value
        if isinstance(node, ast.Dict):  # what a record is given by hand
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(value, ast.Constant) and getattr(key, "value", "") == "event":
                    yield value.value


def test_every_event_of_a_nodes_log_is_documented_and_no_other():
    text = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    section = text.split("The\nevents of the gatekeeper are")[1].split("anything else is")[0]
    server = (ROOT / "src" / "ringline" / "server").rglob("*.py")
    assert {event for source in server for event in told(source)} == set(
        re.findall(r"`([a-z_]+)`", section)
    )
