"""Does the loaded library lay out its structs as layout.py says? Asked once, at load.

A tensor, a view, a graph and a buffer are made through ggml's own API and read back through our
layouts. It calls nothing that starts an accelerator, so a process that did it may still fork.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from ringline.errors import LibraryError
from ringline.ggml.find import PACKAGE_VERSION
from ringline.ggml.layout import CGRAPH, CUSTOM_OPS, OP_COUNT, TENSOR, TYPE_COUNT, TypeTraits
from ringline.ggml.memory import record_at

if TYPE_CHECKING:
    from ringline.ggml.library import Library

__all__ = ["check_layouts"]

_F32, _F16, _Q4_0 = 0, 1, 2
_MEMORY = 1 << 20


def check_layouts(library: Library) -> None:
    """Compare ggml's structs and enums with ours.

    Raises:
        LibraryError: names what differs.
    """
    from ringline.ggml.library import InitParams

    context = library.init(InitParams(_MEMORY, None, True))
    if not context:
        raise LibraryError("ggml_init gave no context: the process has no memory left")
    try:
        _check_tensors(library, context)
        _check_graph(library, context)
    finally:
        library.free(context)
    _check_enums(library)
    _check_traits(library)


def _expect(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise LibraryError(
            f"the loaded ggml lays out {what} differently "
            f"(found {found!r}, expected {expected!r}); install llama-cpp-python=={PACKAGE_VERSION}"
        )


def _check_tensors(library: Library, context: int) -> None:
    address = library.new_tensor_4d(context, _F32, 3, 5, 7, 2)
    library.set_name(address, b"self-test")
    part = library.view_1d(context, address, 4, 8)
    tensor = record_at(address, TENSOR)[0]
    seen = record_at(part, TENSOR)[0]
    _expect("ggml_tensor.type", int(tensor["type"]), _F32)
    _expect("ggml_tensor.ne", tensor["ne"].tolist(), [3, 5, 7, 2])
    _expect("ggml_tensor.nb", tensor["nb"].tolist(), [4, 12, 60, 420])
    _expect("ggml_tensor.name", bytes(tensor["name"]), b"self-test")
    _expect("ggml_tensor.data", int(tensor["data"]), 0)
    _expect("ggml_tensor.view_src", int(seen["view_src"]), address)
    _expect("ggml_tensor.view_offs", int(seen["view_offs"]), 8)
    _expect("ggml_tensor.op", library.op_name(int(seen["op"])), b"VIEW")
    _expect("ggml_tensor.src", int(seen["src"][0]), address)


def _check_graph(library: Library, context: int) -> None:
    left = library.new_tensor_4d(context, _F32, 8, 1, 1, 1)
    right = library.new_tensor_4d(context, _F32, 8, 1, 1, 1)
    total = library.add(context, left, right)
    address = library.new_graph_custom(context, 16, False)
    library.build_forward_expand(address, total)
    graph = record_at(address, CGRAPH)[0]
    _expect("ggml_cgraph.size", int(graph["size"]), 16)
    _expect("ggml_cgraph.n_nodes", int(graph["n_nodes"]), 1)
    _expect("ggml_cgraph.n_leafs", int(graph["n_leafs"]), 2)
    _expect("ggml_cgraph.nodes", _pointer(int(graph["nodes"])), total)
    _expect("ggml_cgraph.leafs", _pointer(int(graph["leafs"])), left)
    size, keys = int(graph["hash_size"]), int(graph["hash_keys"])
    slot = (left >> 4) % size
    found = [_pointer(keys + 8 * ((slot + step) % size)) for step in range(3)]
    _expect("ggml_hash_set", left in found, True)


def _pointer(address: int) -> int | None:
    return ctypes.c_void_p.from_address(address).value


def _check_enums(library: Library) -> None:
    _expect("ggml_op 0", library.op_name(0), b"NONE")
    _expect(f"ggml_op {OP_COUNT - 1}", library.op_name(OP_COUNT - 1), b"GLU")
    names = {library.op_name(op).decode() for op in range(OP_COUNT)}
    _expect("the custom ops", set(CUSTOM_OPS) <= names, True)
    _expect(f"ggml_type {TYPE_COUNT - 1}", library.type_name(TYPE_COUNT - 1), b"q2_0")


def _check_traits(library: Library) -> None:
    """Facts that ggml tells by functions too, on both sides of the pointers that we call."""
    for kind in (_F32, _F16, _Q4_0, TYPE_COUNT - 1):
        traits = TypeTraits.from_address(library.get_type_traits(kind))
        name = f"ggml_type_traits[{kind}]"
        _expect(f"{name}.type_name", traits.type_name, library.type_name(kind))
        _expect(f"{name}.blck_size", traits.blck_size, library.blck_size(kind))
        _expect(f"{name}.type_size", traits.type_size, library.type_size(kind))
        _expect(f"{name}.is_quantized", traits.is_quantized, library.is_quantized(kind))
        _expect(f"{name}.to_float", bool(traits.to_float), kind != _F32)
        _expect(f"{name}.from_float_ref", bool(traits.from_float_ref), kind != _F32)
