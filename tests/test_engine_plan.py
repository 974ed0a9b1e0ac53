"""Plans are pure: lists, shares, devices, and libllama's own split of layers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringline.engine.plan import choose_devices, parse_list, parse_split, split_layers
from ringline.errors import CallerError


def test_lists_have_one_syntax():
    assert parse_list("RPC0, RPC1,,CPU ") == ["RPC0", "RPC1", "CPU"]
    assert parse_list("") == []


def test_missing_shares_are_zero():
    assert parse_split("2,1", 3) == [2.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1,x", "'x' is no number"),
        ("1,1,1", "3 shares for 2 devices"),
        ("0,0", "one is more than 0"),
        ("1,-1", "shares are 0 or more"),
        ("nan", "one is more than 0"),
    ],
)
def test_a_contradictory_split_is_refused(text, reason):
    with pytest.raises(CallerError, match=reason):
        parse_split(text, 2)


def test_devices_are_those_wanted_in_their_order():
    assert choose_devices(["RPC1", "RPC0"], ["RPC0", "RPC1"]) == ["RPC1", "RPC0"]
    assert choose_devices([], ["RPC0"]) == ["RPC0"]


@pytest.mark.parametrize(
    ("wanted", "reason"), [(["RPC9"], "no device 'RPC9'.*RPC0"), (["RPC0", "RPC0"], "named twice")]
)
def test_an_impossible_choice_of_devices_is_refused(wanted, reason):
    with pytest.raises(CallerError, match=reason):
        choose_devices(wanted, ["RPC0", "RPC1"])


def test_the_split_is_that_of_libllama():
    # 31 = 30 layers and the output layer; libllama logged 11, 10, 10 for three equal shares.
    assert split_layers(30, -1, [1, 1, 1]) == [11, 10, 10]
    assert split_layers(30, 20, [1, 1]) == [10, 10]
    assert split_layers(30, 0, [1]) == [0]
    assert split_layers(4, -1, [0.2, 0.4, 0.4]) == [1, 2, 2]  # in double it would be 1, 3, 1


@given(
    st.integers(1, 200),
    st.integers(-1, 300),
    st.lists(st.floats(0.01, 100), min_size=1, max_size=8),
)
def test_every_layer_lies_somewhere(n_layer, n_gpu_layers, shares):
    counts = split_layers(n_layer, n_gpu_layers, shares)
    offloaded = n_layer + 1 if n_gpu_layers < 0 else min(n_gpu_layers, n_layer + 1)
    assert sum(counts) == offloaded
    assert len(counts) == len(shares)
    assert min(counts) >= 0
