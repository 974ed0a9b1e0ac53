"""A copy of the installed llama_cpp whose libggml-rpc ends the process when anybody calls into it.

In a build with GGML_RPC libggml links libggml-rpc, so the stock RPC code is loaded into ringline's
processes too. Run them in this copy to prove that nothing of ours uses it: a process in it says
IN_PLACE on stderr, and a call says `tripwire: NAME was called` and aborts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.peers.stock_library import library_folder

IN_PLACE = "tripwire: in place"
SOURCE = Path(__file__).with_suffix(".c")
#: the one function that libggml itself calls; the stand-in answers it
ANSWERED = "ggml_backend_rpc_reg"


def tripwire_environment(folder: Path) -> dict[str, str]:
    """Make the copy in `folder`; what makes a process use it, added to its environment."""
    package = folder / "llama_cpp"
    stock = library_folder()
    shutil.copytree(stock.parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    library = build(folder, exported_functions(stock / "libggml-rpc.so.0"))
    for place in package.glob("lib/libggml-rpc.so*"):
        shutil.copyfile(library, place)
    search = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(search)}


def exported_functions(library: Path) -> list[str]:
    """The functions that a library defines and exports.

    Weak ones are left out: they are the C++ standard library's templates, which other libraries may
    share with this one.
    """
    command = ["nm", "--dynamic", "--defined-only", str(library)]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    symbols = (line.split() for line in listed.splitlines())
    return [name for _, kind, name in symbols if kind == "T"]


def build(folder: Path, functions: list[str]) -> Path:
    """Compile the stand-in with a stub for each function; its path."""
    stubs = (f"STUB({name})\n" for name in functions if name != ANSWERED)
    (folder / "stubs.inc").write_text("".join(stubs))
    library = folder / "libggml-rpc.so"
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libggml-rpc.so.0", f"-I{folder}"]
    subprocess.run([*command, "-o", str(library), str(SOURCE)], check=True)
    return library
