"""ggml's callback tables, filled with functions that call the provider behind each C struct.

One set of C function pointers serves all objects: each looks its provider up by the address of the
struct that C passes. The tables hold what an unmodified libllama needs, no more; prototypes from
ggml-backend-impl.h of llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

from ringline.ggml.guard import guard, owners
from ringline.ggml.layout import (
    BackendInterface,
    BufferInterface,
    BufferTypeInterface,
    DeviceInterface,
    DeviceProps,
    DeviceType,
    EventStruct,
    RegInterface,
    Status,
)
from ringline.ggml.library import load
from ringline.ggml.native import BASE_ALIGNMENT, cpu_functions

__all__ = ["BACKEND", "GUID", "REGISTRY", "buffer_table", "buffer_type_table", "device_table"]

_P = ctypes.c_void_p
_SIZE = ctypes.c_size_t
_U8 = ctypes.c_uint8
_INT = ctypes.c_int
_BOOL = ctypes.c_bool
_SIZES = ctypes.POINTER(ctypes.c_size_t)
_F = ctypes.CFUNCTYPE

#: names this backend to ggml; 16 bytes of our own.
GUID: Final = ctypes.create_string_buffer(b"ringline-client\0", 16)


def _table(kind: type[ctypes.Structure], **functions: Any) -> Any:
    """Fill a struct of function pointers; those not named stay NULL. Keeps the functions alive."""
    table = kind(**{name: ctypes.cast(f, _P).value for name, f in functions.items()})
    _kept.append(functions)
    return table


def _changed(table: Any, **functions: int) -> Any:
    """A copy of a struct of function pointers with some that are C's own; 0 for none."""
    copy = type(table).from_buffer_copy(table)
    for name, address in functions.items():
        setattr(copy, name, address)
    return copy


_kept: list[dict[str, Any]] = []


# --- names: every object behind a C struct has `c_name`, a buffer that lives as long as it -------


@guard(_F(_P, _P), 0)
def _name(address: int) -> int:
    return ctypes.addressof(owners[address].c_name)


# --- registry and device ------------------------------------------------------------------------


@guard(_F(_SIZE, _P), 0)
def _device_count(address: int) -> int:
    return len(owners[address].devices)


@guard(_F(_P, _P, _SIZE), 0)
def _device_at(address: int, index: int) -> int:
    return int(owners[address].devices[index].address)


@guard(_F(_P, _P), 0)
def _description(address: int) -> int:
    return ctypes.addressof(owners[address].c_description)


@guard(_F(None, _P, _SIZES, _SIZES), None)
def _memory(address: int, free: Any, total: Any) -> None:
    free[0] = total[0] = 0
    free[0], total[0] = owners[address].provider.memory()


@guard(_F(_INT, _P), DeviceType.GPU)
def _type(address: int) -> int:
    return DeviceType.GPU


@guard(_F(None, _P, ctypes.POINTER(DeviceProps)), None)
def _props(address: int, props: Any) -> None:
    owner = owners[address]
    out = props.contents
    out.type, out.device_id = DeviceType.GPU, None
    # libllama pipelines ubatches over the stages only where both of these are true.
    out.async_ = out.events = True
    out.host_buffer = out.buffer_from_host_ptr = False
    out.mmap_support = True
    out.name = ctypes.cast(owner.c_name, ctypes.c_char_p)
    out.description = ctypes.cast(owner.c_description, ctypes.c_char_p)
    out.memory_free, out.memory_total = owner.provider.memory()


@guard(_F(_P, _P, ctypes.c_char_p), 0)
def _open_stream(address: int, _parameters: bytes | None) -> int:
    return int(owners[address].open_stream())


@guard(_F(_P, _P), 0)
def _buffer_type_of(address: int) -> int:
    return int(owners[address].buffer_type.address)


# True: over False ggml may end the process, and the error comes out of the step anyway.
@guard(_F(_BOOL, _P, _P), True)
def _supports_op(address: int, tensor: int) -> bool:
    return bool(owners[address].provider.supports_op(tensor))


@guard(_F(_BOOL, _P, _P), False)
def _supports_buffer_type(address: int, buffer_type: int | None) -> bool:
    return bool(owners[address].buffer_type.address == buffer_type)


@guard(_F(_P, _P), 0)
def _event_new(address: int) -> int:
    event = EventStruct(device=address, context=None)
    owners[ctypes.addressof(event)] = event
    return ctypes.addressof(event)


@guard(_F(None, _P, _P), None)
def _event_free(address: int, event: int) -> None:
    owners.pop(event, None)


@guard(_F(None, _P, _P), None)
def _event_synchronize(address: int, event: int) -> None:
    # The scheduler asks this before it overwrites an input of ours. The write goes through the same
    # stream as the graph that reads the input, so the node keeps the order and nobody has to wait.
    return


# --- buffer type and buffer ---------------------------------------------------------------------


@guard(_F(_P, _P, _SIZE), 0)
def _alloc_buffer(address: int, size: int) -> int:
    return int(owners[address].alloc(size))


@guard(_F(_SIZE, _P), 64)
def _alignment(address: int) -> int:
    return int(owners[address].device.provider.alignment)


@guard(_F(_SIZE, _P), 0)
def _max_size(address: int) -> int:
    return int(owners[address].device.provider.max_size)


@guard(_F(_SIZE, _P, _P), 0)
def _alloc_size(address: int, tensor: int) -> int:
    least = int(load().nbytes(tensor))
    try:
        return max(least, int(owners[address].device.provider.alloc_size(tensor)))
    except BaseException as error:
        owners[address].fail(error)
        return least


