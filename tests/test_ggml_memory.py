"""Memory by address: what is asked of the kernel for large buffers; it stays plain memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ringline.ggml.devices import cpu_device
from ringline.ggml.memory import ask_for_huge_pages

MIB = 1 << 20


def flags(address: int) -> set[str]:
    """The kernel's flags of the mapping that holds an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        bounds = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if bounds:
            inside = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return set(line.split()[1:])
    raise LookupError(f"nothing is mapped at {address:#x}")


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a kernel without huge pages"
)
def test_a_large_host_buffer_asks_for_huge_pages_and_works():
    buffer = cpu_device().alloc_buffer(16 * MIB)
    try:
        assert "hg" in flags(buffer.base + 8 * MIB)
        data = buffer.view(buffer.base, buffer.size)
        data[0], data[-1] = 1, 2
        assert (data[0], data[-1]) == (1, 2)
    finally:
        buffer.close()


def test_a_small_buffer_asks_for_nothing():
    buffer = cpu_device().alloc_buffer(MIB)
    try:
        assert not ask_for_huge_pages(buffer.base, buffer.size)
    finally:
        buffer.close()


def test_memory_that_is_not_there_is_no_error():
    assert not ask_for_huge_pages(1 << 60, 16 * MIB)
