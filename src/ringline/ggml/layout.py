"""Layouts of ggml's structs, as numpy dtypes and ctypes structures, and the numbers of its enums.

Taken from ggml.h, ggml-impl.h and ggml-backend-impl.h of llama-cpp-python 0.3.36 (ggml 0.25.3) on
Linux x86-64; selftest.py checks them against the loaded library. Offsets and sizes are bytes.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import Final

import numpy as np

__all__ = [
    "BACKEND_API_VERSION",
    "CGRAPH",
    "CGRAPH_SIZE",
    "CUSTOM_OPS",
    "MAX_SRC",
    "OP_COUNT",
    "TENSOR",
    "TENSOR_SIZE",
    "TYPE_COUNT",
    "BackendInterface",
    "BackendStruct",
    "BufferInterface",
    "BufferTypeInterface",
    "BufferTypeStruct",
    "DeviceInterface",
    "DeviceProps",
    "DeviceStruct",
    "DeviceType",
    "EventStruct",
    "RegInterface",
    "RegStruct",
    "Status",
    "TypeTraits",
    "Usage",
]

MAX_SRC: Final = 10
TYPE_COUNT: Final = 43
#: GGML_OP_COUNT; the names of the first and last ops are checked at load.
OP_COUNT: Final = 101
BACKEND_API_VERSION: Final = 2
TENSOR_SIZE: Final = 336
CGRAPH_SIZE: Final = 96
#: these carry a function pointer in op_params: MAP_CUSTOM1..3 and CUSTOM.
CUSTOM_OPS: Final = ("MAP_CUSTOM1", "MAP_CUSTOM2", "MAP_CUSTOM3", "CUSTOM")

#: struct ggml_tensor
TENSOR: Final = np.dtype(
    {
        "names": [
            "type", "buffer", "ne", "nb", "op", "op_params", "flags",
            "src", "view_src", "view_offs", "data", "name", "extra",
        ],
        "formats": [
            "<i4", "<u8", ("<i8", (4,)), ("<u8", (4,)), "<i4", "V64", "<i4",
            ("<u8", (MAX_SRC,)), "<u8", "<u8", "<u8", "S64", "<u8",
        ],
        "offsets": [0, 8, 16, 48, 80, 84, 148, 152, 232, 240, 248, 256, 320],
        "itemsize": TENSOR_SIZE,
    }
)  # fmt: skip

#: struct ggml_cgraph
CGRAPH: Final = np.dtype(
    {
        "names": [
            "size", "n_nodes", "n_leafs", "nodes", "grads", "grad_accs", "leafs", "use_counts",
            "hash_size", "hash_used", "hash_keys", "order", "uid",
        ],
        "formats": [
            "<i4", "<i4", "<i4", "<u8", "<u8", "<u8", "<u8", "<u8",
            "<u8", "<u8", "<u8", "<i4", "<u8",
        ],
        "offsets": [0, 4, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88],
        "itemsize": CGRAPH_SIZE,
    }
)  # fmt: skip


class Status(IntEnum):
    """enum ggml_status."""

    ALLOC_FAILED = -2
    FAILED = -1
    SUCCESS = 0
    ABORTED = 1


class DeviceType(IntEnum):
    """enum ggml_backend_dev_type."""

    CPU = 0
    GPU = 1
    IGPU = 2
    ACCEL = 3
    META = 4


class Usage(IntEnum):
    """enum ggml_backend_buffer_usage."""

    ANY = 0
    WEIGHTS = 1
    COMPUTE = 2


def _interface(name: str, functions: str) -> type[ctypes.Structure]:
    """A struct of function pointers, in the order of the C header."""
    fields = [(function, ctypes.c_void_p) for function in functions.split()]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


BufferTypeInterface = _interface(
    "BufferTypeInterface",
    "get_name alloc_buffer get_alignment get_max_size get_alloc_size is_host",
)
BufferInterface = _interface(
    "BufferInterface",
    "free_buffer get_base init_tensor memset_tensor set_tensor get_tensor set_tensor_2d "
    "get_tensor_2d cpy_tensor clear reset",
)
BackendInterface = _interface(
    "BackendInterface",
    "get_name free set_tensor_async get_tensor_async set_tensor_2d_async get_tensor_2d_async "
    "cpy_tensor_async synchronize graph_plan_create graph_plan_free graph_plan_update "
    "graph_plan_compute graph_compute event_record event_wait graph_optimize",
)
DeviceInterface = _interface(
    "DeviceInterface",
    "get_name get_description get_memory get_type get_props init_backend get_buffer_type "
    "get_host_buffer_type buffer_from_host_ptr supports_op supports_buft offload_op event_new "
    "event_free event_synchronize",
)
RegInterface = _interface("RegInterface", "get_name get_device_count get_device get_proc_address")


class BufferTypeStruct(ctypes.Structure):
    """struct ggml_backend_buffer_type."""

    _fields_ = (
        ("iface", BufferTypeInterface),
        ("device", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


class BackendStruct(ctypes.Structure):
    """struct ggml_backend."""

    _fields_ = (
        ("guid", ctypes.c_void_p),
        ("iface", BackendInterface),
        ("device", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


class DeviceStruct(ctypes.Structure):
    """struct ggml_backend_device."""

    _fields_ = (
        ("iface", DeviceInterface),
        ("reg", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


class RegStruct(ctypes.Structure):
    """struct ggml_backend_reg."""

    _fields_ = (
        ("api_version", ctypes.c_int),
        ("iface", RegInterface),
        ("context", ctypes.c_void_p),
    )


class EventStruct(ctypes.Structure):
    """struct ggml_backend_event."""

    _fields_ = (("device", ctypes.c_void_p), ("context", ctypes.c_void_p))


class DeviceProps(ctypes.Structure):
    """struct ggml_backend_dev_props."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", ctypes.c_size_t),
        ("memory_total", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("device_id", ctypes.c_char_p),
        ("async_", ctypes.c_bool),
        ("host_buffer", ctypes.c_bool),
        ("buffer_from_host_ptr", ctypes.c_bool),
        ("events", ctypes.c_bool),
        ("mmap_support", ctypes.c_bool),
    )


class TypeTraits(ctypes.Structure):
    """struct ggml_type_traits."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.c_void_p),
        ("from_float_ref", ctypes.c_void_p),
    )
