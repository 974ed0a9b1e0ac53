"""Importing ringline and not using it changes nothing in llama_cpp."""

from __future__ import annotations

import json

import pytest

from tests.peers.processes import run_python

EVERYTHING = (
    "import ringline, ringline.client.ring, ringline.engine.ring, ringline.ggml.callbacks, "
    "ringline.llama.model, ringline.server.gatekeeper"
)
SCRIPT = """
{imports}
import json, sys
import llama_cpp
from llama_cpp import _ggml
from tests.peers import workloads
ids = workloads.run("decode", sys.argv[1])
print(json.dumps({{"ids": ids, "devices": _ggml.libggml.ggml_backend_dev_count()}}))
"""


@pytest.mark.model
def test_greedy_output_and_devices_are_the_same(model_path):
    results = [
        json.loads(run_python(["-c", SCRIPT.format(imports=imports), str(model_path)]))
        for imports in ("", EVERYTHING)
    ]
    assert results[0] == results[1]


def test_importing_ringline_loads_no_library():
    script = (
        "import ringline, sys; maps = open('/proc/self/maps').read(); "
        "print('llama_cpp' in sys.modules or 'numpy' in sys.modules or 'libggml' in maps)"
    )
    assert run_python(["-c", script]).strip() == "False"
