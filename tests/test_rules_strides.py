"""What the rules know of strides is what ggml says; what they let through stays in its memory."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import sys

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ringline.ggml.devices import TensorStruct
from ringline.ggml.find import find_libraries
from ringline.ggml.layout import TYPE_COUNT
from ringline.ggml.types import tables
from ringline.server.rules.facts import Strides, strides_of
from tests.op_cases import plain_strides
from tests.peers.processes import ROOT, environment, patience

KINDS = [kind for kind in range(TYPE_COUNT) if tables().block[kind]]
counts = st.integers(1, 5)
#: left as it is, or something else: a gap, a transposition, nonsense.
changes = st.sampled_from([None, None, None, 0, 4, 64, 4096])


@functools.cache
def ggml() -> ctypes.CDLL:
    base = ctypes.CDLL(str(find_libraries() / "libggml-base.so"))
    for name in ("ggml_is_contiguous_0", "ggml_is_contiguous_1"):
        getattr(base, name).restype = ctypes.c_bool
        getattr(base, name).argtypes = (ctypes.c_void_p,)
    return base


@settings(max_examples=400, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    blocks=counts,
    rest=st.tuples(counts, counts, counts),
    change=st.tuples(changes, changes, changes, changes),
)
def test_contiguity_is_what_ggml_calls_so(kind, blocks, rest, change):
    ne = (blocks * int(tables().block[kind]), *rest)
    plain = plain_strides(kind, ne)
    nb = tuple(new if new is not None else old for new, old in zip(change, plain, strict=True))
    struct = TensorStruct()
    struct.record["type"], struct.record["ne"], struct.record["nb"] = kind, ne, nb

    def column(values: tuple[int, ...]) -> np.ndarray:
        return np.array([values], np.int64).T

    (known,) = strides_of(np.array([kind]), column(ne), column(nb))
    assert bool(known & Strides.PACKED) == ggml().ggml_is_contiguous_0(struct.address)
    assert bool(known & Strides.EVEN) == ggml().ggml_is_contiguous_1(struct.address)
    assert bool(known & Strides.ROWS) == (nb[0] == plain[0])
    assert bool(known & Strides.EXACT) == (nb == plain)


def test_what_the_rules_let_through_stays_within_its_tensors():
    """`python -m tests.guarded_cases 0 100000` plays more of them."""
    played = subprocess.run(
        [sys.executable, "-m", "tests.guarded_cases", "0", "1500"],
        cwd=ROOT,
        env=environment() | {"GGML_NO_BACKTRACE": "1"},
        capture_output=True,
        text=True,
        timeout=patience(120),
    )
    assert played.returncode == 0, f"{played.stdout[-200:]}\n{played.stderr[-2000:]}"
    assert int(played.stdout.rsplit(maxsplit=1)[1]) > 200
