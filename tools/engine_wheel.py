"""The wheel of llama-cpp-python: built once from source, kept in the cache folder, found again.

pip keeps built wheels too, but its cache does not know CMAKE_ARGS: a plain build and one with the
RPC server would take each other's place. Here every build has a folder named by all that shaped it.
Standard library only: this runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

from amx_headers import COMPILERS, compiler, flags_against_amx
from locking import locked
from pip_run import run_pip, say
from ringline.errors import CallerError

__all__ = ["FLAVOURS", "PACKAGE", "Recipe", "find_or_build"]

PACKAGE = "llama-cpp-python"

#: flavour -> what it adds to CMAKE_ARGS. `plain` is what pip gives a user, `rpc` also holds
#: llama.cpp's own RPC client and server, the stock peers of the tests.
FLAVOURS = {"plain": "", "rpc": "-DGGML_RPC=ON"}


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that shapes a build.

    Attributes:
        version: of llama-cpp-python.
        flavour: a key of FLAVOURS.
        cmake_args: the user's CMAKE_ARGS (a GPU backend, say) and the flavour's.
        flags: what the compilers are told before the user's CFLAGS and CXXFLAGS.
    """

    version: str
    flavour: str
    cmake_args: str
    flags: str = ""

    @classmethod
    def of(cls, version: str, flavour: str) -> Recipe:
        """Take the flavour's flags, after those of the environment."""
        words = [os.environ.get("CMAKE_ARGS", ""), FLAVOURS[flavour]]
        return cls(version, flavour, " ".join(" ".join(words).split()), flags_against_amx())

    @property
    def key(self) -> str:
        """Name of the folder of this build.

        llama.cpp is compiled with -march=native: a wheel from another CPU may die of an illegal
        instruction, so the CPU's features are part of the name. The version of Python is not: the
        wheel holds no extension module, ctypes loads its libraries.
        """
        shaped_by = "\n".join([self.cmake_args + self.flags, *platform.libc_ver(), _cpu_features()])
        digest = hashlib.sha256(shaped_by.encode()).hexdigest()[:12]
        return f"{PACKAGE}-{self.version}-{self.flavour}-{sysconfig.get_platform()}-{digest}"


def find_or_build(recipe: Recipe, *, python: Path, cache: Path) -> Path:
    """Return the wheel that a recipe describes, building it if the cache does not hold it.

    Args:
        recipe: what to build.
        python: interpreter whose pip builds.
        cache: ringline's cache folder; made if it is missing.

    Raises:
        CallerError: there is no C++ compiler.
        RinglineError: pip could not fetch the source or build it.
    """
    folder = cache / "wheels" / recipe.key
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(folder.name + ".lock")):
        if not folder.is_dir():
            _build(recipe, python, folder)
    return next(folder.glob("*.whl"))


def _build(recipe: Recipe, python: Path, folder: Path) -> None:
    _check_compiler()
    log = folder.with_name(folder.name + ".log")
    say(f"building {PACKAGE} {recipe.version} ({recipe.flavour}) from source: some minutes, once")
    say(f"  log: {log}")
    # Only the holder of the lock is here, so such folders are of builds that were killed.
    for abandoned in folder.parent.glob(f"{folder.name}.part-*"):
        shutil.rmtree(abandoned)
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.part-", dir=folder.parent))
    arguments = ["wheel", "--verbose", "--no-deps", "--wheel-dir", str(part)]
    # --no-cache-dir: pip would else take a wheel that it built with other flags.
    arguments += ["--no-cache-dir", "--no-binary", PACKAGE, f"{PACKAGE}=={recipe.version}"]
    environment = {**os.environ, "CMAKE_ARGS": recipe.cmake_args}
    for name in ("CFLAGS", "CXXFLAGS"):
        environment[name] = f"{recipe.flags} {os.environ.get(name, '')}".strip()
    try:
        run_pip(python, arguments, log=log, what=f"build {PACKAGE}", environment=environment)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _check_compiler() -> None:
    if compiler() is None:
        wanted = os.environ.get("CXX", "").split()[:1] or COMPILERS
        raise CallerError(
            f"no C++ compiler ({', '.join(wanted)}) to build {PACKAGE} with: "
            "install one, on Debian with `apt-get install g++`"
        )


def _cpu_features() -> str:
    """The feature flags of the first CPU as Linux lists them; elsewhere the CPU's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return " ".join(sorted(value.split()))
    return f"{platform.machine()} {platform.processor()}"
