"""The stock ggml libraries of the installed llama-cpp-python: where they are, structs, prototypes.

Used by the peers and never by ringline. The package llama_cpp is found but not imported. Libraries
are opened by the file name that is also their SONAME (`libggml.so.0`): a wheel holds copies instead
of links, and `libggml.so` would be loaded a second time, with a registry of its own.
"""

from __future__ import annotations

import ctypes
import importlib.util
from ctypes import (
    POINTER,
    c_bool,
    c_char,
    c_char_p,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_ubyte,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from dataclasses import dataclass
from pathlib import Path

#: values of ggml.h that the peers use
TYPE_F32, TYPE_F16, TYPE_Q8_0 = 0, 1, 8
USAGE_WEIGHTS = 1
N_DIMS, N_SRC = 4, 10


class Tensor(ctypes.Structure):
    """struct ggml_tensor, from ggml.h."""

    _fields_ = [
        ("type", c_int),
        ("buffer", c_void_p),
        ("ne", c_int64 * N_DIMS),
        ("nb", c_size_t * N_DIMS),
        ("op", c_int),
        ("op_params", c_ubyte * 64),
        ("flags", c_int32),
        ("src", c_void_p * N_SRC),
        ("view_src", c_void_p),
        ("view_offs", c_size_t),
        ("data", c_void_p),
        ("name", c_char * 64),
        ("extra", c_void_p),
        ("padding", c_char * 8),
    ]


class Graph(ctypes.Structure):
    """struct ggml_cgraph, from ggml-impl.h; n_slots, used and keys are its visited_hash_set."""

    _fields_ = [
        ("size", c_int),
        ("n_nodes", c_int),
        ("n_leafs", c_int),
        ("nodes", POINTER(c_void_p)),
        ("grads", c_void_p),
        ("grad_accs", c_void_p),
        ("leafs", c_void_p),
        ("use_counts", POINTER(c_int32)),
        ("n_slots", c_size_t),
        ("used", POINTER(c_uint32)),
        ("keys", POINTER(c_void_p)),
        ("order", c_int),
        ("uid", c_uint64),
    ]


class Buffer(ctypes.Structure):
    """struct ggml_backend_buffer, from ggml-backend-impl.h."""

    _fields_ = [
        ("functions", c_void_p * 11),
        ("buffer_type", c_void_p),
        ("context", c_void_p),
        ("size", c_size_t),
        ("usage", c_int),
    ]


class RpcBufferContext(ctypes.Structure):
    """ggml_backend_rpc_buffer_context, from ggml-rpc.cpp: the stock client's side of a buffer."""

    _fields_ = [("dispatcher", c_void_p * 2), ("base", c_void_p), ("handle", c_uint64)]


class InitParams(ctypes.Structure):
    """struct ggml_init_params, from ggml.h."""

    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


Prototypes = dict[str, tuple[object, list[object]]]
_tensor, _graph = POINTER(Tensor), POINTER(Graph)
_size_p = POINTER(c_size_t)

BASE_PROTOTYPES: Prototypes = {
    "ggml_add": (_tensor, [c_void_p, _tensor, _tensor]),
    "ggml_backend_buffer_clear": (None, [c_void_p, c_uint8]),
    "ggml_backend_buffer_free": (None, [c_void_p]),
    "ggml_backend_buffer_get_base": (c_void_p, [c_void_p]),
    "ggml_backend_buffer_set_usage": (None, [c_void_p, c_int]),
    "ggml_backend_buft_alloc_buffer": (c_void_p, [c_void_p, c_size_t]),
    "ggml_backend_buft_get_alignment": (c_size_t, [c_void_p]),
    "ggml_backend_buft_get_alloc_size": (c_size_t, [c_void_p, _tensor]),
    "ggml_backend_buft_get_max_size": (c_size_t, [c_void_p]),
    "ggml_backend_dev_name": (c_char_p, [c_void_p]),
    "ggml_backend_free": (None, [c_void_p]),
    "ggml_backend_graph_compute": (c_int, [c_void_p, _graph]),
    "ggml_backend_reg_dev_count": (c_size_t, [c_void_p]),
    "ggml_backend_reg_dev_get": (c_void_p, [c_void_p, c_size_t]),
    "ggml_backend_synchronize": (None, [c_void_p]),
    "ggml_backend_tensor_alloc": (c_int, [c_void_p, _tensor, c_void_p]),
    "ggml_backend_tensor_copy": (None, [_tensor, _tensor]),
    "ggml_backend_tensor_get": (None, [_tensor, c_char_p, c_size_t, c_size_t]),
    "ggml_backend_tensor_memset": (None, [_tensor, c_uint8, c_size_t, c_size_t]),
    "ggml_backend_tensor_set": (None, [_tensor, c_char_p, c_size_t, c_size_t]),
    "ggml_backend_view_init": (c_int, [_tensor]),
    "ggml_build_forward_expand": (None, [_graph, _tensor]),
    "ggml_flash_attn_ext": (
        _tensor,
        [c_void_p, _tensor, _tensor, _tensor, _tensor, c_float, c_float, c_float],
    ),
    "ggml_free": (None, [c_void_p]),
    "ggml_init": (c_void_p, [InitParams]),
    "ggml_mul_mat": (_tensor, [c_void_p, _tensor, _tensor]),
    "ggml_nbytes": (c_size_t, [_tensor]),
    "ggml_new_graph": (_graph, [c_void_p]),
    "ggml_new_tensor": (_tensor, [c_void_p, c_int, c_int, POINTER(c_int64)]),
    "ggml_scale": (_tensor, [c_void_p, _tensor, c_float]),
    "ggml_set_name": (_tensor, [_tensor, c_char_p]),
    "ggml_version": (c_char_p, []),
    "ggml_view_1d": (_tensor, [c_void_p, _tensor, c_int64, c_size_t]),
}
REGISTRY_PROTOTYPES: Prototypes = {
    "ggml_backend_dev_by_name": (c_void_p, [c_char_p]),
}
RPC_PROTOTYPES: Prototypes = {
    "ggml_backend_rpc_add_server": (c_void_p, [c_char_p]),
    "ggml_backend_rpc_buffer_type": (c_void_p, [c_char_p, c_uint32]),
    "ggml_backend_rpc_get_device_memory": (None, [c_char_p, c_uint32, _size_p, _size_p]),
    "ggml_backend_rpc_init": (c_void_p, [c_char_p, c_uint32]),
    "ggml_backend_rpc_start_server": (
        None,
        [c_char_p, c_char_p, c_size_t, c_size_t, POINTER(c_void_p)],
    ),
}


@dataclass(frozen=True, slots=True)
class StockLibraries:
    """The stock libraries: `base` (tensors, buffers), `registry` (local devices), `rpc`."""

    base: ctypes.CDLL
    registry: ctypes.CDLL
    rpc: ctypes.CDLL


def library_folder() -> Path:
    """The folder of shared libraries in the installed llama_cpp package, which is not imported."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("llama-cpp-python is not installed in this environment")
    return Path(spec.submodule_search_locations[0]) / "lib"


def load() -> StockLibraries:
    """Open the libraries and declare the functions that the peers call.

    Raises:
        FileNotFoundError: llama-cpp-python is absent or was built without GGML_RPC.
    """
    folder = library_folder()
    if not (folder / "libggml-rpc.so.0").exists():
        raise FileNotFoundError(f"no libggml-rpc.so.0 in {folder}: build with -DGGML_RPC=ON")
    return StockLibraries(
        base=_open(folder / "libggml-base.so.0", BASE_PROTOTYPES),
        registry=_open(folder / "libggml.so.0", REGISTRY_PROTOTYPES),
        rpc=_open(folder / "libggml-rpc.so.0", RPC_PROTOTYPES),
    )


def _open(path: Path, prototypes: Prototypes) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in prototypes.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def remote_devices(libraries: StockLibraries, endpoint: str) -> list[int]:
    """Connect the stock client to a server; the addresses of the devices it offers.

    Raises:
        ConnectionError: the server offers no device. (When it cannot be reached, ggml aborts.)
    """
    registry = libraries.rpc.ggml_backend_rpc_add_server(endpoint.encode())
    if not registry:
        raise ConnectionError(f"stock server {endpoint} offers no device")
    count = libraries.base.ggml_backend_reg_dev_count(registry)
    return [libraries.base.ggml_backend_reg_dev_get(registry, index) for index in range(count)]
