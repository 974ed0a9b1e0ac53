"""Make a virtual environment that holds ringline and its engine, llama-cpp-python.

    python3 tools/engine.py --venv .venv                             # what a user gets
    python3 tools/engine.py --venv .venv-test --flavour rpc --extra test

Runs with the system's Python and the standard library alone. A second run finds everything in place
and takes no time; exit code 1 and one sentence if something is missing.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

# ringline is not installed yet; errors and settings need nothing but the standard library.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from engine_wheel import FLAVOURS, PACKAGE, Recipe, find_or_build
from locking import locked
from pip_run import run_pip, say
from ringline.errors import CallerError, RinglineError
from ringline.settings import cache_folder

ROOT = Path(__file__).resolve().parent.parent
_CONSTRAINTS = ROOT / "tools" / "constraints.txt"
_STAMP = "ringline.stamp"
_ENGINE_STAMP = "engine.stamp"


def main(arguments: list[str] | None = None) -> int:
    """Make the environment that the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(description="Make a virtual environment with ringline in it.")
    parser.add_argument("--venv", type=Path, required=True, help="folder of the environment")
    parser.add_argument("--flavour", choices=list(FLAVOURS), default="plain", help="engine build")
    parser.add_argument("--extra", default="", help="extra of pyproject.toml to install as well")
    options = parser.parse_args(arguments)
    try:
        make_environment(options.venv.absolute(), options.flavour, options.extra)
    except RinglineError as error:
        say(f"error: {error}")
        return 1
    except OSError as error:
        say(f"error: cannot make {options.venv}: {error}")
        return 1
    except KeyboardInterrupt:
        say("stopped; the same command goes on from here")
        return 130
    return 0


def make_environment(venv: Path, flavour: str, extra: str) -> None:
    """Make the environment, or bring it up to date; does nothing if it is.

    Raises:
        RinglineError: something that it needs is missing; says what to do.
    """
    recipe = Recipe.of(_engine_version(), flavour)
    stamp = venv / _STAMP
    with locked(venv.with_name(venv.name + ".lock")):
        wanted = _stamp_text(recipe, extra)
        if _is_stamped(stamp, wanted) and _is_made_here(venv):
            return
        stamp.unlink(missing_ok=True)
        python = _make_venv(venv)
        wheel = find_or_build(recipe, python=python, cache=cache_folder())
        _install_engine(python, venv, wheel)
        _install_ringline(python, venv, extra)
        stamp.write_text(wanted)


def _engine_version() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = dict(pin.split("==") for pin in project["dependencies"])
    return str(pins[PACKAGE])


def _stamp_text(recipe: Recipe, extra: str) -> str:
    """All that an environment is made from; when it changes, so must the environment."""
    inputs = (ROOT / "pyproject.toml").read_bytes() + _CONSTRAINTS.read_bytes()
    digest = hashlib.sha256(inputs).hexdigest()
    return "\n".join([recipe.key, extra, digest, ""])


def _is_stamped(stamp: Path, wanted: str) -> bool:
    return stamp.is_file() and stamp.read_text() == wanted


def _is_made_here(venv: Path) -> bool:
    """Whether this Python made the environment, and at this place: its scripts name both."""
    marker = venv / "pyvenv.cfg"
    lines = marker.read_text().splitlines() if marker.is_file() else []
    if not any(line.endswith(f" -m venv {venv}") for line in lines):
        return False
    command = [
        str(venv / "bin" / "python"),
        "-c",
        "import sys; print(sys.version, sys.base_prefix)",
    ]
    try:
        answer = subprocess.run(command, check=False, capture_output=True, text=True)
    except OSError:
        return False
    return answer.stdout == f"{sys.version} {sys.base_prefix}\n"


def _make_venv(venv: Path) -> Path:
    """Make the environment unless this Python made it at this place; returns its Python."""
    python = venv / "bin" / "python"
    if _is_made_here(venv):
        return python
    if importlib.util.find_spec("ensurepip") is None:
        raise CallerError(
            f"this Python ({sys.executable}) cannot make virtual environments: "
            "on Debian run `apt-get install python3-venv`"
        )
    say(f"making {venv}")
    shutil.rmtree(venv, ignore_errors=True)
    command = [sys.executable, "-m", "venv", str(venv)]
    made = subprocess.run(command, check=False, capture_output=True, text=True)
    if made.returncode != 0:
        reason = (made.stdout + made.stderr).strip().splitlines()[-1:]
        raise CallerError(f"cannot make {venv}: {' '.join(reason)}")
    return python


def _install_engine(python: Path, venv: Path, wheel: Path) -> None:
    """Install the engine's wheel, unless this very build is installed."""
    stamp, build = venv / _ENGINE_STAMP, wheel.parent.name
    if _is_stamped(stamp, build):
        return
    # Without --force-reinstall pip would keep an engine of the same version but other flags.
    arguments = ["install", "--force-reinstall", "--no-deps", str(wheel)]
    _run_pip(python, venv, arguments, what=f"install {PACKAGE}")
    stamp.write_text(build)


def _install_ringline(python: Path, venv: Path, extra: str) -> None:
    """Install ringline, editable, and what it needs, with every version pinned."""
    say(f"installing ringline into {venv}")
    project = f"{ROOT}[{extra}]" if extra else str(ROOT)
    # --only-binary: should pip find the engine wanting, it must fail and not build another one.
    arguments = ["install", "--only-binary", PACKAGE, "-c", str(_CONSTRAINTS), "-e", project]
    _run_pip(python, venv, arguments, what="install ringline")


def _run_pip(python: Path, venv: Path, arguments: list[str], *, what: str) -> None:
    log = venv / "ringline-install.log"
    run_pip(python, arguments, log=log, what=what, environment=os.environ)


if __name__ == "__main__":
    sys.exit(main())
