"""Tokens become text: stop strings over any borders, limits, and which token made which text."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringline.engine.events import Piece, TokenLogprob
from ringline.engine.generation import StopReason
from ringline.engine.logprobs import token_logprob
from ringline.engine.writer import StopStrings, Writer


class Words:
    """A vocabulary of given pieces; the last token ends a text."""

    def __init__(self, *pieces: str | bytes) -> None:
        self.pieces = [p if isinstance(p, bytes) else p.encode() for p in pieces]

    def is_end(self, token: int) -> bool:
        return token == len(self.pieces)

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return self.pieces[token]


def write(pieces, *, tokens=None, **options):
    """Write all pieces as tokens; the writer, and what it showed."""
    writer = Writer(Words(*pieces), **options)
    shown = []
    for token in range(len(pieces)) if tokens is None else tokens:
        shown.append(writer.take(token))
        if writer.stop_reason is not None:
            break
    return writer, [piece for piece in shown if piece is not None]


def test_text_comes_with_the_tokens_that_made_it():
    writer, shown = write(["One", " two", " three"])
    assert shown == [Piece("One", (0,)), Piece(" two", (1,)), Piece(" three", (2,))]
    assert (writer.text, writer.ids, writer.stop_reason) == ("One two three", [0, 1, 2], None)


def test_the_token_that_ends_the_text_is_no_part_of_it():
    writer, _ = write(["Hi"], tokens=[0, 1])
    assert (writer.text, writer.ids, writer.stop_reason) == ("Hi", [0], StopReason.END)


def test_the_limit_ends_the_text_with_its_last_token():
    writer, shown = write(["a", "b", "c"], n_predict=2)
    assert (writer.text, writer.stop_reason) == ("ab", StopReason.LIMIT)
    assert shown == [Piece("a", (0,)), Piece("b", (1,))]


def test_no_tokens_wanted_is_full_before_the_first():
    assert Writer(Words(), n_predict=0).full
    assert not Writer(Words(), n_predict=-1).full


def test_half_a_character_waits_for_the_other_half():
    heart = "♥".encode()
    writer, shown = write([b"a" + heart[:1], heart[1:], "b"])
    assert shown == [Piece("a", (0,)), Piece("♥", (1,)), Piece("b", (2,))]
    assert writer.text == "a♥b"


def test_a_character_that_never_became_whole_is_shown_at_the_end():
    writer, shown = write(["a", "♥".encode()[:2]], n_predict=2)
    assert writer.text == "a\ufffd"
    assert shown[-1] == Piece("\ufffd", (1,))


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["Hello STOP no"], "Hello "),
        (["Hello", " ST", "OP no"], "Hello "),
        (["Hello", " S", "T", "O", "P"], "Hello "),
        (["STOP"], ""),
        (["aSTSTOPb"], "aST"),
        (["aS", "TS", "TOPb"], "aST"),
    ],
)
def test_a_stop_string_may_begin_and_end_anywhere_in_a_token(pieces, text):
    writer, shown = write(pieces, stop=["STOP"])
    assert (writer.text, writer.stop_reason, writer.stop) == (text, StopReason.STOP, "STOP")
    assert "".join(piece.text for piece in shown) == text


def test_what_may_become_a_stop_string_is_held_back_until_it_cannot():
    _, shown = write(["a", " ST", "I", "LL"], stop=["STOP"])
    assert [piece.text for piece in shown] == ["a", " ", "STI", "LL"]
    assert [piece.ids for piece in shown] == [(0,), (1,), (2,), (3,)]


def test_the_tokens_of_a_stop_string_are_counted_but_not_shown():
    writer, shown = write(["a", "ST", "OP"], stop=["STOP"])
    assert writer.ids == [0, 1, 2]
    assert [piece.ids for piece in shown] == [(0,)]


def test_the_earliest_stop_string_wins_and_of_two_there_the_longer_one():
    assert write(["abcd"], stop=["cd", "bc"])[0].stop == "bc"
    assert write(["abcd"], stop=["b", "bcd"])[0].stop == "bcd"


def test_what_was_held_back_is_shown_where_the_text_ends_before_it_is_a_stop():
    writer, shown = write(["a", " ST"], stop=["STOP"], n_predict=2)
    assert (writer.text, writer.stop_reason) == ("a ST", StopReason.LIMIT)
    assert "".join(piece.text for piece in shown) == "a ST"


def test_the_end_of_half_a_character_may_be_a_stop():
    writer, _ = write(["a", b"\xe2"], stop=["\ufffd"], n_predict=2)
    assert (writer.text, writer.stop_reason) == ("a", StopReason.STOP)


@given(
    st.text("abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 30), max_size=8),
)
def test_the_text_is_what_a_search_in_the_whole_finds_however_it_is_cut(text, strings, cuts):
    stops, shown = StopStrings(strings), ""
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    for start, end in itertools.pairwise(places):
        shown += stops.feed(text[start:end])
        if stops.found is not None:
            break
    else:
        shown += stops.flush()
    found = [text.find(string) for string in strings if string in text]
    if stops.found is None:
        assert (shown, found) == (text, [])
    else:
        # Cut in the middle of a longer one, a shorter one that begins later may end sooner.
        place = len(shown)
        assert text[: place + len(stops.found)].endswith(stops.found)
        assert place >= min(found)


def logprob(token):
    return TokenLogprob(token, b"", -1.0)


def test_logprobs_are_shown_with_their_tokens():
    writer = Writer(Words("a", "ST", "IR", "ST", "OP"), stop=["STOP"])
    shown = [writer.take(token, logprob(token)) for token in range(5)]
    assert [piece and piece.logprobs for piece in shown] == [
        (logprob(0),),
        None,
        (logprob(1), logprob(2)),
        None,
        None,
    ]
    assert writer.logprobs == [logprob(0), logprob(1), logprob(2)]


def test_pieces_are_joined_where_there_are_two():
    one, two = Piece("a", (1,), (logprob(1),)), Piece("b", (2,), (logprob(2),))
    assert Piece.joined(one, two) == Piece("ab", (1, 2), (logprob(1), logprob(2)))
    assert (Piece.joined(one, None), Piece.joined(None, None)) == (one, None)


def test_logprobs_are_those_of_the_whole_vocabulary_the_likeliest_first():
    logits = np.array([1.0, 3.0, 3.0, -2.0], np.float32)
    before = logits.copy()
    found = token_logprob(logits, 0, 3, Words("a", "b", "c", "d"))
    wanted = np.log(np.exp(logits) / np.exp(logits).sum())
    assert (found.token, found.piece, found.logprob) == (0, b"a", pytest.approx(wanted[0]))
    assert [(top.token, top.piece) for top in found.top] == [(1, b"b"), (2, b"c"), (0, b"a")]
    assert found.top[0].logprob == pytest.approx(wanted[1])
    assert all(top.top == () for top in found.top)
    assert (logits == before).all()


def test_no_likeliest_tokens_are_named_unless_they_are_wanted():
    logits = np.array([0.0, 1.0], np.float32)
    assert token_logprob(logits, 1, 0, Words("a", "b")).top == ()
    assert len(token_logprob(logits, 1, 9, Words("a", "b")).top) == 2


def test_a_forbidden_token_does_not_make_the_others_nonsense():
    logits = np.array([0.0, -np.inf, 1e4], np.float32)
    found = token_logprob(logits, 2, 3, Words("a", "b", "c"))
    assert found.logprob == pytest.approx(0.0)
    assert found.top[-1].logprob == -np.inf
