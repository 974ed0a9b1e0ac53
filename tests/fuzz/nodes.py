"""How the nodes that are fuzzed are started."""

from typing import Final

#: crashes are what is looked for: nobody has to wait after one.
FUZZ_NODE: Final = ("--device=CPU", "--threads=1", "--crash-pause=0", "--log-format=json")
