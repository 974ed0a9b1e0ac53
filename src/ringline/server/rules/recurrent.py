"""Recurrent models: state spaces, RWKV, linear attention, hyper-connections."""

from __future__ import annotations

from typing import Final

import numpy as np

from ringline.server.columns import I64, Mask
from ringline.server.rules.facts import Group, Operand

__all__ = [
    "delta_net",
    "gla",
    "hyper_comb",
    "hyper_post",
    "hyper_pre",
    "ssm_conv",
    "ssm_scan",
    "wkv6",
    "wkv7",
]

#: the CPU's kernel of RWKV_WKV7 reads whole vectors: 64 floats where it has AVX-512.
_WHOLE_VECTORS: Final = 64
_STREAMS: Final = 4
_MOST_ITERATIONS: Final = 1 << 16


def ssm_conv(group: Group) -> None:
    """SSM_CONV: a window slides over the tokens of each sequence."""
    states, kernel, out = group.source(0), group.source(1), group.out
    width, n_inner = kernel.ne[0], kernel.ne[1]
    good = (states.ne[1] == n_inner) & (states.ne[3] == 1)
    good &= (kernel.ne[2] == 1) & (kernel.ne[3] == 1)
    group.shape(good, "its sources do not fit each other")
    n_tokens = states.ne[0] - width + 1
    good = (n_tokens >= 0) & out.has_shape(n_inner, n_tokens, states.ne[2])
    group.shape(good, "its result has not the shape of the convolution")
    group.stride(states.nb[1] == 4 * states.ne[0], "source 0: its rows have gaps")


def ssm_scan(group: Group) -> None:
    """SSM_SCAN: the state of each sequence is carried through its tokens."""
    state, x, dt, a, b, c, ids = (group.source(number) for number in range(7))
    n_state, n_dim, n_heads = state.ne[0], state.ne[1], state.ne[2]
    n_tokens, n_sequences = x.ne[2], x.ne[3]
    group.shape(x.has_shape(n_dim, n_heads, n_tokens, n_sequences), "source 1 fits no state")
    group.shape(dt.has_shape(n_heads, n_tokens, n_sequences), "source 2 fits not source 1")
    by_state = (a.ne[0] == 1) | (a.ne[0] == n_state)
    group.shape(by_state & a.has_shape(a.ne[0], n_heads), "source 3 fits not the state")
    groups = np.maximum(b.ne[1], 1)
    good = b.has_shape(n_state, groups, n_tokens, n_sequences) & (n_heads % groups == 0)
    group.shape(good & c.has_shape(*b.ne), "sources 4 and 5 do not fit the state")
    group.shape(ids.has_shape(n_sequences), "source 6 has not a state for each sequence")
    for number, operand in ((1, x), (4, b), (5, c)):
        dense = operand.nb[1] == 4 * operand.ne[0]
        group.stride(dense, f"source {number}: its rows have gaps")
    slots = group.word(0)
    group.param((slots >= 1) & ((slots == 1) | (a.ne[0] == 1)), "it keeps no state")
    good = group.out.has_shape(x.count + slots * n_state * n_dim * n_heads * n_sequences)
    group.shape(good, "its result has no room for outputs and states")


def wkv6(group: Group) -> None:
    """RWKV_WKV6."""
    key = group.source(0)
    same = _heads(group, key, (1, 2, 4))
    group.shape(same, "its sources have different shapes")
    group.shape(group.source(3).count == key.ne[0] * key.ne[1], "source 3 is not one for each head")
    _carried(group, key, group.source(5))


def wkv7(group: Group) -> None:
    """RWKV_WKV7."""
    key = group.source(2)
    group.shape(_heads(group, key, (0, 1, 3, 4, 5)), "its sources have different shapes")
    group.shape(key.ne[0] % _WHOLE_VECTORS == 0, f"its heads are no multiples of {_WHOLE_VECTORS}")
    _carried(group, key, group.source(6))


def gla(group: Group) -> None:
    """GATED_LINEAR_ATTN."""
    key = group.source(0)
    group.shape(_heads(group, key, (1, 2, 3)), "its sources have different shapes")
    _carried(group, key, group.source(4))


