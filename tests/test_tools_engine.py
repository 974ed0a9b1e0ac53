"""tools/engine.py builds an engine once, finds it again, and says what is missing."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import engine_wheel
import pip_run
from engine_wheel import Recipe
from ringline.errors import LibraryError, RinglineError

ROOT = Path(__file__).resolve().parent.parent
RECIPE = Recipe("0.0.1", "plain", "")

#: stands in for a Python whose pip builds wheels: notes each build, and writes a file.
BUILDER = """\
#!{python}
import pathlib, sys, time
folder = pathlib.Path(sys.argv[sys.argv.index("--wheel-dir") + 1])
with open("{notes}", "a") as notes:
    notes.write("build\\n")
time.sleep({seconds})
(folder / "engine-0.0.1-py3-none-any.whl").write_text("wheel")
print("the compiler says no")
sys.exit({code})
"""


@pytest.fixture
def builder(tmp_path, monkeypatch):
    """Make a stand-in for a Python with pip; `builds()` counts how often it was asked."""
    monkeypatch.setenv("CXX", "sh")  # any program: there is nothing to compile

    def make(*, code: int = 0, seconds: float = 0.0) -> Path:
        script, notes = tmp_path / "python", tmp_path / "notes"
        script.write_text(
            BUILDER.format(python=sys.executable, notes=notes, code=code, seconds=seconds)
        )
        script.chmod(0o755)
        return script

    return make


def builds(tmp_path: Path) -> int:
    return len((tmp_path / "notes").read_text().splitlines())


def test_an_engine_is_built_once_and_found_again(builder, tmp_path):
    first = engine_wheel.find_or_build(RECIPE, python=builder(), cache=tmp_path)
    again = engine_wheel.find_or_build(RECIPE, python=builder(), cache=tmp_path)
    assert first == again
    assert first.read_text() == "wheel"
    assert builds(tmp_path) == 1


def test_two_that_want_the_same_engine_build_it_once(builder, tmp_path):
    python = builder(seconds=0.5)
    found: list[Path] = []

    def want() -> None:
        found.append(engine_wheel.find_or_build(RECIPE, python=python, cache=tmp_path))

    threads = [threading.Thread(target=want) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(found) == 2
    assert builds(tmp_path) == 1


def test_a_failed_build_leaves_its_log_and_nothing_that_looks_built(builder, tmp_path, capsys):
    with pytest.raises(LibraryError, match=r"cannot build llama-cpp-python.* \(log: .*\.log\)"):
        engine_wheel.find_or_build(RECIPE, python=builder(code=1), cache=tmp_path)
    assert "| the compiler says no" in capsys.readouterr().err
    assert not [path for path in (tmp_path / "wheels").iterdir() if path.is_dir()]
    assert engine_wheel.find_or_build(RECIPE, python=builder(), cache=tmp_path).is_file()


def test_what_a_killed_build_left_is_removed(builder, tmp_path):
    left = tmp_path / "wheels" / f"{RECIPE.key}.part-killed"
    left.mkdir(parents=True)
    engine_wheel.find_or_build(RECIPE, python=builder(), cache=tmp_path)
    assert not left.exists()


def test_builds_with_other_flags_have_other_names(monkeypatch):
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    plain, rpc = (Recipe.of("1.0", flavour) for flavour in ("plain", "rpc"))
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_CUDA=ON")
    gpu = Recipe.of("1.0", "rpc")
    assert gpu.cmake_args == "-DGGML_CUDA=ON -DGGML_RPC=ON"
    assert len({recipe.key for recipe in (plain, rpc, gpu, Recipe.of("1.1", "rpc"))}) == 4


def test_without_a_compiler_the_error_names_the_package_to_install(tmp_path):
    (tmp_path / "bin").mkdir()
    environment = {"PATH": str(tmp_path / "bin"), "RINGLINE_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, str(ROOT / "tools" / "engine.py"), "--venv", str(tmp_path / "venv")]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: no C++ compiler (c++, g++, clang++)")
    assert "apt-get install g++" in done.stderr


def test_without_a_network_the_error_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RinglineError, match="cannot fetch it: the package index does not answer"):
        download(tmp_path)


def test_a_package_that_the_index_lacks_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(RinglineError, match="the package index has no llama-cpp-python=="):
        download(tmp_path)


def test_a_venv_cannot_be_made_where_a_file_stands(tmp_path):
    (tmp_path / "file").touch()
    command = [sys.executable, str(ROOT / "tools" / "engine.py"), "--venv", f"{tmp_path}/file/venv"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: cannot make {tmp_path}/file/venv")


def download(folder: Path) -> None:
    arguments = ["download", "--no-deps", "--dest", str(folder), "llama-cpp-python==0.3.36"]
    pip_run.run_pip(
        Path(sys.executable),
        arguments,
        log=folder / "log",
        what="fetch it",
        environment=os.environ,
    )
