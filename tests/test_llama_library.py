"""libllama is loaded when it is used, checked, and silent."""

import logging
import subprocess
import sys
from importlib import metadata

import pytest

from ringline.errors import CallerError, LibraryError
from ringline.llama import library, log
from ringline.llama.model import Model

MODULES = [
    "ringline.engine.generation",
    "ringline.engine.models",
    "ringline.llama.batch",
    "ringline.llama.context",
    "ringline.llama.gguf_file",
    "ringline.llama.library",
    "ringline.llama.loading",
    "ringline.llama.log",
    "ringline.llama.model",
    "ringline.llama.sampler",
    "ringline.llama.text",
]


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


def test_importing_the_room_loads_no_library():
    code = f"import sys, {', '.join(MODULES)}; print(*sys.modules)"
    loaded = set(run_python(code).stdout.split())
    assert set(MODULES) <= loaded
    assert not {"llama_cpp", "huggingface_hub"} & loaded


def test_a_program_that_configures_no_logging_sees_nothing_on_stderr(tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF")
    code = f"""
from ringline.errors import CallerError
from ringline.llama.model import Model
try:
    Model.load({str(bad)!r})
except CallerError as error:
    print(error)
"""
    run = run_python(code)
    assert "cannot be loaded: failed to read header" in run.stdout
    assert run.stderr == ""


def test_the_library_is_loaded_once():
    assert library.libllama() is library.libllama()


def test_another_version_is_refused_with_both_versions_and_what_to_do(monkeypatch):
    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.setattr(metadata, "version", lambda _name: "0.2.1")
    with pytest.raises(LibraryError, match=r"0\.2\.1 .* needs 0\.3\.36: pip install"):
        library.libllama()


def test_a_missing_package_is_named_with_what_to_do(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(LibraryError, match=r"not installed .* needs 0\.3\.36: pip install"):
        library.libllama()


def test_a_library_that_does_not_load_is_named_with_what_to_do(monkeypatch):
    def broken(_name):
        raise OSError("libgomp.so.1: cannot open shared object file")

    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.setattr(library, "import_module", broken)
    with pytest.raises(LibraryError, match=r"does not load \(libgomp\.so\.1.* build it again: pip"):
        library.libllama()


def test_another_libllama_under_the_right_package_is_refused(monkeypatch):
    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.setattr(library, "LLAMA_VERSION", "9.9.9")
    with pytest.raises(LibraryError, match=r"calls itself 0\.5\.0-dev and ringline needs 9\.9\.9"):
        library.libllama()


def test_a_log_handler_that_fails_does_not_disturb_the_library(monkeypatch, tmp_path):
    class Broken(logging.Handler):
        def emit(self, record):
            raise ValueError(record.getMessage())

    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF")
    monkeypatch.setattr(log.LIBRARY_LOGGER, "handlers", [Broken()])
    with pytest.raises(CallerError, match="failed to read header"):
        Model.load(bad)


def test_ctrl_c_while_the_library_logs_comes_out_after_the_call(monkeypatch, tmp_path):
    class Interrupting(logging.Handler):
        def emit(self, record):
            raise KeyboardInterrupt

    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF")
    monkeypatch.setattr(log.LIBRARY_LOGGER, "handlers", [Interrupting()])
    with pytest.raises(KeyboardInterrupt):
        Model.load(bad)
