"""The default split: what a model reads by layers, and runs of layers that take the same time."""

from __future__ import annotations

import itertools

import pytest
from gguf import GGUFReader
from hypothesis import given, settings
from hypothesis import strategies as st

import make_model
from make_model import ModelSpec
from ringline.engine.balance import HEADROOM, Item, Room, balance
from ringline.engine.gguf_header import GGUFHeader, read_headers
from ringline.engine.model_size import Layer, ModelSize
from ringline.engine.placement import Candidate, balanced_shares
from ringline.engine.plan import split_layers
from ringline.errors import CallerError

ITEMS = st.lists(st.builds(Item, st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=7)
ROOMS = st.lists(
    st.builds(Room, st.just(0) | st.integers(1, 40), st.sampled_from([0.5, 1.0, 2.0])),
    min_size=1,
    max_size=3,
)


def cuts(n_items, n_rooms):
    """All ways to cut a row of layers into one run for each device."""
    for bounds in itertools.combinations_with_replacement(range(n_items + 1), n_rooms - 1):
        yield [b - a for a, b in itertools.pairwise([0, *bounds, n_items])]


def times(items, rooms, counts):
    """How long each stage takes; None where a run does not fit."""
    found, begin = [], 0
    for room, count in zip(rooms, counts, strict=True):
        run, begin = items[begin : begin + count], begin + count
        if not room.fits(sum(item.size for item in run)):
            return None
        found.append(sum(item.read for item in run) / room.speed)
    return found


@settings(max_examples=150, deadline=None)
@given(ITEMS, ROOMS)
def test_no_other_cut_has_a_faster_slowest_stage_nor_is_as_fast_and_more_even(items, rooms):
    possible = [times(items, rooms, counts) for counts in cuts(len(items), len(rooms))]
    ranks = [(max(found), sum(t * t for t in found)) for found in possible if found is not None]
    if not ranks:
        with pytest.raises(CallerError, match="GB free"):
            balance(items, rooms)
        return
    counts = balance(items, rooms)
    assert sum(counts) == len(items)
    found = times(items, rooms, counts)
    assert (max(found), sum(t * t for t in found)) == pytest.approx(min(ranks))


def test_a_small_device_gets_what_fits_with_some_room_left():
    items = [Item(1, 100)] * 10
    assert balance(items, [Room(), Room()]) == [5, 5]
    assert balance(items, [Room(free=300), Room()]) == [2, 8]  # 270 without the head-room
    assert HEADROOM == 0.1


def test_a_fast_device_gets_more():
    assert balance([Item(1, 1)] * 9, [Room(speed=2.0), Room()]) == [6, 3]


def test_what_does_not_fit_is_told_with_numbers():
    with pytest.raises(CallerError, match=r"take 3\.00 GB .* have 1\.00, 1\.00 GB free"):
        balance([Item(1, 10**9)] * 3, [Room(free=10**9)] * 2)


def shares(size, n_devices, *, n_gpu_layers=-1, free=0, n_ctx=512, kind=""):
    candidates = [Candidate(f"RPC{i}", f"h{i}:1", free, kind) for i in range(n_devices)]
    return balanced_shares(size, candidates, n_gpu_layers=n_gpu_layers, n_ctx=n_ctx)


@pytest.mark.model
def test_the_demo_model_over_two_nodes_is_split_22_to_9(model_path):
    # Its embeddings are tied: the output matrix weighs as much as 13 of its layers.
    size = ModelSize.read(model_path)
    assert shares(size, 2) == [22, 9]
    assert shares(size, 3) == [14, 15, 2]
    assert shares(size, 2, n_gpu_layers=10) == [9, 1]
    assert shares(size, 2, n_gpu_layers=0) == [1, 1]  # nothing to place, but no list of zeros


@pytest.mark.model
def test_cpus_share_the_multiplications(model_path):
    # The output matrix has 8 bits a weight and the layers have 4: 5.3 layers' worth of work.
    size = ModelSize.read(model_path)
    assert shares(size, 2, kind="CPU") == [18, 13]
    assert shares(size, 3, kind="CPU") == [12, 12, 7]


def test_the_kv_cache_needs_room_too():
    layers = (*[Layer(size=1000, read=1000, kv=100)] * 4, Layer(size=10, read=10))
    size = ModelSize(layers, n_ctx_train=1000)
    assert shares(size, 2, free=3000, n_ctx=1) == [2, 3]
    with pytest.raises(CallerError, match="lower -c"):
        shares(size, 2, free=3000, n_ctx=20)
    with pytest.raises(CallerError, match="lower -c"):
        shares(size, 2, free=3000, n_ctx=0)


@pytest.mark.parametrize("n_devices", [2, 3, 5])
def test_a_number_of_layers_is_a_share_that_gives_this_number_of_layers(n_devices, tmp_path):
    path = make_model.make_model(tmp_path / "model.gguf", ModelSpec(layers=7, vocab=2000))
    found = shares(ModelSize.read(path), n_devices)
    assert split_layers(7, -1, found) == found


def sizes_by_gguf(path):
    """What the package `gguf` says: bytes of each tensor without padding."""
    return {tensor.name: int(tensor.n_bytes) for tensor in GGUFReader(path).tensors}


@pytest.mark.parametrize("spec", [ModelSpec(), ModelSpec(arch="qwen2", tied=False)])
def test_the_header_says_what_the_package_gguf_says(spec, tmp_path):
    path = make_model.make_model(tmp_path / "model.gguf", spec)
    (header,) = read_headers(path)
    wanted = sizes_by_gguf(path)
    assert header.tensors.keys() == wanted.keys()
    assert all(0 <= header.tensors[name] - size < 32 for name, size in wanted.items())
    assert header.metadata["general.architecture"] == spec.arch
    assert header.metadata[f"{spec.arch}.block_count"] == spec.layers


def test_the_shards_of_a_model_weigh_what_the_whole_weighs(tmp_path):
    whole = make_model.make_model(tmp_path / "whole.gguf", ModelSpec(layers=4))
    parts = make_model.make_model(tmp_path / "parts.gguf", ModelSpec(layers=4, split=3))
    assert ModelSize.read(parts) == ModelSize.read(whole)


@pytest.mark.model
def test_a_layer_of_the_demo_model_weighs_what_it_weighs(model_path):
    size = ModelSize.read(model_path)
    assert len(size.layers) == 31
    assert size.layers[0] == Layer(
        size=2_216_448, read=2_216_448, kv=3 * 2 * 64 * 2, work=3_539_712
    )
    assert size.layers[-1].read == 30_081_024 + 2_304
    assert (size.kv, size.n_ctx_train) == (30 * 768, 8192)


def of(metadata, tensors):
    base = {"general.architecture": "x", "x.block_count": 2, "x.embedding_length": 64}
    return ModelSize.of([GGUFHeader({**base, **metadata}, tensors)])


def test_a_token_reads_the_experts_that_are_asked():
    metadata = {"x.expert_count": 8, "x.expert_used_count": 2}
    tensors = {"blk.0.ffn_up_exps.weight": 800, "blk.0.attn_q.weight": 10, "blk.1.ffn_up.weight": 5}
    size = of(metadata, {**tensors, "output.weight": 7, "token_embd.weight": 9})
    assert size.layers == (Layer(810, 210), Layer(5, 5), Layer(7, 7))


def test_a_file_says_how_many_weights_a_tensor_has_and_of_which_type(tmp_path):
    path = make_model.make_model(tmp_path / "model.gguf", ModelSpec())
    (header,) = read_headers(path)
    counts = {tensor.name: int(tensor.n_elements) for tensor in GGUFReader(path).tensors}
    assert header.weights == counts
    assert header.types == {t.name: int(t.tensor_type) for t in GGUFReader(path).tensors}


def test_layers_may_have_different_numbers_of_heads():
    metadata = {"x.attention.head_count": 4, "x.attention.head_count_kv": (2, 0)}
    assert [layer.kv for layer in of(metadata, {}).layers] == [2 * (16 + 16) * 2, 0, 0]
    long = {"x.attention.key_length": 24, "x.attention.value_length": 8}
    assert of({**metadata, **long}, {}).kv == 2 * (24 + 8) * 2


def test_a_model_that_does_not_say_how_many_layers_it_has_is_refused():
    with pytest.raises(CallerError, match=r"how many layers it has \(x\.block_count\)"):
        of({"x.block_count": 0}, {})


@pytest.mark.parametrize("n_bytes", [10, 30, 200, 5000])
def test_a_header_that_is_cut_short_is_refused(n_bytes, tmp_path):
    path = make_model.make_model(tmp_path / "model.gguf", ModelSpec())
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(path.read_bytes()[:n_bytes])
    with pytest.raises(CallerError, match=r"the header of .*cut\.gguf makes no sense"):
        ModelSize.read(cut)


def test_a_file_of_another_version_is_refused(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + (9).to_bytes(4, "little") + bytes(16))
    with pytest.raises(CallerError, match="version 9 where 2 or 3 was expected"):
        ModelSize.read(path)
