"""libllama through llama_cpp's own bindings: model, context, batch, sampler.

Importing this package loads no library. It knows nothing of nodes: devices come in as addresses,
and errors that happen elsewhere come in through `check`.
"""
