"""docs/settings.md and settings.VARIABLES say the same, and the code reads no other variable."""

import re
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
