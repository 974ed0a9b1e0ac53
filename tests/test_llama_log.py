"""libllama's messages become log records, and its errors can be quoted in an exception."""

import logging
import threading

import pytest

from ringline.llama import log

DEBUG, INFO, WARN, ERROR, CONT = 1, 2, 3, 4, 5


@pytest.fixture
def records(caplog):
    caplog.set_level(logging.DEBUG, "ringline.llama")
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records]


def test_levels_of_ggml_become_levels_of_logging(records):
    for level, text in enumerate(["none", "debug", "info", "warn", "error"]):
        log.receive(level, text + "\n")
    assert records() == [
        ("INFO", "none"),
        ("DEBUG", "debug"),
        ("INFO", "info"),
        ("WARNING", "warn"),
        ("ERROR", "error"),
    ]


def test_a_message_that_comes_in_pieces_is_one_record_of_its_first_level(records):
    log.receive(WARN, "loading ")
    log.receive(CONT, ".")
    log.receive(CONT, ".")
    log.receive(CONT, "\n")
    assert records() == [("WARNING", "loading ..")]


def test_an_unfinished_message_ends_where_the_next_one_begins(records):
    log.receive(INFO, "half")
    log.receive(ERROR, "whole\n")
    assert records() == [("INFO", "half"), ("ERROR", "whole")]


def test_empty_lines_are_no_records(records):
    log.receive(INFO, "\n")
    log.receive(INFO, "  \n")
    assert records() == []


def test_only_errors_are_collected_and_only_while_the_block_runs():
    log.receive(ERROR, "before\n")
    with log.collected_errors() as errors:
        log.receive(WARN, "a warning\n")
        log.receive(ERROR, "first\n")
        with log.collected_errors() as inner:
            log.receive(ERROR, "second\n")
        log.receive(ERROR, "without line feed")
    log.receive(ERROR, "after\n")
    assert errors == ["first", "second", "without line feed"]
    assert inner == ["second"]


def test_errors_of_another_thread_are_not_collected():
    with log.collected_errors() as errors:
        other = threading.Thread(target=log.receive, args=(ERROR, "elsewhere\n"))
        other.start()
        other.join()
    assert errors == []


@pytest.mark.parametrize(
    ("errors", "quoted"),
    [
        ([], "libllama gave no reason"),
        (["llama_model_load_from_file_impl: failed to load model"], "failed to load model"),
        (
            [
                "llama_model_load: error loading model: unknown model architecture: 'x'",
                "llama_model_load_from_file_impl: failed to load model",
            ],
            "unknown model architecture: 'x'",
        ),
        (
            [
                "init: positions differ:\n - X = 4\n - Y = 9",
                "llama_decode: failed to decode, ret = -1",
            ],
            "positions differ: - X = 4 - Y = 9",
        ),
        (
            ["llama_init_from_model: failed to initialize the context: std::bad_alloc"],
            "there is not enough memory",
        ),
        (
            ["gguf: this is version 9", "gguf: failed to read header"],
            "this is version 9; failed to read header",
        ),
    ],
)
def test_the_reason_is_quoted_without_names_of_functions(errors, quoted):
    assert log.quote(errors) == quoted


def test_what_was_postponed_is_raised_once_and_on_its_own_thread():
    log.postpone(KeyboardInterrupt())
    other = threading.Thread(target=log.raise_postponed)
    other.start()
    other.join()
    with pytest.raises(KeyboardInterrupt):
        log.raise_postponed()
    log.raise_postponed()
