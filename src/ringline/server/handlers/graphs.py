"""Commands that compute."""

from __future__ import annotations

from ringline.errors import RefusedError
from ringline.ggml.devices import Device
from ringline.server.context import Context
from ringline.server.graphs import StoredGraph, build_graph
from ringline.wire.graph import GraphBody
from ringline.wire.messages import GraphRecompute


def graph_compute(raw: memoryview, context: Context) -> None:
    """Compute a graph and keep it for GRAPH_RECOMPUTE.

    The codec of level 5 hands out the very bytes of an earlier graph where one is repeated: those
    have been checked and laid out already.
    """
    body = GraphBody.unpack(raw)
    device = context.device(body.device)
    context.graphs.pop(body.device, None)
    graph = context.laid_out.find(raw.obj, context.registry)
    if graph is None:
        graph = _build(body, device, context)
        context.laid_out.add(raw.obj, graph)
    context.compute(body.device, graph)
    context.graphs[body.device] = graph


def _build(body: GraphBody, device: Device, context: Context) -> StoredGraph:
    """Lay a graph out; where the session stores too much, this connection forgets what it can."""
    room = context.session.graph_room
    try:
        room.check(body)
    except RefusedError:
        context.laid_out.clear()
        room.check(body)
    checked = context.session.checked
    graph = build_graph(body, context.registry, device=device, checked=checked)
    room.take(body, graph)
    return graph


def graph_recompute(request: GraphRecompute, context: Context) -> None:
    """Compute the last graph of a device again."""
    context.device(request.device)
    graph = context.graphs.get(request.device)
    if graph is None:
        raise RefusedError(f"there is no stored graph for device {request.device}")
    if not graph.usable(context.registry):
        del context.graphs[request.device]
        raise RefusedError("the stored graph was forgotten when one of its buffers was freed")
    context.compute(request.device, graph)
