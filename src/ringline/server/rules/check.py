"""Apply the catalogue, and to each op that is present its own function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from ringline.ggml.layout import OP_COUNT
from ringline.ggml.types import tables
from ringline.server.rules import (
    attention,
    elementwise,
    matrices,
    pictures,
    recurrent,
    rows,
    shapes,
)
from ringline.server.rules.catalogue import CATALOGUE, catalogue
from ringline.server.rules.facts import Facts, Group
from ringline.server.rules.table import check_table
from ringline.server.structure import Structure

__all__ = ["RULES", "check_nodes", "ruled"]

Rule = Callable[[Group], None]

RULES: Final[Mapping[str, Rule]] = {
    "ACC": elementwise.accumulate,
    "ADD": elementwise.add,
    "ADD1": elementwise.one_value,
    "ADD_ID": elementwise.add_id,
    "DIAG_MASK_INF": elementwise.diag_mask,
    "DIAG_MASK_ZERO": elementwise.diag_mask,
    "GLU": elementwise.glu,
    "GROUP_NORM": elementwise.group_norm,
    "L2_NORM": elementwise.norm,
    "NORM": elementwise.norm,
    "RMS_NORM": elementwise.norm,
    "ROLL": elementwise.roll,
    "SET": elementwise.accumulate,
    "TRI": elementwise.triangle,
    "UNARY": elementwise.unary,
    "MUL_MAT": matrices.mul_mat,
    "MUL_MAT_ID": matrices.mul_mat_id,
    "OUT_PROD": matrices.out_prod,
    "SOLVE_TRI": matrices.solve_tri,
    "FLASH_ATTN_EXT": attention.flash_attn,
    "LIGHTNING_INDEXER": attention.lightning_indexer,
    "ROPE": attention.rope,
    "ROPE_BACK": attention.rope,
    "SOFT_MAX": attention.soft_max,
    "DSV4_HC_COMB": recurrent.hyper_comb,
    "DSV4_HC_POST": recurrent.hyper_post,
    "DSV4_HC_PRE": recurrent.hyper_pre,
    "GATED_DELTA_NET": recurrent.delta_net,
    "GATED_LINEAR_ATTN": recurrent.gla,
    "RWKV_WKV6": recurrent.wkv6,
    "RWKV_WKV7": recurrent.wkv7,
    "SSM_CONV": recurrent.ssm_conv,
    "SSM_SCAN": recurrent.ssm_scan,
    "ARGMAX": rows.argmax,
    "ARGSORT": rows.argsort,
    "CONCAT": rows.concat,
    "CONT": rows.copy,
    "COUNT_EQUAL": rows.count_equal,
    "CPY": rows.copy,
    "DIAG": rows.diag,
    "DUP": rows.copy,
    "GET_ROWS": rows.get_rows,
    "MEAN": rows.one_for_each_row,
    "REPEAT": rows.repeat,
    "REPEAT_BACK": rows.repeat_back,
    "SET_ROWS": rows.set_rows,
    "SUM": rows.total,
    "SUM_ROWS": rows.one_for_each_row,
    "TOP_K": rows.top_k,
    "COL2IM_1D": pictures.col2im_1d,
    "CONV_2D": pictures.conv_2d,
    "CONV_2D_DW": pictures.conv_2d_dw,
    "IM2COL": pictures.im2col,
    "POOL_1D": pictures.pool_1d,
    "POOL_2D": pictures.pool_2d,
    "UPSCALE": pictures.upscale,
    "WIN_PART": pictures.win_part,
    "WIN_UNPART": pictures.win_unpart,
    "ARANGE": shapes.arange,
    "PAD": shapes.pad,
    "PAD_REFLECT_1D": shapes.pad_reflect,
    "PERMUTE": shapes.permute,
    "RESHAPE": shapes.reshape,
    "TIMESTEP_EMBEDDING": shapes.timestep,
    "TRANSPOSE": shapes.transpose,
}


def check_nodes(structure: Structure, *, on_cpu: bool) -> None:
    """Check the op of every node.

    Args:
        structure: a graph whose ids, order and sizes are sound.
        on_cpu: whether it is for a CPU: then what the CPU's kernels take for granted is checked
            too; any other device is asked by its supports_op.

    Raises:
        RefusedError: names the tensor, its op and the rule that it breaks.
    """
    facts = Facts(structure)
    check_table(facts, catalogue(on_cpu=on_cpu))
    nodes = structure.nodes
    ops = structure.ops[nodes]
    order = np.argsort(ops, kind="stable")
    starts = np.flatnonzero(np.diff(ops[order], prepend=-1))
    for start, end in zip(starts, [*starts[1:], len(nodes)], strict=True):
        members = order[start:end]
        rule = _rules()[ops[members[0]]]
        if rule is not None:
            rule(Group(facts, tables().op_names[ops[members[0]]], nodes[members]))


@functools.cache
def ruled() -> npt.NDArray[np.bool_]:
    """Which ops have rules, by number: others are refused."""
    return np.array([name in CATALOGUE for name in tables().op_names], np.bool_)


@functools.cache
def _rules() -> list[Rule | None]:
    names = tables().op_names
    assert len(names) == OP_COUNT
    assert RULES.keys() <= set(names)
    return [RULES.get(name) for name in names]
