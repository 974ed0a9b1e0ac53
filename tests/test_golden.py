"""Our encoder and decoder against the bytes of the stock client and server, both directions.

Each captured frame comes with what its sender meant (tests/golden/README.md). From the meaning we
must make the same bytes, and from the bytes we must read the same meaning.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from ringline.wire import messages
from ringline.wire.commands import Command
from ringline.wire.frames import check_request, reply_frame, request_frame
from ringline.wire.graph import GraphBody
from ringline.wire.messages import Message, Request, SetTensor
from ringline.wire.tensor import NO_TENSOR, RECORD, Tensor
from tests.peers.golden import GoldenFrame, golden_frames, pattern

CLASSES: dict[str, type[Request]] = {
    value.COMMAND.name: value
    for name in messages.__all__
    if isinstance(value := getattr(messages, name), type)
    and issubclass(value, Request)
    and value is not Request
}
REQUESTS, REPLIES = golden_frames("request"), golden_frames("reply")


def record(fields: dict[str, Any] | None) -> bytes:
    """The tensor record of a meaning."""
    if fields is None:
        return NO_TENSOR
    plain = {**fields, "op_params": bytes.fromhex(fields["op_params"])}
    shapes = {key: tuple(fields[key]) for key in ("ne", "nb", "src")}
    return Tensor(**{**plain, **shapes}).pack()


def data(described: str | dict[str, Any]) -> bytes:
    """The data of a meaning: hex, or too long to write out."""
    return bytes.fromhex(described) if isinstance(described, str) else pattern(described["size"])


def plain(fields: dict[str, Any]) -> dict[str, Any]:
    """A meaning's fields as a message of ours holds them."""
    values = dict(fields)
    for key in values.keys() & {"tensor", "src", "dst"}:
        values[key] = record(values[key])
    for key in values.keys() & {"caps", "data"}:
        values[key] = data(values[key])
    if "sources" in values:
        values["sources"] = b"".join(map(record, values["sources"]))
    return values


def encode_request(frame: GoldenFrame) -> bytes:
    """The body that our side would send for a meaning."""
    values = plain(frame.fields)
    if frame.command == "GRAPH_COMPUTE":
        return encode_graph(frame)
    tail: bytes = values.pop("data", b"")
    return CLASSES[frame.command](**values).pack() + tail


def encode_graph(frame: GoldenFrame) -> bytes:
    """The graph of a meaning, its tensors in the order that the stock client chose."""
    records = {tensor["id"]: record(tensor) for tensor in frame.fields["tensors"]}
    order = GraphBody.unpack(frame.body).tensors["id"].tolist()
    tensors = np.frombuffer(b"".join(records[id_] for id_ in order), RECORD)
    nodes = np.array(frame.fields["nodes"], np.uint64)
    return bytes(GraphBody(frame.fields["device"], nodes, tensors).pack())


def reply_class(frame: GoldenFrame) -> type[Message]:
    """Our class of a reply that is more than data."""
    found: type[Message] = CLASSES[frame.command].Reply  # type: ignore[attr-defined]
    return found


def fields_of(message: Message) -> dict[str, Any]:
    """The fields of a message, in order."""
    return asdict(message)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("frame", REQUESTS, ids=str)
def test_our_request_has_the_bytes_of_the_stock_client(frame: GoldenFrame) -> None:
    assert request_frame(Command[frame.command], encode_request(frame)) == frame.raw


@pytest.mark.parametrize("frame", REQUESTS, ids=str)
def test_a_stock_request_passes_our_check_at_level_zero(frame: GoldenFrame) -> None:
    command, rule = check_request(frame.raw[0], len(frame.body), level=0)
    assert command == frame.id
    assert bool(rule.reply) == any(reply.command == frame.command for reply in REPLIES)


@pytest.mark.parametrize("frame", [f for f in REQUESTS if f.command in CLASSES], ids=str)
def test_we_read_a_stock_request_as_it_was_meant(frame: GoldenFrame) -> None:
    message = CLASSES[frame.command].unpack(frame.body)
    meant = plain(frame.fields)
    if isinstance(message, SetTensor):
        assert frame.body[SetTensor.LAYOUT.size :] == meant.pop("data")
    assert fields_of(message) == meant


@pytest.mark.parametrize("frame", golden_frames("request", "GRAPH_COMPUTE"), ids=str)
def test_we_read_a_stock_graph_as_it_was_meant(frame: GoldenFrame) -> None:
    graph = GraphBody.unpack(frame.body)
    assert graph.device == frame.fields["device"]
    assert graph.nodes.tolist() == frame.fields["nodes"]
    read = {tensor["id"]: tensor.tobytes() for tensor in graph.tensors}
    assert read == {tensor["id"]: record(tensor) for tensor in frame.fields["tensors"]}


@pytest.mark.parametrize("frame", golden_frames("request", "SET_TENSOR"), ids=str)
def test_we_read_a_stock_tensor_record_as_it_was_meant(frame: GoldenFrame) -> None:
    tensor = Tensor.unpack(SetTensor.unpack(frame.body).tensor)
    meant = frame.fields["tensor"]
    assert (tensor.name, list(tensor.ne), tensor.data) == (
        meant["name"],
        meant["ne"],
        meant["data"],
    )
    assert tensor.pack() == record(meant)


@pytest.mark.parametrize("frame", REPLIES, ids=str)
def test_our_reply_has_the_bytes_of_the_stock_server(frame: GoldenFrame) -> None:
    values = plain(frame.fields)
    body = values["data"] if "data" in values else reply_class(frame)(*values.values()).pack()
    assert reply_frame(body) == frame.raw


@pytest.mark.parametrize("frame", [f for f in REPLIES if f.command != "GET_TENSOR"], ids=str)
def test_we_read_a_stock_reply_as_it_was_meant(frame: GoldenFrame) -> None:
    message = reply_class(frame).unpack(frame.body)
    assert list(fields_of(message).values()) == list(plain(frame.fields).values())
