"""A run over a context: the ids of llama_cpp, text in whole pieces, and a reason to stop."""

import llama_cpp
import pytest

import make_model
from make_model import ModelSpec
from ringline.engine.generation import Generation, StopReason
from ringline.errors import CallerError, NetworkError
from ringline.llama.batch import Batch
from ringline.llama.context import Context
from ringline.llama.model import Model
from ringline.llama.sampler import Sampler, SamplingParams

GREEDY = SamplingParams(temperature=0)
PROMPTS = ["The capital of France is", "Once upon a time there was a lighthouse"]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = make_model.make_model(tmp_path_factory.mktemp("small") / "small.gguf", ModelSpec())
    with Model.load(path) as model:
        yield model


@pytest.fixture
def context(small):
    with Context(small, n_ctx=256, n_batch=16, n_threads=1) as opened:
        yield opened


@pytest.fixture
def sampler(small):
    with Sampler(small, GREEDY) as opened:
        yield opened


def stock_ids(path, prompt, count):
    """What llama_cpp's own Llama generates, greedily."""
    stock = llama_cpp.Llama(
        str(path), n_ctx=512, n_batch=512, n_threads=2, n_threads_batch=2, verbose=False
    )
    try:
        tokens = stock.generate(stock.tokenize(prompt.encode()), temp=0.0, repeat_penalty=1.0)
        return [next(tokens) for _ in range(count)]
    finally:
        stock.close()


@pytest.mark.model
@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_ids_are_those_of_llama_cpp(prompt, model_path):
    with (
        Model.load(model_path) as model,
        Context(model, n_ctx=512, n_batch=512, n_threads=2, flash_attention=False) as context,
        Sampler(model, GREEDY) as sampler,
    ):
        run = Generation(context, sampler, model.tokenize(prompt), n_predict=32)
        text = "".join(run)
        assert b"".join(map(model.piece, run.ids)).decode() == text
    assert run.ids == stock_ids(model_path, prompt, 32)
    assert run.stop_reason is StopReason.LIMIT


@pytest.mark.model
def test_a_run_ends_with_the_text(model_path):
    with (
        Model.load(model_path) as model,
        Context(model, n_ctx=512, n_threads=2) as context,
        Sampler(model, GREEDY) as sampler,
    ):
        prompt = "<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n"
        run = Generation(context, sampler, model.tokenize(prompt, parse_special=True))
        text = "".join(run)
        assert run.stop_reason is StopReason.END
        assert not any(map(model.is_end, run.ids))
        assert "<|im_end|>" not in text
        assert text


def test_the_prompt_is_decoded_in_chunks_and_progress_tells(context, sampler):
    seen = []
    prompt = [5 + i % 50 for i in range(40)]
    run = Generation(
        context, sampler, prompt, n_predict=1, progress=lambda *done: seen.append(done)
    )
    list(run)
    assert seen == [(16, 40), (32, 40), (40, 40)]


def test_the_times_of_a_run_are_kept(context, sampler):
    run = Generation(context, sampler, [5, 6, 7], n_predict=10)
    assert (run.tokens_per_second, run.prompt_tokens_per_second) == (0, 0)
    list(run)
    assert len(run.ids) == 10
    assert len(run.token_seconds) == 9
    assert all(seconds > 0 for seconds in run.token_seconds)
    assert run.prompt_seconds > 0
    assert run.tokens_per_second == pytest.approx(9 / sum(run.token_seconds))
    assert run.prompt_tokens_per_second == pytest.approx(3 / run.prompt_seconds)


def test_an_observer_is_told_of_each_step_after_the_prompt(context, sampler):
    class Observer:
        def start(self):
            told.append(("start", len(seen), len(run.ids)))

        def stop(self):
            told.append(("stop", len(seen), len(run.ids)))

    told, seen = [], []
    run = Generation(
        context,
        sampler,
        [5, 6, 7],
        n_predict=3,
        progress=lambda *done: seen.append(done),
        observer=Observer(),
    )
    list(run)
    assert told == [("start", 1, 1), ("stop", 1, 1), ("start", 1, 2), ("stop", 1, 2)]


def test_no_tokens_asked_for_decodes_the_prompt_alone(context, sampler):
    seen = []
    run = Generation(
        context, sampler, [5, 6], n_predict=0, progress=lambda *done: seen.append(done)
    )
    assert list(run) == []
    assert (run.ids, run.stop_reason, seen) == ([], StopReason.LIMIT, [(2, 2)])


def test_a_full_context_ends_the_run_and_the_last_place_is_used(context, sampler):
    run = Generation(context, sampler, [5] * 250)
    list(run)
    assert run.stop_reason is StopReason.CONTEXT_FULL
    # 250 and 6 tokens fill 256 places; the logits of the last one give one more token.
    assert len(run.ids) == 256 - 250 + 1


def test_a_prompt_that_fills_the_context_gives_one_token(context, sampler):
    run = Generation(context, sampler, [5] * 256)
    list(run)
    assert (len(run.ids), run.stop_reason) == (1, StopReason.CONTEXT_FULL)


def test_a_prompt_longer_than_the_context_is_refused(context, sampler):
    with pytest.raises(CallerError, match="prompt has 257 tokens and the context holds 256"):
        Generation(context, sampler, [5] * 257)


def test_an_empty_prompt_is_refused(context, sampler):
    with pytest.raises(CallerError, match="the prompt is empty"):
        Generation(context, sampler, [])


def test_a_run_starts_from_nothing_whatever_the_context_held(context, small):
    ids = []
    for _ in range(2):
        with Sampler(small, GREEDY) as sampler:
            run = Generation(context, sampler, [5, 6, 7], n_predict=5)
            list(run)
            ids.append(run.ids)
    assert ids[0] == ids[1]


def test_a_run_that_the_caller_leaves_has_no_reason_to_stop(context, sampler):
    run = Generation(context, sampler, [5, 6, 7], n_predict=50)
    for _ in run:
        break
    assert run.stop_reason is None
    assert 0 < len(run.ids) < 50


def test_a_run_runs_once(context, sampler):
    run = Generation(context, sampler, [5], n_predict=1)
    list(run)
    with pytest.raises(CallerError, match="runs once"):
        iter(run)


def test_the_penalties_know_the_prompt(context, small):
    with Sampler(small, GREEDY) as sampler:
        plain = Generation(context, sampler, [5, 6, 7], n_predict=1)
        list(plain)
    prompt = [plain.ids[0], 5, 6, 7]
    with Sampler(small, SamplingParams(temperature=0, presence_penalty=1e6)) as sampler:
        run = Generation(context, sampler, prompt, n_predict=1)
        list(run)
    assert run.ids[0] not in prompt


def test_a_lost_node_ends_the_run_with_its_error(small, sampler):
    calls = []

    def check():
        calls.append(None)
        if len(calls) == 5:
            raise NetworkError("connection lost", peer="127.0.0.1:1")

    with Context(small, n_ctx=256, n_threads=1, check=check) as context:
        run = Generation(context, sampler, [5, 6, 7], n_predict=50)
        with pytest.raises(NetworkError, match="connection lost"):
            list(run)
    assert len(run.ids) == 3
    assert run.stop_reason is None


def test_another_sequence_is_left_alone(small, sampler):
    with Context(small, n_ctx=512, n_seq_max=2, n_threads=1) as context:
        other = Batch(3)
        other.add_run([8, 9, 10], 0, 0, logits_last=True)
        context.decode(other)
        list(Generation(context, sampler, [5, 6, 7], n_predict=5, seq_id=1))
        more = Batch(1)
        more.add(11, 3, (0,), logits=True)
        context.decode(more)
