"""A context decodes what a batch holds, or says in one sentence why it does not."""

import subprocess
import sys

import numpy as np
import pytest

import make_model
from make_model import ModelSpec
from ringline.errors import CallerError, LibraryError, NetworkError
from ringline.llama.batch import Batch
from ringline.llama.context import Context
from ringline.llama.model import Model

TOKENS = [5, 6, 7, 8, 9, 10]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / "small.gguf"
    with Model.load(make_model.make_model(path, ModelSpec())) as loaded:
        yield loaded


@pytest.fixture
def context(model):
    with Context(model, n_ctx=512, n_batch=64, n_seq_max=2, n_threads=1) as opened:
        yield opened


def decode(context, tokens, position=0, seq_id=0):
    batch = Batch(len(tokens))
    batch.add_run(tokens, position, seq_id, logits_last=True)
    context.decode(batch)


def test_sizes_are_those_that_libllama_took(model):
    with Context(model, n_ctx=300, n_batch=9999, n_ubatch=32, n_threads=1) as context:
        assert (context.n_ctx, context.n_ctx_seq) == (512, 512)
        assert (context.n_batch, context.n_ubatch, context.n_seq_max) == (300, 32, 1)


def test_sequences_share_the_context_or_the_cache(model):
    with Context(model, n_ctx=512, n_seq_max=2, n_threads=1) as context:
        assert (context.n_ctx, context.n_ctx_seq) == (512, 256)
    with Context(model, n_ctx=512, n_seq_max=2, n_threads=1, kv_unified=True) as context:
        assert (context.n_ctx, context.n_ctx_seq) == (512, 512)


