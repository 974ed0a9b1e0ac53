"""Rules for each op: what is good is computed, what is not is refused by name and rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from ringline.errors import RefusedError
from ringline.ggml.devices import cpu_device
from ringline.ggml.layout import Status
from ringline.server.buffers import Registry
from ringline.server.checked import CheckedStructures
from ringline.server.graphs import build_graph
from ringline.server.rules.catalogue import CATALOGUE
from ringline.wire.tensor import Tensor
from tests.op_cases import CASES, ROOM, Case, Spec, body_of, graph_of, ints, new, reals
from tests.server_client import Block, op


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    registry = Registry(7)
    made = registry.add(0, cpu_device().alloc_buffer(16 * ROOM))
    yield registry
    registry.free(made.handle, 0)


@pytest.fixture(scope="module")
def block(registry) -> Block:
    (made,) = registry._buffers.values()
    made.buffer.clear(0)
    return Block(made.handle, made.base, made.size)


def test_there_is_a_case_for_every_op_that_is_let_through():
    assert CATALOGUE.keys() - {"NONE"} == CASES.keys()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_the_rules_let_through_is_computed(registry, block, case):
    stored = build_graph(body_of(graph_of(case, block)), registry)
    backend = cpu_device().open(2)
    try:
        assert backend.compute(stored.graph.address) is Status.SUCCESS
    finally:
        backend.close()


Change = Callable[[Case], Case]


def out(spec: Spec) -> Change:
    return lambda case: replace(case, out=spec)


def source(number: int, spec: Spec | None) -> Change:
    def change(case: Case) -> Case:
        specs = [*case.sources, *[None] * (number + 1 - len(case.sources))]
        specs[number] = spec
        return replace(case, sources=specs)

    return change


def params(raw: bytes, at: int = 0) -> Change:
    def change(case: Case) -> Case:
        whole = bytearray(case.params.ljust(64, b"\0"))
        whole[at : at + len(raw)] = raw
        return replace(case, params=bytes(whole))

    return change


V = (8, 4, 2, 1)
GAPS = (8, 64, 256, 512)

BAD = [
    # types
    ("ADD", source(0, new("i32", *V)), "op-type"),
    ("ADD", source(2, new("f32", 8)), "op-type"),
    ("SOFT_MAX", source(1, new("i32", 4, 4)), "op-type"),
    ("MUL_MAT", source(0, new("i32", 32, 3)), "op-type"),
    ("MUL_MAT", source(0, new("q8_K", 256, 3)), "op-type"),
    ("MUL_MAT", source(1, new("q8_0", 32, 4, 2)), None),
    ("MUL_MAT", source(1, new("q8_1", 32, 4, 2)), "op-type"),
    ("GET_ROWS", source(0, new("q8_1", 32, 5)), "op-type"),
    ("GET_ROWS", source(1, new("f32", 4)), "op-type"),
    ("SET_ROWS", source(1, new("f32", 4)), "op-type"),
    ("ROPE", source(1, new("f32", 4)), "op-type"),
    ("MUL_MAT_ID", source(2, new("f32", 2, 4)), "op-type"),
    ("ARGSORT", source(0, new("f16", *V)), "op-type"),
    ("CPY", lambda case: replace(case, inside=None, out=new("f16", 32, 2)), "op-type"),
    ("UNARY", source(0, new("f16", *V)), "op-type"),
    # shapes
    ("ADD", source(1, new("f32", 3)), "op-shape"),
    ("ADD", source(1, new("f32", 8, 4, 4)), "op-shape"),
    ("ADD", source(1, new("f32", 0)), "op-shape"),
    ("ADD", out(new("f32", 16, 4, 2)), "op-shape"),
    ("ADD_ID", source(2, new("i32", 3, 2)), "op-shape"),
    ("ADD_ID", source(1, new("f32", 7, 5)), "op-shape"),
    ("GLU", out(new("f32", *V)), "op-shape"),
    ("GLU", source(1, new("f32", *V)), "op-shape"),
    ("SUM_ROWS", out(new("f32", 1, 4)), "op-shape"),
    ("ARGMAX", source(0, new("f32", *V)), "op-shape"),
    ("TOP_K", out(new("i32", 9, 4, 2)), "op-shape"),
    ("REPEAT", out(new("f32", 12, 4, 2)), "op-shape"),
    ("REPEAT", source(0, new("f32", 8, 0, 2)), "op-shape"),
    ("CONCAT", out(new("f32", 8, 8, 2)), "op-shape"),
    ("CONCAT", source(1, new("f32", 7, 3, 2)), "op-shape"),
    ("GET_ROWS", out(new("f32", 32, 5)), "op-shape"),
    ("GET_ROWS", source(1, new("i32", 4, 2)), "op-shape"),
    ("SET_ROWS", source(0, new("f32", 8, 5)), "op-shape"),
    ("SET_ROWS", source(0, new("f32", 7, 4)), "op-shape"),
    ("SET_ROWS", source(1, new("i64", 4, 0)), "op-shape"),
    ("CPY", source(0, new("f32", 32, 3)), "op-shape"),
    ("CONT", out(new("f32", 8, 4, 1)), "op-shape"),
    ("MUL_MAT", source(1, new("f32", 64, 4, 2)), "op-shape"),
    ("MUL_MAT", source(0, new("q4_0", 32, 3, 3)), "op-shape"),
    ("MUL_MAT", out(new("f32", 4, 4, 2)), "op-shape"),
    ("MUL_MAT", params(ints(0, 1)), "op-shape"),
    ("MUL_MAT", lambda c: source(1, new("q8_0", 32, 4, 2))(params(ints(0, 1))(c)), "op-type"),
    ("MUL_MAT_ID", source(2, new("i32", 2, 5)), "op-shape"),
    ("MUL_MAT_ID", source(1, new("f32", 8, 3, 4)), "op-shape"),
    ("MUL_MAT_ID", out(new("f32", 3, 3, 4)), "op-shape"),
    ("OUT_PROD", source(1, new("f32", 5, 3)), "op-shape"),
    ("SOLVE_TRI", source(0, new("f32", 4, 3)), "op-shape"),
    ("ROPE", source(1, new("i32", 3)), "op-shape"),
    ("ROPE", source(2, new("f32", 3)), "op-shape"),
    ("SOFT_MAX", source(1, new("f16", 4, 2)), "op-shape"),
    ("SOFT_MAX", source(1, new("f16", 3, 4)), "op-shape"),
    ("SOFT_MAX", source(2, new("f32", 1)), "op-shape"),
    ("FLASH_ATTN_EXT", source(1, new("f16", 16, 4, 2)), "op-shape"),
    ("FLASH_ATTN_EXT", source(1, new("f16", 8, 4, 3)), "op-shape"),
    ("FLASH_ATTN_EXT", source(2, new("f16", 16, 3, 2)), "op-shape"),
    ("FLASH_ATTN_EXT", source(3, new("f16", 3, 4)), "op-shape"),
    ("FLASH_ATTN_EXT", source(4, new("f32", 3)), "op-shape"),
    ("FLASH_ATTN_EXT", out(new("f32", 16, 3, 4)), "op-shape"),
    ("SSM_CONV", source(1, new("f32", 4, 6)), "op-shape"),
    ("SSM_CONV", out(new("f32", 5, 4, 2)), "op-shape"),
    ("SSM_SCAN", source(4, new("f32", 8, 3, 3, 2)), "op-shape"),
    ("SSM_SCAN", source(6, new("i32", 3)), "op-shape"),
    ("SSM_SCAN", out(new("f32", 100)), "op-shape"),
    ("RWKV_WKV6", source(3, new("f32", 64, 1)), "op-shape"),
    ("RWKV_WKV6", source(5, new("f32", 64 * 64 * 2, 3)), "op-shape"),
    ("RWKV_WKV7", source(1, new("f32", 64, 2, 3)), "op-shape"),
    ("GATED_LINEAR_ATTN", source(3, new("f32", 64, 2, 3)), "op-shape"),
    ("GATED_DELTA_NET", source(0, new("f32", 16, 3, 3, 2)), "op-shape"),
    ("GATED_DELTA_NET", source(0, new("f32", 8, 2, 3, 2)), "op-shape"),
    ("GATED_DELTA_NET", source(1, new("f32", 16, 2, 3, 4)), "op-shape"),
    ("DSV4_HC_COMB", source(0, new("f32", 35, 3)), "op-shape"),
    ("IM2COL", out(new("f16", 6, 6, 2)), "op-shape"),
    ("PAD", out(new("f32", 9, 6, 3)), "op-shape"),
    ("CONV_2D", out(new("f32", 5, 3, 5, 2)), "op-shape"),
    ("CONV_2D", source(1, new("f32", 6, 4, 2, 2)), "op-shape"),
    ("CONV_2D_DW", out(new("f32", 4, 3, 4, 2)), "op-shape"),
    ("CONV_2D_DW", source(0, new("f16", 3, 2, 2, 3)), "op-shape"),
    ("CONV_2D_DW", source(0, new("f16", 3, 2, 1, 2)), "op-shape"),
    ("CONV_2D_DW", source(1, new("f32", 2, 4, 3, 2)), "op-shape"),
    ("COL2IM_1D", out(new("f32", 10, 2)), "op-shape"),
    ("COL2IM_1D", source(0, new("f32", 11, 4)), "op-shape"),
    ("COL2IM_1D", source(0, new("f32", 10, 4, 2)), "op-shape"),
    ("WIN_PART", out(new("f32", 8, 3, 3, 5)), "op-shape"),
    ("WIN_PART", source(0, new("f32", 8, 7, 5, 2)), "op-shape"),
    ("WIN_UNPART", source(0, new("f32", 8, 3, 3, 5)), "op-shape"),
    ("WIN_UNPART", out(new("f32", 8, 7, 1 << 16)), "op-shape"),
    ("ARANGE", out(new("f32", 7)), "op-shape"),
    ("ARANGE", params(reals(0, 3, 0)), "op-shape"),
    ("ARANGE", params(reals(float("nan"), 3, 1)), "op-shape"),
    ("TIMESTEP_EMBEDDING", out(new("f32", 5, 4)), "op-shape"),
    ("RESHAPE", out(new("f32", 8, 4)), "op-shape"),
    ("TRANSPOSE", out(new("f32", 4, 8, 2)), "op-shape"),
    # strides
    ("ADD", source(0, Spec("f32", V, GAPS)), "op-stride"),
    ("RMS_NORM", source(0, Spec("f32", V, GAPS)), "op-stride"),
    ("NORM", source(0, Spec("f32", V, GAPS)), None),
    ("SCALE", source(0, Spec("f32", V, (4, 64, 256, 512))), "op-stride"),
    ("ARGSORT", source(0, Spec("f32", (8, 1, 2, 1), (4, 1024, 32, 64))), "op-stride"),
    ("GLU", source(0, Spec("f32", V, (4, 64, 512, 1024))), "op-stride"),
    ("SSM_SCAN", source(0, Spec("f32", (8, 2, 4, 1), (4, 32, 64, 4096))), "op-stride"),
    ("POOL_2D", source(0, Spec("f32", (8, 4, 1, 1), (4, 32, 4, 4))), "op-stride"),
    ("CONV_2D_DW", source(1, Spec("f32", (6, 4, 3, 2), (12, 72, 4, 288))), "op-stride"),
    ("COL2IM_1D", source(0, Spec("f32", (10, 4, 1, 1), (4, 64, 256, 256))), "op-stride"),
    ("WIN_PART", source(0, Spec("f32", (8, 7, 5, 1), (4, 64, 448, 2240))), "op-stride"),
    ("MUL_MAT", source(1, Spec("f32", (32, 4, 2, 1), (8, 256, 1024, 2048))), "op-stride"),
    ("MUL_MAT", out(Spec("f32", (3, 4, 2, 1), (4, 16, 64, 128))), "op-stride"),
    ("MUL_MAT", out(Spec("f32", (3, 4, 2, 1), (4, 12, 48, 0))), "op-stride"),
    # parameters
    ("UNARY", params(ints(22)), "op-params"),
    ("UNARY", params(ints(-1)), "op-params"),
    ("GLU", params(ints(7)), "op-params"),
    ("RMS_NORM", params(reals(-1)), "op-params"),
    ("NORM", params(reals(float("nan"))), "op-params"),
    ("GROUP_NORM", params(ints(0)), "op-params"),
    ("GROUP_NORM", params(ints(3)), "op-params"),
    ("TRI", params(ints(4)), "op-params"),
    ("ROLL", params(ints(8)), "op-params"),
    ("DIAG_MASK_INF", params(ints(-1)), "op-params"),
    ("ARGSORT", params(ints(2)), "op-params"),
    ("CONCAT", params(ints(4)), "op-params"),
    ("ACC", params(ints(32, 128, 256, 1000)), "op-params"),
    ("SET", params(ints(-32)), "op-params"),
    ("ROPE", params(ints(0), 4), "op-params"),
    ("ROPE", params(ints(7), 4), "op-params"),
    ("ROPE", params(ints(10), 4), "op-params"),
    ("ROPE", params(ints(1), 8), "op-params"),
    ("ROPE", params(ints(2), 60), "op-params"),
    ("SOFT_MAX", lambda case: source(1, None)(params(reals(1, 8))(case)), "op-params"),
    ("FLASH_ATTN_EXT", params(ints(1), 12), "op-params"),
    ("SSM_SCAN", params(ints(0)), "op-params"),
    ("GATED_DELTA_NET", params(ints(0)), "op-params"),
    ("DSV4_HC_COMB", params(ints(0), 4), "op-params"),
    ("IM2COL", params(ints(0)), "op-params"),
    ("POOL_1D", params(ints(2)), "op-params"),
    ("POOL_1D", params(ints(1, 0)), "op-params"),
    ("PAD", params(ints(-1)), "op-params"),
    ("CONV_2D", params(ints(0)), "op-params"),
    ("CONV_2D_DW", params(ints(0)), "op-params"),
    ("CONV_2D_DW", params(ints(-1), 8), "op-params"),
    ("COL2IM_1D", params(ints(0)), "op-params"),
    ("COL2IM_1D", params(ints(2, 0)), "op-params"),
    ("COL2IM_1D", params(ints(2, 2, -1)), "op-params"),
    ("WIN_PART", params(ints(4)), "op-params"),
    ("WIN_PART", params(ints(3, 2, 0)), "op-params"),
    ("WIN_UNPART", params(ints(0)), "op-params"),
    ("UPSCALE", params(ints(3)), "op-params"),
    ("UPSCALE", params(ints(512)), "op-params"),
    ("PAD_REFLECT_1D", params(ints(8)), "op-params"),
    ("PERMUTE", params(ints(1, 1, 2, 3)), "op-params"),
    # places
    ("SET_ROWS", lambda case: replace(case, inside=0), "op-place"),
    ("MUL_MAT", lambda case: replace(case, inside=1), "op-place"),
    ("RESHAPE", out(new("f32", 8, 4, 4)), "bounds"),
    ("ADD", source(1, Spec("f32", V, (6, 32, 128, 256))), "alignment"),
    ("ADD", source(1, Spec("f32", (8, 4, 1 << 20, 1), (4, 32, 0, 0))), "overlap"),
]


@pytest.mark.parametrize(
    ("name", "change", "rule"), BAD, ids=[f"{name}-{i}" for i, (name, *_) in enumerate(BAD)]
)
def test_a_node_that_breaks_a_rule_is_refused_by_name(registry, block, name, change, rule):
    tensors = graph_of(change(CASES[name]), block)
    if rule is None:  # so that the table shows where a rule ends
        assert build_graph(body_of(tensors), registry)
        return
    with pytest.raises(RefusedError, match=r"^tensor 't\d' \(id 0x") as refusal:
        build_graph(body_of(tensors), registry)
    assert refusal.value.rule == rule
    if rule.startswith("op-"):
        assert f": {name}: " in str(refusal.value) or "not contiguous" in str(refusal.value)


def test_factors_are_read_for_the_whole_row_and_so_have_to_be_in_the_buffer(registry, block):
    """Models that turn a part of a row have factors for that part: what is beyond is not used."""
    wide = new("f32", 64, 2, 4)
    case = source(0, wide)(replace(CASES["ROPE"], out=wide))
    *sources, factors, made = graph_of(case, block)
    build_graph(body_of([*sources, factors, made]), registry)
    for left, fits in ((128, True), (64, False)):
        late = replace(factors, data=block.base + block.size - left)
        if fits:
            build_graph(body_of([*sources, late, made]), registry)
            continue
        with pytest.raises(RefusedError, match="factors end too early") as refusal:
            build_graph(body_of([*sources, late, made]), registry)
        assert refusal.value.rule == "bounds"


def test_an_op_without_rules_is_refused(registry, block):
    case = replace(CASES["ADD"], op="SILU_BACK")
    with pytest.raises(RefusedError, match="SILU_BACK: no rule says") as refusal:
        build_graph(body_of(graph_of(case, block)), registry)
    assert refusal.value.rule == "op-unruled"


def moved(tensors: list[Tensor], by: int) -> list[Tensor]:
    """The same graph at other addresses, under other ids and names."""
    return [
        replace(
            tensor,
            id=tensor.id + 100,
            src=tuple(number and number + 100 for number in tensor.src),
            data=tensor.data + by,
            name="moved",
        )
        for tensor in tensors
    ]


def test_a_structure_is_remembered_and_its_memory_is_checked_again(registry, block):
    checked = CheckedStructures()
    tensors = graph_of(CASES["MUL_MAT"], block)
    build_graph(body_of(tensors), registry, checked=checked)
    build_graph(body_of(moved(tensors, 64)), registry, checked=checked)
    assert len(checked) == 1
    with pytest.raises(RefusedError, match="outside its buffer"):
        build_graph(body_of(moved(tensors, 16 * ROOM)), registry, checked=checked)
    with pytest.raises(RefusedError, match="not aligned"):
        build_graph(body_of(moved(tensors, 2)), registry, checked=checked)


def test_another_structure_is_not_taken_for_one_that_was_checked(registry, block):
    checked = CheckedStructures()
    tensors = graph_of(CASES["MUL_MAT"], block)
    build_graph(body_of(tensors), registry, checked=checked)
    *sources, node = tensors
    others = [
        replace(node, op=op("ADD")),
        replace(node, ne=(3, 4, 3, 1)),
        replace(node, nb=(4, 12, 48, 95)),
        replace(node, type=1),
        replace(node, op_params=ints(0, 1).ljust(64, b"\0")),
        replace(node, src=(2, 1, *(0,) * 8)),
    ]
    for other in others:
        with pytest.raises(RefusedError):
            build_graph(body_of([*sources, other]), registry, checked=checked)
    assert len(checked) == 1


def test_what_is_remembered_is_bounded(registry, block):
    checked = CheckedStructures(most=4000)
    for width in range(1, 33):
        case = Case("SQR", new("f32", width), [new("f32", width)])
        build_graph(body_of(graph_of(case, block)), registry, checked=checked)
    assert 0 < len(checked) < 32


#: it computes on the CPU, and is asked as any accelerator is.
ACCELERATOR = replace(cpu_device(), kind="Other", name="Other0")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_another_device_is_asked_and_gets_what_constructors_make(registry, block, case):
    assert build_graph(body_of(graph_of(case, block)), registry, device=ACCELERATOR)


def test_what_another_device_does_not_support_is_refused_by_name(registry, block):
    case = source(1, new("bf16", 32, 4, 2))(CASES["MUL_MAT"])
    with pytest.raises(RefusedError, match=r"tensor 't3' .*does not support this op") as refusal:
        build_graph(body_of(graph_of(case, block)), registry, device=ACCELERATOR)
    assert refusal.value.rule == "op-device"


def test_shapes_are_checked_for_every_device(registry, block):
    for name, change, rule in BAD:
        if rule in ("op-shape", "op-params"):
            tensors = graph_of(change(CASES[name]), block)
            with pytest.raises(RefusedError) as refusal:
                build_graph(body_of(tensors), registry, device=ACCELERATOR)
            assert refusal.value.rule == rule


def test_a_structure_that_one_device_may_have_is_not_known_for_another(registry, block):
    checked = CheckedStructures()
    gaps = Spec("f32", V, GAPS)
    tensors = graph_of(source(0, gaps)(CASES["ADD"]), block)
    build_graph(body_of(tensors), registry, device=ACCELERATOR, checked=checked)
    with pytest.raises(RefusedError, match="side by side"):
        build_graph(body_of(tensors), registry, device=cpu_device(), checked=checked)


def test_what_is_computed_lies_on_the_device_that_computes():
    registry = Registry(7)
    here = registry.add(0, cpu_device().alloc_buffer(16 * ROOM))
    there = registry.add(1, cpu_device().alloc_buffer(16 * ROOM))
    left, right, made = graph_of(CASES["ADD"], Block(here.handle, here.base, here.size))
    build_graph(body_of([left, right, made]), registry)
    strays = [
        [replace(left, buffer=there.handle, data=there.base), right, made],
        [left, right, replace(made, buffer=there.handle, data=there.base)],
    ]
    for tensors in strays:
        with pytest.raises(RefusedError, match="computed on device 0, but not all") as refusal:
            build_graph(body_of(tensors), registry)
        assert refusal.value.rule == "buffer"
    for buffer in (here, there):
        registry.free(buffer.handle, 0)
