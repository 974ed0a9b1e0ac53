"""The protocol as values and bytes: commands, messages, tensor records, graph bodies.

No socket, no thread, no ctypes. Everything is little-endian and packed; sizes are bytes.
"""