@guard(_F(None, _P), None)
def _free_buffer(address: int) -> None:
    owner = owners.pop(address)  # from here on the guard does not find it
    try:
        owner.provider.free()
    except BaseException as error:
        owner.fail(error)


@guard(_F(_P, _P), 0)
def _base(address: int) -> int:
    return int(owners[address].provider.base())


@guard(_F(_INT, _P, _P), Status.FAILED)
def _init_tensor(address: int, tensor: int) -> int:
    owners[address].provider.init_tensor(tensor)
    return Status.SUCCESS


@guard(_F(None, _P, _P, _U8, _SIZE, _SIZE), None)
def _memset_tensor(address: int, tensor: int, value: int, offset: int, size: int) -> None:
    owners[address].provider.fill(tensor, value, offset, size)


@guard(_F(None, _P, _P, _P, _SIZE, _SIZE), None)
def _set_tensor(address: int, tensor: int, data: int, offset: int, size: int) -> None:
    owners[address].provider.set(tensor, data, offset, size)


@guard(_F(None, _P, _P, _P, _SIZE, _SIZE), None)
def _get_tensor(address: int, tensor: int, data: int, offset: int, size: int) -> None:
    owners[address].provider.get(tensor, data, offset, size)


@guard(_F(_BOOL, _P, _P, _P), False)
def _copy_tensor(address: int, src: int, dst: int) -> bool:
    return bool(owners[address].provider.copy_from(src, dst))


@guard(_F(None, _P, _U8), None)
def _clear(address: int, value: int) -> None:
    owners[address].provider.clear(value)


# --- backend: one stream of work ----------------------------------------------------------------


@guard(_F(None, _P), None)
def _stream_free(address: int) -> None:
    owner = owners.pop(address)
    try:
        owner.provider.close()
    except BaseException as error:
        owner.fail(error)


@guard(_F(None, _P, _P, _P, _SIZE, _SIZE), None)
def _set_async(address: int, tensor: int, data: int, offset: int, size: int) -> None:
    owners[address].provider.set_async(tensor, data, offset, size)


@guard(_F(None, _P, _P, _P, _SIZE, _SIZE), None)
def _get_async(address: int, tensor: int, data: int, offset: int, size: int) -> None:
    owners[address].provider.get_async(tensor, data, offset, size)


@guard(_F(_BOOL, _P, _P, _P, _P), False)
def _copy_async(source: int, address: int, src: int, dst: int) -> bool:
    target = owners[address]
    try:
        origin = owners.get(source)
        return bool(target.provider.copy_async(origin.provider if origin else None, src, dst))
    except BaseException as error:  # the first argument is the source, which may not be ours
        target.fail(error)
        return False


@guard(_F(None, _P), None)
def _synchronize(address: int) -> None:
    owners[address].provider.synchronize()


@guard(_F(_INT, _P, _P), Status.FAILED)
def _compute(address: int, graph: int) -> int:
    owners[address].provider.compute(graph)
    return Status.SUCCESS


@guard(_F(None, _P, _P), None)
def _event_record(address: int, event: int) -> None:
    owners[event].context = address


@guard(_F(None, _P, _P), None)
def _event_wait(address: int, event: int) -> None:
    recorded = owners[event].context
    if recorded and recorded != address and recorded in owners:
        owners[recorded].provider.synchronize()


REGISTRY: Final = _table(
    RegInterface, get_name=_name, get_device_count=_device_count, get_device=_device_at
)
_DEVICE: Final = _table(
    DeviceInterface,
    get_name=_name,
    get_description=_description,
    get_memory=_memory,
    get_type=_type,
    get_props=_props,
    init_backend=_open_stream,
    get_buffer_type=_buffer_type_of,
    supports_op=_supports_op,
    supports_buft=_supports_buffer_type,
    event_new=_event_new,
    event_free=_event_free,
    event_synchronize=_event_synchronize,
)
_BUFFER_TYPE: Final = _table(
    BufferTypeInterface,
    get_name=_name,
    alloc_buffer=_alloc_buffer,
    get_alignment=_alignment,
    get_max_size=_max_size,
    get_alloc_size=_alloc_size,
)
_BUFFER: Final = _table(
    BufferInterface,
    free_buffer=_free_buffer,
    get_base=_base,
    init_tensor=_init_tensor,
    memset_tensor=_memset_tensor,
    set_tensor=_set_tensor,
    get_tensor=_get_tensor,
    cpy_tensor=_copy_tensor,
    clear=_clear,
)
BACKEND: Final = _table(
    BackendInterface,
    get_name=_name,
    free=_stream_free,
    set_tensor_async=_set_async,
    get_tensor_async=_get_async,
    cpy_tensor_async=_copy_async,
    synchronize=_synchronize,
    graph_compute=_compute,
    event_record=_event_record,
    event_wait=_event_wait,
)


def device_table(*, like_cpu: bool) -> Any:
    """Functions of a device; `like_cpu`: it computes what this machine's CPU backend computes."""
    return _changed(_DEVICE, supports_op=cpu_functions().supports_op) if like_cpu else _DEVICE


def buffer_type_table(*, plain: bool) -> Any:
    """Functions of a buffer type; `plain`: every tensor takes ggml_nbytes, which is the default."""
    return _changed(_BUFFER_TYPE, get_alloc_size=0) if plain else _BUFFER_TYPE


def buffer_table(*, plain: bool, base: int) -> Any:
    """Functions of a buffer whose context is its base; `plain`: tensors need no preparation."""
    functions = {"init_tensor": 0} if plain else {}
    if base % BASE_ALIGNMENT == 0:
        functions["get_base"] = cpu_functions().get_base
    return _changed(_BUFFER, **functions)
