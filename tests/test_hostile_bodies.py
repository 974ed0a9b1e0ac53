"""Properties of what reads a stranger's bytes: a value, or an error of ours; never another one."""

from __future__ import annotations

import itertools
from contextlib import suppress
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringline.errors import ProtocolError, RefusedError
from ringline.server.buffers import Registry
from ringline.server.graphs import build_graph
from ringline.server.handshake import Handshake, Stage
from ringline.server.regions import locate
from ringline.wire.commands import RULES, Command
from ringline.wire.extension import (
    CopyTensorTo,
    ExtHello,
    ExtHelloReply,
    PeerData,
    ProbePeer,
    RecvTensor,
    SendTensor,
    SupportsOp,
    unpack_get_tensors,
    unpack_set_tensors,
)
from ringline.wire.frames import check_request, request_frame
from ringline.wire.graph import GraphBody
from ringline.wire.messages import Hello
from ringline.wire.rows import CheckRows, SetRows, unpack_row_table
from ringline.wire.sampling import KeepRows, ReadKept, Sample, SamplerNew, VocabularyPart
from ringline.wire.tensor import RECORD, Tensor
from tests.fuzz.corpus import Scene, record_scenes
from tests.fuzz.draft import Draft
from tests.fuzz.models import FEW
from tests.fuzz.mutators import mutate
from tests.fuzz.nodes import FUZZ_NODE
from tests.peers.processes import ringline_node

READERS = {
    "GRAPH_COMPUTE": GraphBody.unpack,
    "GET_TENSORS": unpack_get_tensors,
    "SET_TENSORS": lambda raw: list(unpack_set_tensors(raw)),
    "ROW_TABLE": unpack_row_table,
    "EXT_HELLO's reply": ExtHelloReply.unpack,
    **{
        kind.COMMAND.name: kind.unpack
        for kind in (
            CopyTensorTo,
            ExtHello,
            PeerData,
            ProbePeer,
            RecvTensor,
            SendTensor,
            SupportsOp,
            CheckRows,
            SetRows,
            KeepRows,
            ReadKept,
            Sample,
            SamplerNew,
            VocabularyPart,
        )
    },
}


def least_of(name: str) -> int:
    """Connections hand on nothing shorter."""
    return RULES[Command[name]].least if name in Command.__members__ else 0


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_bytes_are_a_message_or_a_protocol_error(name, data):
    least = least_of(name)
    raw = data.draw(st.binary(min_size=least, max_size=least + 700))
    with suppress(ProtocolError):
        READERS[name](memoryview(raw))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 255), st.integers(0, (1 << 64) - 1), st.integers(0, 5))
def test_any_header_is_a_known_command_of_a_legal_size_or_refused(number, size, level):
    try:
        command, rule = check_request(number, size, level)
    except ProtocolError:
        return
    assert rule.least <= size <= rule.most
    assert command == number
    assert rule.level <= level


GREETING = request_frame(Command.HELLO, Hello().pack())


@settings(max_examples=300, deadline=None)
@given(
    st.booleans(), st.binary(max_size=120), st.lists(st.integers(1, 40), min_size=1, max_size=40)
)
def test_a_handshake_takes_no_more_than_it_wants_and_ends_or_refuses(greets, words, pieces):
    """Whatever comes in whatever pieces, the machine is in a stage that it knows."""
    handshake = Handshake()
    left = (GREETING if greets else b"") + words
    with suppress(ProtocolError):
        for piece in itertools.cycle(pieces):
            if not left or handshake.stage is Stage.DONE:
                break
            if handshake.stage is Stage.FIRST_COMMAND:
                handshake.peeked(left[0])
                continue
            take = left[: min(piece, handshake.wanted())]
            assert take
            handshake.feed(take)
            left = left[len(take) :]
    assert handshake.stage in Stage


@settings(max_examples=300, deadline=None)
@given(st.binary(min_size=RECORD.itemsize, max_size=RECORD.itemsize))
def test_any_record_is_read_and_without_a_buffer_refused(raw):
    assert isinstance(Tensor.unpack(raw), Tensor)
    with pytest.raises(RefusedError):
        locate(raw, Registry(7).get)


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    with ringline_node(*FUZZ_NODE) as node:
        return record_scenes(node.endpoint, FEW)


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 1 << 32))
def test_a_changed_graph_of_another_session_is_always_refused_with_a_sentence(scenes, seed):
    """None of its buffers is ours; whatever is checked first, the answer is a refusal."""
    luck = Random(seed)
    scene = luck.choice(scenes)
    draft = Draft.of(scene, luck.choice(scene.graphs).body)
    mutate(draft, luck)
    with pytest.raises(RefusedError) as refusal:
        build_graph(draft.body(), Registry(7))
    assert "\n" not in str(refusal.value)
    assert refusal.value.cause


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 1 << 32))
def test_a_graph_with_changed_bytes_is_read_whole_or_refused(scenes, seed):
    luck = Random(seed)
    scene = luck.choice(scenes)
    raw = bytearray(luck.choice(scene.graphs).body.pack())
    for _ in range(luck.randrange(1, 8)):
        raw[luck.randrange(len(raw))] = luck.randrange(256)
    if luck.random() < 0.5:
        del raw[luck.randrange(len(raw)) :]
    try:
        body = GraphBody.unpack(bytes(raw))
    except ProtocolError:
        return
    assert len(body.pack()) == len(raw)
    with pytest.raises(RefusedError):
        build_graph(body, Registry(7))


def test_a_graph_of_nothing_at_all_is_refused():
    empty = GraphBody(0, np.zeros(0, np.uint64), np.zeros(0, RECORD))
    with pytest.raises(RefusedError, match="without a node"):
        build_graph(empty, Registry(7))
