"""Sees to it that Chromium is there for the tests of the page: `python tools/browser.py`.

Installs Debian's package where it is missing and we may. Where we may not, it says so and succeeds:
the tests that need it fail then, and say the same, but all others still run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

PROGRAM = "chromium"
_SECONDS = 900


def main() -> int:
    """Install Chromium if it is missing; 0 also where that is not possible."""
    if shutil.which(PROGRAM):
        return 0
    problem = install()
    if problem:
        print(f"warning: {missing(problem)}", file=sys.stderr)
    return 0


def missing(why: str) -> str:
    """What a person has to know who has no Chromium."""
    return (
        f"the tests of the page need Chromium, and {why}; "
        f"on Debian: apt-get install --no-install-recommends {PROGRAM}"
    )


def install() -> str:
    """Install it; why that was not possible, or "" where it was."""
    if not shutil.which("apt-get"):
        return "there is no apt-get to install it with"
    if os.geteuid() != 0:
        return "only root may install it"
    print("chromium is missing: installing Debian's package, about half a minute", file=sys.stderr)
    for command in (["update"], ["install", "--yes", "--no-install-recommends", PROGRAM]):
        problem = _apt_get(command)
        if problem:
            return problem
    return "" if shutil.which(PROGRAM) else "apt-get installed it, but it is not on the PATH"


def _apt_get(arguments: Sequence[str]) -> str:
    command = ["apt-get", "-qq", *arguments]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        subprocess.run(
            command, env=environment, check=True, timeout=_SECONDS, stdout=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return f"{' '.join(command)} took longer than {_SECONDS} s"
    except subprocess.CalledProcessError as error:
        return f"{' '.join(command)} ended with exit code {error.returncode}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
