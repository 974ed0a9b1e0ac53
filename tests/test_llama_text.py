"""Text comes out of a stream of tokens whole, character by character."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringline.llama.model import Model
from ringline.llama.text import StreamDecoder


class Pieces:
    """A vocabulary whose token i has the i-th of these bytes."""

    def __init__(self, pieces):
        self.pieces = pieces

    def piece(self, token, *, special=False):
        return self.pieces[token]


def decode(pieces, *, flush=True):
    decoder = StreamDecoder(Pieces(pieces))
    texts = [decoder.feed(token) for token in range(len(pieces))]
    return [*texts, decoder.flush()] if flush else texts


@given(st.text(), st.data())
def test_text_cut_anywhere_comes_out_the_same_and_no_piece_holds_half_a_character(text, data):
    encoded = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(encoded)))) | {0, len(encoded)})
    pieces = [encoded[a:b] for a, b in pairwise(cuts)]
    texts = decode(pieces)
    assert "".join(texts) == text
    assert all("\ufffd" not in piece for piece in texts) or "\ufffd" in text


def test_a_character_is_held_back_until_its_last_byte():
    assert decode([b"a\xf0", b"\x9f", b"\x99", b"\x82b"]) == ["a", "", "", "🙂b", ""]


def test_bytes_that_are_no_text_are_shown_as_such_and_the_stream_goes_on():
    assert "".join(decode([b"\xff", b"ok"])) == "\ufffdok"


def test_a_character_that_never_became_whole_is_shown_at_the_end():
    assert decode([b"\xf0\x9f", b"\x99"]) == ["", "", "\ufffd"]


@pytest.mark.model
def test_emoji_that_take_several_tokens_come_out_whole(model_path):
    text = "Grüße 🦜🧑‍🚀 from 北京, ok"
    with Model.load(model_path) as model:
        tokens = model.tokenize(text, add_special=False)
        decoder = StreamDecoder(model)
        texts = [decoder.feed(token) for token in tokens]
        assert max(len(model.piece(token)) for token in tokens) < len("🧑‍🚀".encode())
    assert "".join(texts) + decoder.flush() == text
    assert all("\ufffd" not in piece for piece in texts)
    assert "" in texts


@pytest.mark.model
def test_control_tokens_are_left_out_unless_they_are_asked_for(model_path):
    with Model.load(model_path) as model:
        tokens = model.tokenize("<|im_start|>user", parse_special=True)
        hidden, shown = StreamDecoder(model), StreamDecoder(model, special=True)
        assert "".join(map(hidden.feed, tokens)) == "user"
        assert "".join(map(shown.feed, tokens)) == "<|im_start|>user"