def _heads(group: Group, key: Operand, others: tuple[int, ...]) -> Mask:
    """Whether all have [head size, heads, tokens]."""
    shape = key.ne[0], key.ne[1], key.ne[2]
    good = key.has_shape(*shape)
    for number in others:
        good = good & group.source(number).has_shape(*shape)
    return good


def _carried(group: Group, key: Operand, state: Operand) -> None:
    """Result and state of an attention that carries [head size, head size] for each head."""
    size, n_heads, n_tokens = key.ne[0], key.ne[1], key.ne[2]
    n_sequences = state.ne[1]
    good = state.count == size * size * n_heads * n_sequences
    group.shape(good, "its state does not fit its heads")
    whole = (n_tokens >= n_sequences) & (n_tokens % np.maximum(n_sequences, 1) == 0)
    group.shape(whole, "its sequences have not equally many tokens")
    good = group.out.has_shape(size * n_heads, n_tokens + size * n_sequences)
    group.shape(good, "its result has no room for outputs and states")


def delta_net(group: Group) -> None:
    """GATED_DELTA_NET."""
    query, key, value, gate, beta, state = (group.source(number) for number in range(6))
    size, n_heads, n_tokens, n_sequences = value.ne
    for number, operand in ((0, query), (1, key)):
        heads, streams = np.maximum(operand.ne[1], 1), np.maximum(operand.ne[3], 1)
        shared = (n_heads % heads == 0) & (n_sequences % streams == 0)
        good = shared & operand.has_shape(size, heads, n_tokens, streams)
        group.shape(good, f"source {number} does not fit the values")
    by_row = (gate.ne[0] == 1) | (gate.ne[0] == size)
    rest: tuple[I64, ...] = (n_heads, n_tokens, n_sequences)
    group.shape(by_row & gate.has_shape(gate.ne[0], *rest), "source 3 does not fit the values")
    group.shape(beta.has_shape(1, *rest), "source 4 does not fit the values")
    good = state.has_shape(size, size, n_heads, n_sequences)
    group.shape(good, "source 5, the state, does not fit the values")
    slots = group.word(0)
    group.param(slots >= 1, "it keeps no state")
    rows = n_tokens * n_sequences + slots * size * n_sequences
    good = group.out.has_shape(size * n_heads, rows)
    group.shape(good, "its result has no room for outputs and states")


def hyper_comb(group: Group) -> None:
    """DSV4_HC_COMB: four streams."""
    mixes, scale, base = (group.source(number) for number in range(3))
    width = _STREAMS * (_STREAMS + 2)
    good = mixes.has_shape(width, mixes.ne[1]) & base.has_shape(width)
    good &= (scale.ne[0] >= 3) & scale.has_shape(scale.ne[0])
    group.shape(good, f"it does not mix {_STREAMS} streams")
    good = group.out.has_shape(_STREAMS, _STREAMS, mixes.ne[1])
    group.shape(good, "its result has not a matrix for each token")
    n_iterations = group.word(1)
    good = (n_iterations > 0) & (n_iterations <= _MOST_ITERATIONS)
    group.param(good, f"its iterations are not 1 to {_MOST_ITERATIONS}")


def hyper_pre(group: Group) -> None:
    """DSV4_HC_PRE: streams become one."""
    x, weights = group.source(0), group.source(1)
    width, n_streams, n_tokens = x.ne[0], x.ne[1], x.ne[2]
    gated = group.word(1) != 0
    good = np.where(
        gated,
        weights.has_shape(width, n_streams, n_tokens),
        weights.has_shape(n_streams, n_tokens),
    )
    group.shape(good & (x.ne[3] == 1), "its weights do not fit its streams")
    group.shape(group.out.has_shape(width, n_tokens), "its result is not one stream")


def hyper_post(group: Group) -> None:
    """DSV4_HC_POST: one becomes streams."""
    x, residual, post, comb = (group.source(number) for number in range(4))
    width, n_tokens, n_streams = x.ne[0], x.ne[1], residual.ne[1]
    good = x.has_shape(width, n_tokens) & residual.has_shape(width, n_streams, n_tokens)
    good &= post.has_shape(n_streams, n_tokens)
    good &= comb.has_shape(n_streams, n_streams, n_tokens) | ~comb.given
    group.shape(good, "its sources do not fit each other")
    group.shape(group.out.has_shape(width, n_streams, n_tokens), "its result is not its streams")
