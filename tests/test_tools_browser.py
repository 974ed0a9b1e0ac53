"""`make browser` installs Chromium where it may, and says what to do where it may not."""

from __future__ import annotations

import subprocess
import sys

from browser import PROGRAM, missing
from tests.peers.processes import ROOT


def test_where_it_cannot_be_installed_it_says_so_and_lets_the_other_tests_run(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "browser.py"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "the tests of the page need Chromium, and there is no apt-get" in done.stderr


def test_where_it_is_there_nothing_is_done(tmp_path):
    program = tmp_path / PROGRAM
    program.write_text("")
    program.chmod(0o755)
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "browser.py"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout + done.stderr == ""


def test_the_sentence_names_the_package():
    assert missing("it is not installed").endswith(f"--no-install-recommends {PROGRAM}")
