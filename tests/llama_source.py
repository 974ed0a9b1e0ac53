"""The part of llama.cpp's source that a test of its own needs: fetched once, kept in the cache."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from locking import locked
from pip_run import run_pip
from ringline.ggml.find import PACKAGE_VERSION
from ringline.settings import cache_folder

__all__ = ["llama_source"]

_PACKAGE = f"llama-cpp-python=={PACKAGE_VERSION}"
#: in the source distribution, behind vendor/llama.cpp/: headers, what makes graphs, and the tests
#: of both servers.
_WANTED = re.compile(
    r"ggml/include/.+\.h|ggml/src/[^/]+\.h|tests/test-rpc-multi-server\..+|tools/server/tests/.+"
    r"|ggml/src/ggml\.c|(src|tools/mtmd)/(models/)?[^/]+\.cpp"
)
#: one of them that an older checkout did not want.
_NEWEST = "tools/mtmd/models"


def llama_source() -> Path:
    """The folder with those parts of llama.cpp, as in its repository.

    Raises:
        RinglineError: the package index could not be reached.
    """
    folder = cache_folder() / "sources" / f"llama-cpp-python-{PACKAGE_VERSION}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(folder.name + ".lock")):
        if not (folder / _NEWEST).is_dir():
            shutil.rmtree(folder, ignore_errors=True)
            _fetch(folder)
    return folder


def _fetch(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="part-", dir=folder.parent) as name:
        part = Path(name)
        arguments = ["download", "--no-deps", "--no-binary", "llama-cpp-python"]
        run_pip(
            Path(sys.executable),
            [*arguments, "--dest", str(part), _PACKAGE],
            log=folder.with_name(folder.name + ".log"),
            what=f"fetch the source of {_PACKAGE}",
            environment=os.environ,
        )
        (archive,) = part.glob("*.tar.gz")
        _unpack(archive, part / "source")
        (part / "source").rename(folder)


def _unpack(archive: Path, target: Path) -> None:
    with tarfile.open(archive) as source:
        for member in source:
            path = member.name.partition("/vendor/llama.cpp/")[2]
            if member.isfile() and _WANTED.fullmatch(path):
                member.name = path
                source.extract(member, target, filter="data")
