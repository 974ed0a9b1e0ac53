"""The order of transfers, proven on a small model: no stale or early bytes, and every step ends.

Each claim about the rules is explored over all orders of events. The rules are also broken one at a
time, to show that the model would notice.
"""

from __future__ import annotations

import pytest

from tests.model.ordering import Scenario, explore

CHAIN = (0, 1, 2)
#: the last stage is on the first node again.
THERE_AND_BACK = (0, 1, 0)


def assert_holds(**facts: object) -> None:
    found = explore(Scenario(**facts))
    assert not found.violation, "\n".join([found.violation, *found.history])
    assert found.states > 20


def violation(**facts: object) -> str:
    return explore(Scenario(**facts)).violation


@pytest.mark.parametrize("copies", [1, 4])
@pytest.mark.parametrize("path", ["rendezvous", "copy-to", "hub"])
def test_no_stale_or_early_bytes_are_read_over_two_stages(path, copies):
    assert_holds(path=path, ubatches=5 if path == "rendezvous" else 6, copies=copies)


@pytest.mark.parametrize("path", ["rendezvous", "copy-to", "hub"])
def test_no_stale_or_early_bytes_are_read_over_three_stages(path):
    assert_holds(stages=CHAIN, path=path, ubatches=3)


def test_a_node_may_hold_two_stages_that_are_not_neighbours():
    assert_holds(stages=THERE_AND_BACK, ubatches=4)


def test_a_second_step_may_use_the_buffers_of_the_first():
    assert_holds(stages=CHAIN, steps=3)


@pytest.mark.parametrize("path", ["rendezvous", "copy-to", "hub"])
def test_two_lanes_share_nodes_and_connections(path):
    assert_holds(lanes=2, path=path)


def test_two_lanes_share_a_chain():
    assert_holds(lanes=2, stages=CHAIN, ubatches=1, queue=1)
    assert_holds(lanes=2, stages=THERE_AND_BACK, queue=1)


@pytest.mark.parametrize("room", [0, 1, 4])
def test_an_inbox_of_any_size_blocks_nobody_for_ever(room):
    assert_holds(room=room, queue=1, ubatches=4)


def test_a_lost_transfer_ends_in_a_step_decoded_again():
    assert_holds(losses=1, steps=2)
    assert_holds(losses=3)
    assert_holds(losses=1, stages=CHAIN)


def test_a_recv_that_gives_up_too_early_does_no_harm():
    assert_holds(deadlines=2, ubatches=3)
    assert_holds(deadlines=1, losses=1, stages=CHAIN, ubatches=1)


def test_a_lost_transfer_of_one_lane_does_not_stop_the_other():
    assert_holds(lanes=2, losses=1, ubatches=1)


@pytest.mark.parametrize("copies", [1, 2])
def test_a_push_past_the_stream_is_found_to_be_wrong(copies):
    assert "computation" in violation(path="push", ubatches=4, copies=copies)


def test_data_written_when_they_come_are_found_to_be_wrong():
    assert "computation" in violation(in_stream=False)
    assert "computation" in violation(in_stream=False, ubatches=5, copies=4)


def test_a_send_without_a_snapshot_is_found_to_be_wrong():
    assert "computation begins" in violation(snapshot=False)


def test_copy_to_without_a_barrier_is_found_to_be_wrong():
    assert "computation" in violation(path="copy-to", barrier=False)
    assert "computation" in violation(path="copy-to", barrier=False, ubatches=5, copies=4)


def test_a_recv_that_gives_up_while_data_arrive_is_found_to_be_wrong():
    assert "after their RECV gave up" in violation(patient=False, deadlines=1)


def test_late_data_that_nobody_fetches_are_found_to_block():
    assert "nothing goes on" in violation(remembers=False, deadlines=2, ubatches=3)


def test_tickets_that_are_not_voided_are_found_to_block():
    assert "nothing goes on" in violation(voids=False, losses=1)


def test_the_model_tells_how_it_came_to_a_violation():
    found = explore(Scenario(snapshot=False))
    assert found.history[0] == "client 0 goes on"
    assert "0 to 1: sends" in found.history
