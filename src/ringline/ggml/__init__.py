"""The C library ggml behind a wall: find, load, check, layouts, handles, callback tables.

Only this room and llama/ touch ctypes. Nobody above sees a pointer type: addresses are ints.
"""
