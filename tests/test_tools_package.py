"""What the package promises before any of it is used, and what its pins promise."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ringline

ROOT = Path(__file__).resolve().parent.parent


def test_importing_ringline_loads_no_library():
    program = (
        "import sys, ringline; print(*sorted({'llama_cpp', 'numpy', 'ctypes'} & {*sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == ""


def test_public_names_are_listed_before_they_are_used():
    assert {"Ring", "__version__"} <= set(dir(ringline))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'Rings'"):
        _ = ringline.Rings


def test_every_pin_is_among_the_constraints():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    pins = {*project["dependencies"], *extras["api"], *extras["test"]}
    constraints = (ROOT / "tools" / "constraints.txt").read_text()
    # The engine is installed from a wheel of our own; an extra may name another one.
    ours = {"ringline[api]", *(pin for pin in pins if pin.startswith("llama-cpp-python"))}
    assert {normal(pin) for pin in pins - ours} <= set(map(normal, constraints.splitlines()))


def normal(pin):
    """One spelling of the name, as PEP 503 has it; pip freeze keeps the package's own."""
    name, _, version = pin.partition("==")
    return re.sub("[-_.]+", "-", name).lower(), version