@pytest.mark.parametrize("flash_attention", [None, False, True])
def test_flash_attention_may_be_chosen(flash_attention, model):
    with Context(model, n_ctx=256, n_threads=1, flash_attention=flash_attention) as context:
        decode(context, TOKENS)
        assert np.isfinite(context.logits()).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_ctx": -1}, "n_ctx is -1"),
        ({"n_batch": 0}, "n_batch is 0: it must be at least 1"),
        ({"n_ubatch": 0}, "n_ubatch is 0"),
        ({"n_seq_max": 0}, "n_seq_max is 0"),
        ({"n_seq_max": 257}, "257 sequences are too many"),
        ({"n_threads": 0}, "n_threads is 0"),
        ({"n_threads_batch": 0}, "n_threads_batch is 0"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(options, message, model):
    with pytest.raises(CallerError, match=message):
        Context(model, **options)


def test_a_context_that_no_memory_holds_is_refused_with_the_reason(model):
    code = f"""
import resource
from ringline.errors import CallerError
from ringline.llama.context import Context
from ringline.llama.model import Model
with Model.load({str(model.path)!r}) as model:
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    # So that nothing is really taken from a machine that has as much.
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, resource.RLIM_INFINITY))
    try:
        Context(model, n_ctx=2**31 - 256, n_threads=1)
    except CallerError as error:
        print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == (
        "no context of 2147483392 tokens for small.gguf: there is not enough memory\n"
    )
    assert run.stderr == ""


def test_logits_are_rows_of_the_tokens_that_asked(context, model):
    batch = Batch(4)
    first = batch.add(5, 0, logits=True)
    silent = batch.add(6, 1)
    last = batch.add(7, 2, logits=True)
    context.decode(batch)
    assert context.logits(first).shape == (model.n_vocab,)
    assert context.logits(first).dtype == np.float32
    assert (context.logits(last) == context.logits()).all()
    assert (context.logits(first) != context.logits(last)).any()
    with pytest.raises(CallerError, match=r"token 1 of the last batch did not ask for logits"):
        context.logits(silent)


def test_a_prompt_in_parts_gives_the_logits_of_the_whole(context):
    decode(context, TOKENS)
    whole = context.logits().copy()
    context.memory_clear()
    decode(context, TOKENS[:2])
    decode(context, TOKENS[2:], 2)
    np.testing.assert_allclose(context.logits(), whole, rtol=1e-4, atol=1e-5)


def test_two_sequences_in_a_batch_do_not_disturb_each_other(context):
    decode(context, TOKENS)
    alone = context.logits().copy()
    context.memory_clear()
    batch = Batch(64)
    index = batch.add_run(TOKENS, 0, 0, logits_last=True)
    batch.add_run(TOKENS[::-1], 0, 1, logits_last=True)
    context.decode(batch)
    np.testing.assert_allclose(context.logits(index), alone, rtol=1e-4, atol=1e-5)


def shared_batch():
    batch = Batch(8, n_seq_max=2)
    for position, token in enumerate(TOKENS[:3]):
        batch.add(token, position, (0, 1))
    return batch


def test_a_token_may_belong_to_several_sequences_of_one_cache(model):
    with Context(model, n_ctx=256, n_seq_max=2, n_threads=1, kv_unified=True) as context:
        context.decode(shared_batch())
        decode(context, TOKENS[3:], 3, seq_id=0)
        first = context.logits().copy()
        decode(context, TOKENS[3:], 3, seq_id=1)
        np.testing.assert_allclose(context.logits(), first, rtol=1e-4, atol=1e-5)


def test_a_batch_that_finds_no_place_is_explained(context):
    with pytest.raises(CallerError, match=r"no place for the batch of 3 tokens: .*coupled"):
        context.decode(shared_batch())


def test_a_sequence_that_is_forgotten_can_be_written_again(context):
    decode(context, TOKENS)
    before = context.logits().copy()
    assert context.seq_rm(0, 3)
    decode(context, TOKENS[3:], 3)
    np.testing.assert_allclose(context.logits(), before, rtol=1e-4, atol=1e-5)
    assert context.seq_rm(0)
    decode(context, TOKENS)


def test_a_memory_that_is_cleared_with_its_data_decodes_the_same(context):
    decode(context, TOKENS)
    before = context.logits().copy()
    context.memory_clear(data=True)
    decode(context, TOKENS)
    assert (context.logits() == before).all()


def test_a_sequence_that_the_context_lacks_cannot_be_forgotten(context):
    with pytest.raises(CallerError, match="sequence 2 is not one of this context's 2"):
        context.seq_rm(2)


def test_a_batch_longer_than_the_context_takes_is_refused(context):
    with pytest.raises(CallerError, match="one decode takes 1 to 64 tokens, not 65"):
        decode(context, [5] * 65)


def test_an_empty_batch_is_refused(context):
    with pytest.raises(CallerError, match="one decode takes 1 to 64 tokens, not 0"):
        context.decode(Batch(1))


@pytest.mark.parametrize(
    ("tokens", "position", "seq_id", "message"),
    [
        ([10**9], 0, 0, r"the batch of 1 token: invalid token\[0\] = 1000000000"),
        ([5, 6], 0, 7, r"the batch of 2 tokens: invalid seq_id\[0\]\[0\] = 7 >= 2"),
        ([5, 6], 9, 0, "it is required that the sequence positions remain consecutive"),
    ],
)
def test_a_batch_that_libllama_refuses_is_explained(tokens, position, seq_id, message, context):
    decode(context, TOKENS)
    with pytest.raises(CallerError, match=f"libllama refuses .*{message}"):
        decode(context, tokens, position, seq_id)


def test_a_full_cache_is_explained_and_the_context_lives(context):
    for position in range(0, context.n_ctx_seq, 64):
        decode(context, [5] * 64, position)
    with pytest.raises(CallerError, match="KV cache has no room for the batch of 64 tokens"):
        decode(context, [5] * 64, context.n_ctx_seq)
    context.memory_clear()
    decode(context, TOKENS)


class Sticky:
    """Stands for a client backend that has lost a node, from the n-th question on."""

    def __init__(self):
        self.error = None

    def __call__(self):
        if self.error:
            raise self.error


def test_an_error_elsewhere_comes_out_of_a_decode_that_libllama_calls_good(model):
    check = Sticky()
    with Context(model, n_ctx=256, n_threads=1, check=check) as context:
        decode(context, TOKENS)
        check.error = NetworkError("connection lost", peer="127.0.0.1:1")
        with pytest.raises(NetworkError, match="connection lost"):
            decode(context, TOKENS, len(TOKENS))


def test_an_error_elsewhere_goes_before_libllamas_own(model):
    check = Sticky()
    with Context(model, n_ctx=256, n_threads=1, check=check) as context:
        check.error = NetworkError("connection lost", peer="127.0.0.1:1")
        with pytest.raises(NetworkError):
            decode(context, [10**9])


def test_an_error_elsewhere_while_a_context_is_made_comes_out(model):
    check = Sticky()
    check.error = NetworkError("connection lost", peer="127.0.0.1:1")
    with pytest.raises(NetworkError):
        Context(model, n_ctx=256, n_threads=1, check=check)


@pytest.mark.parametrize(
    ("result", "kind", "message"),
    [
        (-2, CallerError, "no memory to compute the batch of 6 tokens"),
        (-3, LibraryError, r"failed to compute the batch of 6 tokens \(code -3\)"),
        (2, CallerError, "the computation of the batch of 6 tokens was aborted"),
    ],
)
def test_each_failure_of_a_decode_has_its_sentence(result, kind, message, context, monkeypatch):
    class Failing:
        def __getattr__(self, name):
            return getattr(library, name)

        def llama_decode(self, handle, batch):
            return result

    library = context._library
    monkeypatch.setattr(context, "_library", Failing())
    with pytest.raises(kind, match=message):
        decode(context, TOKENS)


def test_a_closed_context_says_so_and_closes_again(model):
    context = Context(model, n_ctx=256, n_threads=1)
    context.close()
    context.close()
    with pytest.raises(CallerError, match=r"a context of small\.gguf is closed"):
        decode(context, TOKENS)
    with pytest.raises(CallerError, match="closed"):
        context.logits()


def test_a_batch_can_be_filled_again(context):
    batch = Batch(8)
    batch.add_run([9] * 8, 0, 1, logits_last=True)
    batch.clear()
    batch.add_run(TOKENS, 0, logits_last=True)
    assert len(batch) == len(TOKENS)
    context.decode(batch)
    again = context.logits().copy()
    context.memory_clear()
    decode(context, TOKENS)
    assert (context.logits() == again).all()
