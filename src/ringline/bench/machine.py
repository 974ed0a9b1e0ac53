"""What a measurement ran on, in words and numbers: figures mean little without it."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from ringline import __version__
from ringline.ggml.find import installed_version
from ringline.ggml.library import GGML_VERSION

__all__ = ["describe_machine"]


def describe_machine() -> dict[str, Any]:
    """Processor, cores of this process, memory in bytes, versions, and the load right now."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "ringline": __version__,
        "llama_cpp_python": installed_version(),
        "ggml": GGML_VERSION,
        "load": os.getloadavg()[0],
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
