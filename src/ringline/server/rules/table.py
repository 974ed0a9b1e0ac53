"""The rules of the catalogue, for all nodes of a graph at once: one expression a rule."""

from __future__ import annotations

import numpy as np

from ringline.ggml.types import tables
from ringline.server.columns import I64, Mask, refuse
from ringline.server.rules.catalogue import Catalogue
from ringline.server.rules.facts import Facts, Strides

__all__ = ["check_table"]

#: ops for which a source without elements is no danger: they only copy what is there.
_MAY_BE_EMPTY = ("NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE", "CONCAT", "SET_ROWS")
_WORDS = {
    Strides.ROWS: "the elements of a row are not side by side",
    Strides.PACKED: "it is not contiguous",
    Strides.EVEN: "its rows are not at even distances",
    Strides.EXACT: "its strides are not those of a new tensor",
}


def check_table(facts: Facts, known: Catalogue) -> None:
    """Apply the catalogue.

    Raises:
        RefusedError: names the tensor, its op and the rule that it breaks.
    """
    structure = facts.structure
    nodes, sources = structure.nodes, structure.sources[structure.nodes]
    ops = structure.ops[nodes]
    _refuse(facts, nodes, ~known.known[ops], "op-unruled", "no rule says that this op is safe")
    bad = known.kinds.bad(ops, facts.kinds[nodes], facts.kinds[sources])
    _refuse(facts, nodes, bad, "op-type", "it does not take these types")
    _check_strides(facts, known, ops, sources)
    _check_shapes(facts, known, ops, sources)
    _check_empty(facts, ops, sources)
    _check_in_place(facts, known, ops)


def _check_strides(facts: Facts, known: Catalogue, ops: I64, sources: I64) -> None:
    nodes = facts.structure.nodes
    have = np.concatenate((facts.strides[nodes][:, None], facts.strides[sources]), axis=1)
    lacking = known.strides[ops] & ~have
    if lacking.any():
        row, place = (int(part[0]) for part in np.nonzero(lacking))
        flag = next(flag for flag in Strides if lacking[row, place] & flag)
        where = f"source {place - 1}" if place else "the result"
        bad = lacking.any(axis=1)
        _refuse(facts, nodes, bad, "op-stride", f"{where}: {_WORDS[flag]}")


def _check_shapes(facts: Facts, known: Catalogue, ops: I64, sources: I64) -> None:
    nodes = facts.structure.nodes
    like = known.like[ops]
    alike = np.flatnonzero(like >= 0)
    models = sources[alike, like[alike]]
    differ = (facts.ne[:, nodes[alike]] != facts.ne[:, models]).any(axis=0)
    text = "its shape is not that of its source"
    _refuse(facts, nodes[alike], differ, "op-shape", text)
    repeated = np.flatnonzero(known.repeats[ops])
    whole, part = facts.ne[:, sources[repeated, 0]], facts.ne[:, sources[repeated, 1]]
    misfit = (whole % np.maximum(part, 1) != 0).any(axis=0)
    text = "source 1 cannot be repeated to the shape of source 0"
    _refuse(facts, nodes[repeated], misfit, "op-shape", text)


def _check_empty(facts: Facts, ops: I64, sources: I64) -> None:
    """Who has a result has something in all sources: else it divides by 0 or reads on."""
    sizes = np.append(facts.structure.sizes, 1)
    hollow = sizes[sources] == 0
    if hollow.any():
        nodes = facts.structure.nodes
        lenient = np.isin(ops, [tables().op_names.index(name) for name in _MAY_BE_EMPTY])
        bad = hollow.any(axis=1) & (sizes[nodes] > 0) & ~lenient
        _refuse(facts, nodes, bad, "op-shape", "one of its sources has no elements")


def _check_in_place(facts: Facts, known: Catalogue, ops: I64) -> None:
    """A result that is a view is where its source is, and laid out as that."""
    structure = facts.structure
    places = np.flatnonzero((structure.views[structure.nodes] >= 0) & ~tables().views[ops])
    if not len(places):
        return
    nodes, ops = structure.nodes[places], ops[places]
    models = structure.sources[nodes, known.inside[ops]]
    text = "its result cannot be a view"
    _refuse(facts, nodes, known.like[ops] < 0, "op-place", text)
    differ = (facts.ne[:, nodes] != facts.ne[:, models]) | (
        facts.nb[:, nodes] != facts.nb[:, models]
    )
    roots = np.where(structure.views[models] >= 0, structure.views[models], models)
    apart = structure.views[nodes] != roots
    text = "its result is a view, but not of what it changes"
    _refuse(facts, nodes, differ.any(axis=0) | apart, "op-place", text)


def _refuse(facts: Facts, nodes: I64, bad: Mask, rule: str, text: str) -> None:
    if bad.any():
        structure = facts.structure
        op = int(structure.ops[nodes[int(bad.argmax())]])
        name = tables().op_names[op]
        refuse(structure.tensors, bad, f"{name}: {text}", rule=rule, among=nodes)
