"""llama.cpp's own tests of its server: those that docs/llama-server-tests.md says pass do pass."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.llama_server.document import PATH, read
from tests.llama_server.run import collect, run_tests

#: each case starts a server of its own.
pytestmark = [pytest.mark.network, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def rows():
    return read(PATH.read_text("utf-8"))


def test_the_document_names_every_test_that_there_is(rows):
    cases = Counter(collect())
    files = {row.name for row in rows if "::" not in row.name}
    counted = Counter()
    for name, count in cases.items():
        file = name.partition("::")[0]
        counted[file if file in files else name] += count
    assert {row.name: row.cases for row in rows} == counted
    assert [row.name for row in rows if bool(row.reason) != (row.passed < row.cases)] == []
    assert [row.name for row in rows if row.reason == "?"] == []


def test_the_tests_that_pass_are_those_that_it_names(rows):
    passing = {row.name: row.passed for row in rows if row.passed}
    assert len(passing) >= 30
    outcomes = run_tests(sorted(passing))
    assert {name: found.count("passed") for name, found in outcomes.items()} == passing
