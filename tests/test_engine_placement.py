"""The order of devices, the number of groups, what requests share: pure, with reasons in words."""

from __future__ import annotations

import pytest

from ringline.engine.capacity import Capacity
from ringline.engine.placement import (
    Candidate,
    Stage,
    n_groups_for,
    n_ubatch_for,
    order_devices,
)
from ringline.errors import CallerError

A0, A1 = Candidate("RPC0", "a:1"), Candidate("RPC1", "a:1")
B = Candidate("RPC2", "b:1")
HERE = Candidate("CPU", "")


@pytest.mark.parametrize(
    ("present", "order", "reason"),
    [
        ([], [], ""),
        ([HERE], [HERE], ""),
        ([B], [B], ""),
        ([B, A0], [B, A0], "nodes in the order given"),
        ([A0, A1], [A0, A1], "devices of a node together"),
        ([A0, B, A1], [A0, A1, B], "nodes in the order given; devices of a node together"),
        ([HERE, B], [B, HERE], "this machine last, so that the logits"),
    ],
)
def test_devices_of_a_node_stand_together_and_this_machine_last(present, order, reason):
    found, why = order_devices(present)
    assert found == order
    assert why.startswith(reason) if reason else why == ""


@pytest.mark.parametrize(
    ("stages", "parallel", "groups"),
    [
        ([Stage("CPU", "", 31)], 8, 1),
        ([Stage("RPC0", "a:1", 22), Stage("RPC1", "b:1", 9)], 8, 2),
        ([Stage("RPC0", "a:1", 22), Stage("RPC1", "a:1", 9)], 8, 2),
        ([Stage("RPC0", "a:1", 31), Stage("RPC1", "b:1", 0)], 8, 1),
        ([Stage("RPC0", "a:1", 22), Stage("RPC1", "b:1", 9)], 1, 1),
    ],
)
def test_two_steps_are_in_flight_where_stages_would_wait_for_each_other(stages, parallel, groups):
    assert n_groups_for(stages, parallel) == groups


def test_a_prompt_goes_through_several_stages_in_smaller_pieces():
    stages = [Stage("RPC0", "a:1", 22), Stage("RPC1", "b:1", 9)]
    assert (n_ubatch_for(stages), n_ubatch_for(stages[:1])) == (64, 512)


def share(**numbers):
    return Capacity.share(**{"groups": 1, "n_ctx": 4096, "n_ctx_train": 2048, **numbers})


def test_requests_share_the_context_and_the_groups_share_the_requests():
    found = share(parallel=7, groups=2, n_ctx=7168)
    assert (found.slots, found.n_ctx, found.parallel) == ((4, 3), 1024, 7)


def test_a_part_of_the_context_is_rounded_up_as_libllama_does():
    assert share(parallel=3).n_ctx == 1536
    assert share(parallel=4, n_ctx=4).n_ctx == 256


def test_no_context_is_the_models_own_for_each():
    assert share(parallel=4, n_ctx=0).n_ctx == 2048


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ({"parallel": 1, "groups": 2}, "1 requests at once in 2 groups"),
        ({"parallel": 1, "groups": -1}, "in -1 groups"),
        ({"parallel": 8, "n_ctx": 7}, "n_ctx is 7 for 8 requests"),
        ({"parallel": 8, "n_ctx": -1}, "n_ctx is -1"),
    ],
)
def test_what_cannot_be_shared_is_told(numbers, reason):
    with pytest.raises(CallerError, match=reason):
        share(**numbers)


def test_what_it_costs_is_said_in_one_line():
    assert Capacity((4, 4), 512, 94_400_000).describe() == (
        "8 requests at once in 2 groups, 512 tokens of context each; their KV cache takes 94.4 MB"
    )
    assert Capacity((1,), 512, 10**6).describe().startswith("1 request at once, 512 tokens")
