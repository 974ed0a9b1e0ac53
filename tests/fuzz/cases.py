"""A case: what is sent to a node in a scene. A function of the seed, its number and the scene."""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np

from ringline.ggml.types import tables
from ringline.wire.graph import GraphBody
from tests.fuzz.corpus import SHIFT, Graph, Scene, Write
from tests.fuzz.draft import Draft
from tests.fuzz.mutators import mutate

#: cases of one scene in a row: a session is set up once for them.
ROUND: Final = 25
I32, I64, F16, F32 = 26, 27, 1, 0


class Kind(StrEnum):
    """What a case does."""

    FIELDS = "fields"
    BYTES = "bytes"
    DATA = "data"
    FREE = "after-free"
    STEP = "step"


_WEIGHTS: Final = {Kind.FIELDS: 74, Kind.BYTES: 7, Kind.DATA: 14, Kind.FREE: 2, Kind.STEP: 3}
#: a change of coded bytes: where (a share of their length), how, and with what.
Patch = tuple[float, str, str]


@dataclass(frozen=True, slots=True)
class Case:
    """One case, in the words of its scene.

    Attributes:
        scene: its name; graph: the number of the graph in it.
        body: of GRAPH_COMPUTE; writes: what is written before.
        again: whether GRAPH_RECOMPUTE follows; free: a buffer to free before that, 0 for none.
        patches: of a STEP: what is changed in the bytes that the codec has made of it all.
        notes: what is wrong with it, in words.
    """

    seed: int
    number: int
    kind: Kind
    scene: str
    graph: int
    body: bytes
    writes: tuple[Write, ...]
    again: bool
    free: int
    notes: tuple[str, ...]
    patches: tuple[Patch, ...] = ()

    def save(self, path: Path) -> None:
        """Write it to a file that `replay` reads."""
        facts = {field: getattr(self, field) for field in self.__slots__}
        facts["body"] = base64.b64encode(self.body).decode()
        facts["writes"] = [
            (write.buffer, write.offset, base64.b64encode(write.data).decode())
            for write in self.writes
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(facts, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Case:
        """Read a file that save() has written."""
        facts: dict[str, Any] = json.loads(path.read_text())
        facts["body"] = base64.b64decode(facts["body"])
        facts["writes"] = tuple(
            Write(number, offset, base64.b64decode(data))
            for number, offset, data in facts["writes"]
        )
        facts["kind"], facts["notes"] = Kind(facts["kind"]), tuple(facts["notes"])
        facts["patches"] = tuple((at, how, what) for at, how, what in facts["patches"])
        return cls(**facts)


def make_case(seed: int, number: int, scenes: list[Scene]) -> Case:
    """The case of this number."""
    scene = scenes[number // ROUND % len(scenes)]
    luck = Random(f"{seed} {number}")
    which = luck.randrange(len(scene.graphs))
    graph = scene.graphs[which]
    kind = luck.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    draft, writes = Draft.of(scene, graph.body), list(graph.writes)
    free = 0
    if kind is Kind.FIELDS or (kind is Kind.DATA and luck.random() < 0.2):
        mutate(draft, luck)
    if kind is Kind.DATA:
        writes += _bad_data(draft, graph, luck)
    body = bytes(draft.body().pack())
    if kind is Kind.BYTES:
        body = _bad_bytes(body, draft, luck)
    if kind is Kind.FREE:
        free = luck.randrange(len(scene.sizes)) + 1
        draft.notes.append(f"buffer {free} freed between two computations")
    again = kind is Kind.FREE or luck.random() < 0.1
    patches = _patches(luck) if kind is Kind.STEP else ()
    notes = (*draft.notes, *map(str, patches))
    return Case(
        seed, number, kind, scene.name, which, body, tuple(writes), again, free, notes, patches
    )


def _patches(luck: Random) -> tuple[Patch, ...]:
    """Changes of a STEP's bytes, rather of its head, where its skeleton is."""
    return tuple(
        (
            luck.random() ** luck.choice((1, 3, 8)),
            luck.choice(("set", "set", "insert", "delete", "cut")),
            luck.randbytes(luck.choice((1, 1, 2, 4, 8))).hex(),
        )
        for _ in range(luck.choice((1, 1, 2, 3)))
    )


def patched(body: bytes, patches: tuple[Patch, ...]) -> bytes:
    """A body with all changes made."""
    raw = bytearray(body)
    for share, how, text in patches:
        at, piece = int(share * len(raw)), bytes.fromhex(text)
        if how == "insert":
            raw[at:at] = piece
        elif how == "cut":
            del raw[at:]
        else:
            raw[at : at + len(piece)] = piece if how == "set" else b""
    return bytes(raw)


def _bad_bytes(body: bytes, draft: Draft, luck: Random) -> bytes:
    """Flipped, overwritten, cut, longer: without regard to what they mean."""
    raw = bytearray(body)
    for _ in range(luck.choice((1, 1, 2, 4, 16))):
        at = luck.randrange(len(raw))
        choice = luck.randrange(5)
        if choice == 0:
            raw[at] ^= 1 << luck.randrange(8)
        elif choice == 1:
            raw[at : at + 4] = luck.randbytes(len(raw[at : at + 4]))
        elif choice == 2:
            raw[at : at + 8] = bytes([luck.choice((0, 255))]) * len(raw[at : at + 8])
        elif choice == 3 and len(raw) > 16:
            del raw[at : len(raw) if luck.random() < 0.3 else at + luck.choice((1, 4, 8, 296))]
        else:
            raw[at:at] = luck.randbytes(luck.choice((1, 4, 8, 296)))
        draft.notes.append(f"bytes changed at {at} of {len(body)}")
        if not raw:
            raw = bytearray(1)
    return bytes(raw)


def _bad_data(draft: Draft, graph: Graph, luck: Random) -> list[Write]:
    """Other contents of tensors that are written from outside: ids out of range, no numbers."""
    inputs = _inputs(draft)
    indices = [place for place in inputs if int(draft.tensors["type"][place]) in (I32, I64)]
    writes = []
    for _ in range(luck.choice((1, 1, 2, 3))):
        pool = indices if indices and luck.random() < 0.7 else inputs
        if not pool:
            return writes
        place = luck.choice(pool)
        record = draft.tensors[place]
        count = int(np.prod(record["ne"].astype(np.int64)))
        data = _numbers(int(record["type"]), count, luck)
        number = int(record["buffer"])
        offset = int(record["data"]) - (number << SHIFT)
        if 0 < number <= len(draft.scene.sizes) and 0 <= offset < draft.scene.sizes[number - 1]:
            writes.append(Write(number, offset, data[: draft.scene.sizes[number - 1] - offset]))
            draft.notes.append(f"data of {draft.name(place)}: {data[:16].hex()}...")
    return writes


def _inputs(draft: Draft) -> list[int]:
    """Places of the leaves that have data."""
    leaves = (draft.tensors["op"] == 0) & (draft.tensors["buffer"] != 0)
    return [int(place) for place in np.flatnonzero(leaves)]


def _numbers(kind: int, count: int, luck: Random) -> bytes:
    """Contents for a tensor; for ids some that are just out of range, and some that are far."""
    count = min(count, 1 << 16)
    if kind in (I32, I64):
        letter, bits = ("i", 32) if kind == I32 else ("q", 64)
        edges = [0, 1, -1, 2, 4, 63, 64, 255, 256, 511, 512, 1 << 20, 1 << (bits - 2)]
        edges += [-(1 << (bits - 1)), (1 << (bits - 1)) - 1]
        one = luck.choice(edges)
        values = [one] * count if luck.random() < 0.5 else luck.choices(edges, k=count)
        return struct.pack(f"<{count}{letter}", *values)
    if kind in (F16, F32):
        edges_f = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e4, 1e-7]
        kind_f = np.float16 if kind == F16 else np.float32
        return np.array(luck.choices(edges_f, k=min(count, 256)), kind_f).tobytes()
    return luck.randbytes(min(count, 4096))


def node_prefix(case: Case, count: int) -> Case:
    """The same case with its first nodes alone, to find out which one kills."""
    body = GraphBody.unpack(case.body)
    shorter = GraphBody(body.device, body.nodes[:count], body.tensors)
    fields = {field: getattr(case, field) for field in case.__slots__}
    return Case(**{**fields, "body": bytes(shorter.pack()), "again": False, "free": 0})


def op_of_node(case: Case, index: int) -> str:
    """The name of the op of a case's node."""
    body = GraphBody.unpack(case.body)
    (place,) = np.flatnonzero(body.tensors["id"] == body.nodes[index])[:1]
    return tables().op_names[int(body.tensors["op"][place])]
