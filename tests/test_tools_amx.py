"""tools/amx_headers.py finds the compilers that break llama.cpp's AMX kernels, and no others."""

import stat
import subprocess
import sys

import pytest

import amx_headers
import engine_wheel
from engine_wheel import Recipe

OLD = '__asm__ volatile ("ldtilecfg\\t%X0" :: "m" (*((const void **)__config)));'
NEW = "__builtin_ia32_ldtilecfg (__config);"
AMX = "#define __AMX_INT8__ 1\n"


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Makes a compiler that preprocesses everything to a text that we choose."""

    def make(text: str) -> None:
        answer, script = tmp_path / "answer", tmp_path / "c++"
        answer.write_text(text)
        script.write_text(f"#!/bin/sh\nexec cat {answer}\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("CXX", str(script))

    return make


@pytest.mark.parametrize(
    ("text", "flags"),
    [(AMX + OLD, "-U__AMX_INT8__"), (AMX + NEW, ""), (OLD, ""), (NEW, ""), ("", "")],
)
def test_amx_is_left_out_where_the_cpu_has_it_and_the_header_reads_8_bytes(stand_in, text, flags):
    stand_in(text)
    assert amx_headers.flags_against_amx() == flags


def test_no_compiler_is_no_reason_to_fail_here(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert amx_headers.compiler() is None
    assert amx_headers.flags_against_amx() == ""


def test_the_flag_reaches_both_compilers_before_the_users_and_names_another_wheel(
    stand_in, tmp_path, monkeypatch
):
    stand_in(AMX + OLD)
    monkeypatch.setenv("CXXFLAGS", "-O1")
    recipe = Recipe.of("0.0.1", "plain")
    assert recipe.key != Recipe("0.0.1", "plain", recipe.cmake_args).key
    builder = tmp_path / "python"
    builder.write_text(
        f"#!{sys.executable}\nimport os, pathlib, sys\n"
        'folder = pathlib.Path(sys.argv[sys.argv.index("--wheel-dir") + 1])\n'
        '(folder / "e.whl").write_text(os.environ["CFLAGS"] + "|" + os.environ["CXXFLAGS"])\n'
    )
    builder.chmod(0o755)
    wheel = engine_wheel.find_or_build(recipe, python=builder, cache=tmp_path)
    assert wheel.read_text() == "-U__AMX_INT8__|-U__AMX_INT8__ -O1"


def test_the_compiler_of_this_machine_takes_the_flag():
    """Whatever it is and whatever the CPU: without the macro there are no AMX kernels."""
    words = amx_headers.compiler()
    assert words is not None
    command = [*words, "-march=native", "-U__AMX_INT8__", "-dM", "-E", "-x", "c++", "/dev/null"]
    macros = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert "#define __cplusplus" in macros
    assert "__AMX_INT8__" not in macros
