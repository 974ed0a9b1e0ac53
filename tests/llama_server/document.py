"""docs/llama-server-tests.md: which of llama.cpp's own tests pass, and why the others do not apply.

    python -m tests.llama_server.document

runs the files that may apply and writes it. The document is data as well: `read` gives back what
it says, and a test compares that with the tests that there are and with what becomes of them.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tests.llama_server.reasons import FILES, TESTS
from tests.llama_server.run import collect, run_tests
from tests.peers.processes import ROOT

__all__ = ["PATH", "Row", "read"]

PATH: Final = ROOT / "docs" / "llama-server-tests.md"
_HEAD: Final = """\
# llama.cpp's own tests of its server

The source distribution of llama-cpp-python has the tests of llama-server (tools/server/tests). They
are run against `ringline api` by a program that stands in for llama-server and translates its flags
(`tests/llama_server/`); a flag that ringline has not ends it, and with it the test. The hub of the
models of these tests is not asked: a model of the same kind with random weights takes the place of
stories260K, and a random BERT that of bge-small. So a test that looks for words of a certain story,
or for a certain number of tokens, cannot pass.

Written by `python -m tests.llama_server.document` (with `src`, `tools` and `.` on PYTHONPATH);
`tests/test_llama_server.py` runs the tests that are said to pass, and compares the lists with the
tests that there are. The cases of a test are counted.

"""
_COLUMNS: Final = "| test | pass | of | why not the others |\n|---|---|---|---|\n"
_ROW: Final = re.compile(r"\| (test_\w+(?:\.py)?) \| (\d+) \| (\d+) \| (.*) \|")
_SECTION: Final = re.compile(r"### (test_\w+\.py)")


@dataclass(frozen=True, slots=True)
class Row:
    """A test, or a whole file of them.

    Attributes:
        name: `test_basic.py::test_server_props`, or the file alone.
        passed, cases: how many of its cases pass, and how many there are.
        reason: why the others do not; "" where there are none.
    """

    name: str
    passed: int
    cases: int
    reason: str


def read(text: str) -> list[Row]:
    """The rows of the document."""
    file, rows = "", []
    for line in text.splitlines():
        if section := _SECTION.fullmatch(line):
            file = section[1] + "::"
        elif line.startswith("## "):
            file = ""
        elif row := _ROW.fullmatch(line):
            rows.append(Row(file + row[1], int(row[2]), int(row[3]), row[4]))
    return rows


def _rows() -> Iterator[Row]:
    """Run what may apply; where nothing says why a test does not pass, the reason is a `?`."""
    cases = Counter(collect())
    files = sorted({name.partition("::")[0] for name in cases})
    outcomes = run_tests([file for file in files if file not in FILES])
    for name in sorted(cases):
        if name.partition("::")[0] in FILES:
            continue
        passed = outcomes.get(name, []).count("passed")
        reason = "" if passed == cases[name] else TESTS.get(name, "?")
        yield Row(name, passed, cases[name], reason)
    for file, reason in FILES.items():
        count = sum(number for name, number in cases.items() if name.startswith(f"{file}::"))
        yield Row(file, 0, count, reason)


def _render(rows: Iterable[Row]) -> str:
    rows = list(rows)
    passed = sum(row.passed for row in rows)
    within = sum(row.cases for row in rows if "::" in row.name)
    beyond = sum(row.cases for row in rows if "::" not in row.name)
    counts = f"{passed} of {within} cases pass in the files that apply; the others have {beyond}."
    lines = [_HEAD, counts, "\n\n## Files that apply\n"]
    file = ""
    for row in (row for row in rows if "::" in row.name):
        of, _, test = row.name.partition("::")
        if of != file:
            file = of
            lines.append(f"\n### {file}\n\n{_COLUMNS}")
        lines.append(f"| {test} | {row.passed} | {row.cases} | {row.reason} |\n")
    lines.append(f"\n## Files that do not\n\n{_COLUMNS.replace('test |', 'file |', 1)}")
    lines += [f"| {r.name} | 0 | {r.cases} | {r.reason} |\n" for r in rows if "::" not in r.name]
    return "".join(lines)


if __name__ == "__main__":
    PATH.write_text(_render(_rows()), "utf-8")
    print(f"wrote {PATH}", file=sys.stderr)
