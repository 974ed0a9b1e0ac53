"""Whether the C++ compiler breaks llama.cpp's kernels for AMX, and what to tell it then.

The header of older GCCs (12, of Debian 12, among them) says that `_tile_loadconfig` reads 8 of its
64 bytes, so the compiler drops what llama.cpp writes to the others, and the first prompt on a CPU
with AMX dies of a general protection fault. Newer GCCs and clang have a builtin there. Standard
library only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from typing import Final

__all__ = ["COMPILERS", "compiler", "flags_against_amx"]

COMPILERS: Final = ("c++", "g++", "clang++")
#: without this macro llama.cpp leaves its AMX kernels out.
_WITHOUT_AMX: Final = "-U__AMX_INT8__"
_READS_8_BYTES: Final = re.compile(r"\bldtilecfg\b[^;]*\(const void \*\*\) *__config")
#: seconds to preprocess one header.
_PATIENCE: Final = 60.0


def compiler() -> Sequence[str] | None:
    """The words that start the C++ compiler; None where there is none."""
    named = os.environ.get("CXX", "").split()
    if named:
        return named if shutil.which(named[0]) else None
    found = next(filter(None, map(shutil.which, COMPILERS)), None)
    return [found] if found else None


def flags_against_amx() -> str:
    """What CFLAGS and CXXFLAGS need so that the engine runs on this CPU; mostly nothing.

    -dD shows macros and text: the flag is for CPUs with AMX only, or every engine would be built
    again.
    """
    words = compiler()
    if words is None:
        return ""  # the build says what is missing
    command = [*words, "-march=native", "-E", "-dD", "-x", "c++"]
    try:
        done = subprocess.run(
            [*command, "-include", "immintrin.h", os.devnull],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""  # no compiler that we know how to ask, so no header that we know
    has_amx = "#define __AMX_INT8__ " in done.stdout
    return _WITHOUT_AMX if has_amx and _READS_8_BYTES.search(done.stdout) else ""
