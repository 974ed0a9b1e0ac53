"""What may be wrong with a graph: each function changes one thing and says what.

A graph under change is a `Draft` (draft.py): the records of its tensors, which can be changed in
place, and the ids of its nodes. `Random` decides everything, so a seed gives the same changes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random
from typing import Final

import numpy as np

from ringline.ggml.types import tables
from tests.fuzz.corpus import SHIFT
from tests.fuzz.draft import EDGES, EDGES_64, U32, U64, Draft, Mutator, near, pick


def number_field(name: str, most: int, edges: Sequence[int]) -> Mutator:
    """A mutator of one number of a record."""

    def change(draft: Draft, luck: Random) -> str:
        place = pick(draft, luck)
        draft.touched.append(place)
        column = draft.tensors[name]
        was = int(column[place])
        now = near(was % most, luck, most, edges)
        if column.dtype.kind == "i":
            now = now - most if now >= most >> 1 else now
        column[place] = now
        return f"{name} of {draft.name(place)}: {was} -> {now}"

    return change


def shape_field(name: str) -> Mutator:
    """A mutator of one entry of ne or nb."""

    def change(draft: Draft, luck: Random) -> str:
        place, axis = pick(draft, luck), luck.randrange(4)
        draft.touched.append(place)
        row = draft.tensors[name][place]
        was = int(row[axis])
        if luck.random() < 0.2:
            other = luck.randrange(4)
            row[axis], row[other] = row[other], row[axis]
            return f"{name} of {draft.name(place)}: {axis} and {other} swapped"
        row[axis] = near(was, luck, U32, EDGES)
        return f"{name}[{axis}] of {draft.name(place)}: {was} -> {int(row[axis])}"

    return change


def whole_shape(draft: Draft, luck: Random) -> str:
    """Another shape with strides that belong to it: only a rule of the op can object."""
    place, known = pick(draft, luck), tables()
    draft.touched.append(place)
    record = draft.tensors[place]
    kind = int(record["type"])
    if kind >= len(known.block) or not known.block[kind]:
        return type_(draft, luck)
    ne = [int(n) for n in record["ne"]]
    choice = luck.randrange(4)
    axis = luck.randrange(4)
    if choice == 0:
        luck.shuffle(ne)
    elif choice == 1:
        ne[axis] = max(1, ne[axis] // luck.choice((2, 4)))
    elif choice == 2:
        ne[axis] = luck.choice((0, 1, 2, ne[axis] * 2, ne[axis] + 1))
    else:
        ne = [ne[0] * ne[1] % U32, ne[2], ne[3], 1]
    block, size = int(known.block[kind]), int(known.size[kind])
    nb = [size, size * (ne[0] // block), 0, 0]
    nb[2] = nb[1] * ne[1]
    nb[3] = nb[2] * ne[2]
    record["ne"], record["nb"] = ne, [stride % U32 for stride in nb]
    return f"shape of {draft.name(place)}: {ne}"


def type_(draft: Draft, luck: Random) -> str:
    """Another type; often with the strides that belong to it."""
    place, known = pick(draft, luck), tables()
    draft.touched.append(place)
    record = draft.tensors[place]
    was = int(record["type"])
    record["type"] = now = luck.choice([*range(len(known.block)), 1 << 31, U32 - 1])
    if luck.random() < 0.5 and now < len(known.block) and known.block[now]:
        ne = [int(n) for n in record["ne"]]
        nb = [int(known.size[now]), int(known.size[now]) * (ne[0] // int(known.block[now]))]
        nb += [nb[1] * ne[1], nb[1] * ne[1] * ne[2]]
        record["nb"] = [stride % U32 for stride in nb]
    return f"type of {draft.name(place)}: {was} -> {now}"


def op(draft: Draft, luck: Random) -> str:
    """Another op: any, or that of another node."""
    place = pick(draft, luck)
    draft.touched.append(place)
    before = draft.name(place)
    if luck.random() < 0.4:
        draft.tensors["op"][place] = draft.tensors["op"][pick(draft, luck)]
    else:
        draft.tensors["op"][place] = luck.choice([*range(len(tables().op_names)), U32 - 1])
    return f"op of {before}: now {draft.name(place)}"


def op_params(draft: Draft, luck: Random) -> str:
    """One word of the parameters, or all of them."""
    place = pick(draft, luck)
    draft.touched.append(place)
    raw = bytearray(bytes(draft.tensors["op_params"][place]))
    if luck.random() < 0.2:
        raw[:] = luck.randbytes(len(raw))
        what = "random"
    else:
        word = luck.choice((0, 1, 2, 3, 4, luck.randrange(16)))
        floats = (float("nan"), float("inf"), -1.0, 0.0, 1e30, 1e-30)
        number = struct.pack("<I", near(0, luck, U32, EDGES))
        raw[4 * word : 4 * word + 4] = luck.choice([number, struct.pack("<f", luck.choice(floats))])
        what = f"word {word} is {raw[4 * word : 4 * word + 4].hex()}"
    draft.tensors["op_params"][place] = np.void(bytes(raw))
    return f"op_params of {draft.name(place)}: {what}"


def source(draft: Draft, luck: Random) -> str:
    """A source that is another tensor, none, itself, or nothing that exists."""
    place, slot = pick(draft, luck), luck.choice((0, 0, 1, 1, 2, 3, 4, luck.randrange(10)))
    draft.touched.append(place)
    row = draft.tensors["src"][place]
    was = int(row[slot])
    choices = [0, place + 1, luck.randrange(len(draft.tensors)) + 1, pick(draft, luck) + 1]
    row[slot] = luck.choice([*choices, *choices[2:], luck.randrange(U64)])
    if luck.random() < 0.2:
        row[0], row[1] = row[1], row[0]
    return f"src[{slot}] of {draft.name(place)}: {was} -> {int(row[slot])}"


def view(draft: Draft, luck: Random) -> str:
    """What it is a view of, and where in it."""
    place = pick(draft, luck)
    draft.touched.append(place)
    record = draft.tensors[place]
    if luck.random() < 0.5:
        record["view_src"] = luck.choice([0, place + 1, pick(draft, luck) + 1, luck.randrange(U64)])
    else:
        record["view_offs"] = near(int(record["view_offs"]), luck, U64, EDGES_64)
    return f"view of {draft.name(place)}: {int(record['view_src'])}+{int(record['view_offs'])}"


def address(draft: Draft, luck: Random) -> str:
    """Another place for its data: elsewhere in its buffer, at its end, in another one, nowhere."""
    place = pick(draft, luck)
    draft.touched.append(place)
    record, sizes = draft.tensors[place], draft.scene.sizes
    number = luck.randrange(len(sizes)) + 1
    if luck.random() < 0.6 and 0 < int(record["buffer"]) <= len(sizes):
        number = int(record["buffer"])
    at = luck.choice(
        [
            0,
            sizes[number - 1],
            sizes[number - 1] - 32,
            luck.randrange(sizes[number - 1]),
            luck.randrange(sizes[number - 1]) & ~31,
            (int(record["data"]) + luck.choice((-32, -4, -1, 1, 4, 32))) % (1 << SHIFT),
        ]
    )
    record["data"] = (number << SHIFT) + at
    if luck.random() < 0.7:
        record["buffer"] = number
    if luck.random() < 0.1:
        record["data"] = luck.choice(EDGES_64)
    return f"data of {draft.name(place)}: {int(record['data']):#x} in {int(record['buffer'])}"


def buffer(draft: Draft, luck: Random) -> str:
    """Another buffer, none, or one that is not there."""
    place = pick(draft, luck)
    draft.touched.append(place)
    number = luck.choice([0, *range(1, len(draft.scene.sizes) + 2), luck.randrange(U64)])
    draft.tensors["buffer"][place] = number
    return f"buffer of {draft.name(place)}: {number}"


def text(draft: Draft, luck: Random) -> str:
    """A name without end, with control characters, or that is no text."""
    place = pick(draft, luck)
    draft.touched.append(place)
    names = [luck.randbytes(64), b"A" * 64, b"\n\x1b[31m%s%n\r", b"\xff" * 64, b"", b"\0hidden"]
    draft.tensors["name"][place] = luck.choice(names)
    return f"name of {draft.name(place)}"


def swap_records(draft: Draft, luck: Random) -> str:
    """Two tensors trade all but their ids, or one field."""
    one, other = pick(draft, luck), pick(draft, luck)
    draft.touched += [one, other]
    fields = draft.tensors.dtype.names
    assert fields is not None
    which = luck.choice(fields) if luck.random() < 0.6 else None
    for name in (which,) if which else fields[1:]:
        column = draft.tensors[name]
        column[[one, other]] = column[[other, one]]
    return f"{which or 'all'} of {draft.name(one)} and {draft.name(other)} swapped"


def graft(draft: Draft, luck: Random) -> str:
    """A record of another graph of the scene in the place of one of this graph."""
    place = pick(draft, luck)
    draft.touched.append(place)
    donor = luck.choice(draft.scene.graphs).body.tensors
    stranger = donor[luck.randrange(len(donor))].copy()
    stranger["id"] = draft.tensors["id"][place]
    draft.tensors[place] = stranger
    return f"another graph's {draft.name(place)} at place {place}"


def nodes(draft: Draft, luck: Random) -> str:
    """Order, number and choice of the nodes."""
    count = len(draft.nodes)
    one, other = luck.randrange(max(1, count)), luck.randrange(max(1, count))
    choice = luck.randrange(6)
    if choice == 0 and count:
        draft.nodes[one], draft.nodes[other] = draft.nodes[other], draft.nodes[one]
        return f"nodes {one} and {other} swapped"
    if choice == 1 and count:
        return f"node {draft.nodes.pop(one)} deleted"
    if choice == 2 and count:
        draft.nodes.insert(one, draft.nodes[other])
        return f"node {draft.nodes[one]} twice"
    if choice == 3:
        draft.nodes.insert(one, luck.choice([0, luck.randrange(len(draft.tensors)) + 1, U64 - 1]))
        return f"node {draft.nodes[one]} inserted"
    if choice == 4:
        draft.nodes = draft.nodes[: luck.choice((0, 1, count // 2))]
        return f"only {len(draft.nodes)} nodes"
    draft.nodes.reverse()
    return "nodes reversed"


def records(draft: Draft, luck: Random) -> str:
    """A tensor less, a tensor twice, or an id that another one has."""
    place, count = pick(draft, luck), len(draft.tensors)
    choice = luck.randrange(3)
    if choice == 0 and count > 1:
        keep = np.arange(count) != place
        draft.tensors = draft.tensors[keep]
        return f"tensor {place} deleted"
    if choice == 1:
        draft.tensors = np.concatenate([draft.tensors, draft.tensors[place : place + 1]])
        if luck.random() < 0.5:
            draft.tensors["id"][-1] = count + 1
        return f"tensor {place} twice"
    draft.tensors["id"][place] = luck.choice([0, pick(draft, luck) + 1, luck.randrange(U64)])
    return f"id of tensor {place}: {int(draft.tensors['id'][place])}"


def device(draft: Draft, luck: Random) -> str:
    """A device that is not there."""
    draft.device = luck.choice([1, 2, U32 - 1])
    return f"device {draft.device}"


#: with weights: what the rules of the ops have to see comes most.
MUTATORS: Final[dict[Mutator, int]] = {
    type_: 12,
    op: 10,
    op_params: 14,
    shape_field("ne"): 14,
    shape_field("nb"): 12,
    whole_shape: 14,
    source: 14,
    view: 6,
    address: 10,
    buffer: 4,
    number_field("flags", U32, EDGES): 2,
    number_field("use_count", U32, EDGES): 2,
    text: 2,
    swap_records: 8,
    graft: 6,
    nodes: 8,
    records: 4,
    device: 1,
}


def mutate(draft: Draft, luck: Random) -> None:
    """One to four changes."""
    kinds, weights = list(MUTATORS), list(MUTATORS.values())
    for change in luck.choices(kinds, weights, k=luck.choice((1, 1, 1, 2, 2, 3, 4))):
        if len(draft.tensors):
            draft.notes.append(change(draft, luck))
