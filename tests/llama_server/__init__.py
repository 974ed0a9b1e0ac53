"""llama.cpp's own tests of its server, run against `ringline api`.

They come with the source distribution of llama-cpp-python and are taken from there when they are
run; nothing of them is kept here. `binary` stands in for llama-server, `plugin` for what their own
conftest does, `run` runs them, `document` says which pass and why the others do not apply.
"""
