"""There are rules for every op that llama.cpp's graphs use: read off the source that we pin."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ringline.server.rules.catalogue import CATALOGUE
from tests.llama_source import llama_source

pytestmark = pytest.mark.network

_FUNCTION = re.compile(
    r"^(?:GGML_API )?(?:static )?(?:inline )?struct ggml_tensor \* ?(ggml_\w+)\((.*?)^}",
    re.MULTILINE | re.DOTALL,
)
_CALL = re.compile(r"\b(ggml_\w+)\s*\(")
_OP = re.compile(r"\bop\s*=\s*GGML_OP_(\w+)")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
#: what a model's graph is made by, and that of a picture or a sound which goes into one.
GRAPHS = {
    "models": ("src/*.cpp", "src/models/*.cpp"),
    "pictures and sound": ("tools/mtmd/*.cpp", "tools/mtmd/models/*.cpp"),
}
#: some that each kind of graph uses for sure.
SURE = {
    "models": {"MUL_MAT_ID", "FLASH_ATTN_EXT", "ROPE", "SSM_SCAN", "RWKV_WKV7", "GATED_DELTA_NET"},
    "pictures and sound": {"IM2COL", "POOL_2D", "UPSCALE", "CONV_2D_DW", "COL2IM_1D"},
}


@pytest.fixture(scope="module")
def source() -> Path:
    return llama_source()


@pytest.fixture(scope="module")
def constructors(source) -> Mapping[str, str]:
    """The body of each function of ggml that makes a tensor, by name."""
    text = _COMMENT.sub("", (source / "ggml/src/ggml.c").read_text())
    return dict(_FUNCTION.findall(text))


def ops_of(name: str, constructors: Mapping[str, str]) -> set[str]:
    """The ops that a constructor makes, by itself and through others."""
    seen: set[str] = set()
    ops: set[str] = set()
    names = [name]
    while names:
        name = names.pop()
        if name not in seen:
            seen.add(name)
            body = constructors.get(name, "")
            ops.update(_OP.findall(body))
            names.extend(_CALL.findall(body))
    return ops


def called(source: Path, patterns: tuple[str, ...]) -> Iterator[str]:
    """What the files that match call of ggml."""
    for pattern in patterns:
        for path in source.glob(pattern):
            yield from _CALL.findall(_COMMENT.sub("", path.read_text()))


@pytest.mark.parametrize("kind", GRAPHS)
def test_every_op_that_llama_cpp_puts_into_a_graph_has_rules(source, constructors, kind):
    used = {op for name in called(source, GRAPHS[kind]) for op in ops_of(name, constructors)}
    assert used >= SURE[kind]
    assert used <= CATALOGUE.keys()
