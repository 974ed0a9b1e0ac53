"""An engine in a process of its own: jobs over its socket, errors as they were, and its death."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import msgspec
import pytest

import make_model
from make_model import ModelSpec
from ringline import Ring
from ringline.engine.events import Outcome, Piece
from ringline.engine.generation import StopReason
from ringline.engine.job import Request
from ringline.engine.process.channel import Channel
from ringline.engine.process.client import EngineProcess
from ringline.engine.process.messages import (
    Cancel,
    EngineSpec,
    ErrorFacts,
    FromClient,
    Submit,
)
from ringline.engine.process.questions import (
    AskGrammar,
    AskMetrics,
    AskPrompt,
    AskText,
    AskTokens,
    Said,
    Tokens,
)
from ringline.errors import (
    BusyError,
    CallerError,
    DeadlineError,
    EngineError,
    NetworkError,
    RefusedError,
)
from ringline.llama.sampler import SamplingParams
from tests.peers.processes import run_python
from tests.rings import open_peers

SECONDS = 60.0
#: quantised, so that a row is computed as if it were alone (see test_engine_soak).
SPEC = ModelSpec(type="q8_0")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return make_model.make_model(tmp_path_factory.mktemp("small") / "small.gguf", SPEC)


def spec(path, **options):
    """Two slots of 16,384 tokens: a job that nobody cancels runs for many seconds.

    Weights are not re-ordered: ggml's AMX kernels crash on some virtual machines.
    """
    standard = {"model": str(path), "parallel": 2, "n_ctx": 32768, "n_threads": 1, "repack": False}
    return EngineSpec(**{**standard, **options})


@pytest.fixture(scope="module")
def shared(small):
    with EngineProcess(spec(small, queue=4)) as engine:
        yield engine


def test_a_job_gives_what_an_engine_of_ones_own_gives(shared, small):
    with Ring() as ring, ring.load(small, n_threads=1, repack=False, n_ctx=256) as loaded:
        run = loaded.generate("Once upon a time", n_predict=20)
        text = "".join(run)
    job = shared.submit("Once upon a time", Request(n_predict=20))
    pieces = list(job)
    outcome = job.result(0)
    assert (outcome.text, list(outcome.ids)) == (text, run.ids)
    assert "".join(piece.text for piece in pieces) == text
    assert outcome.stop_reason is StopReason.LIMIT
    assert outcome.timings.total >= outcome.timings.first_token > 0


def test_what_is_asked_for_gets_there(shared):
    sampling = SamplingParams(temperature=1.2, seed=3, logit_bias={300: 5.0, 2: float("-inf")})
    request = Request(n_predict=6, sampling=sampling, logprobs=1)
    outcomes = [shared.submit((5, 6, 7), request).result(SECONDS) for _ in range(2)]
    assert outcomes[0].ids == outcomes[1].ids
    assert [entry.token for entry in outcomes[0].logprobs] == list(outcomes[0].ids)
    assert all(isinstance(entry.piece, bytes) for entry in outcomes[0].logprobs)


def test_jobs_run_beside_each_other_and_one_can_be_cancelled(shared, patience):
    endless = shared.submit("Go on", Request(n_predict=-1))
    next(iter(endless))
    assert shared.submit("And you", Request(n_predict=3)).result(patience(SECONDS)).ids
    endless.cancel()
    assert endless.result(patience(SECONDS)).stop_reason is StopReason.CANCELLED
    endless.cancel()


def test_a_sink_takes_the_events(shared, patience):
    events, ended = [], threading.Event()

    def sink(event):
        events.append(event)
        if isinstance(event, Outcome):
            ended.set()

    shared.submit("Go", Request(n_predict=5), sink=sink)
    assert ended.wait(patience(SECONDS))
    assert all(isinstance(event, Piece) for event in events[:-1])


def test_metrics_come_as_they_are_there(shared):
    before = shared.metrics()
    shared.submit("Go", Request(n_predict=5)).result(SECONDS)
    after = shared.metrics()
    assert after.submitted == before.submitted + 1
    assert after.generated_tokens == before.generated_tokens + 5
    assert [group.slots for group in after.groups] == [2]


@pytest.mark.parametrize(
    ("prompt", "options", "reason"),
    [
        ((), {}, "the prompt is empty"),
        (
            (5,) * 16385,
            {},
            "16385 tokens and exceeds the available context size: the context",
        ),
        ("Go", {"sampling": SamplingParams(grammar="no grammar")}, "the grammar cannot be used"),
    ],
)
def test_what_cannot_be_done_is_told_to_the_one_who_asks(prompt, options, reason, shared):
    with pytest.raises(CallerError, match=reason):
        shared.submit(prompt, Request(**options))


def test_a_full_queue_says_so(shared):
    jobs = [shared.submit("Go on", Request(n_predict=-1)) for _ in range(6)]
    with pytest.raises(BusyError, match="4 requests wait"):
        shared.submit("Go on", Request(n_predict=-1))
    for job in jobs:
        job.cancel()
        assert job.result(SECONDS).stop_reason is StopReason.CANCELLED


def test_questions_about_the_vocabulary_are_answered(shared, small):
    with Ring() as ring, ring.load(small, n_threads=1) as loaded:
        ids = loaded.model.tokenize("Größe <s>", parse_special=True)
    found = shared.ask(lambda n: AskTokens(n, "Größe <s>", True, True), Tokens).result(SECONDS)
    assert list(found.tokens) == ids
    assert b"".join(found.pieces).decode() == "<s> Größe <s>"
    assert shared.ask(lambda n: AskText(n, found.tokens), Said).result(SECONDS).text == b"".join(
        found.pieces
    ).decode("utf-8", "replace")


def test_a_model_without_a_template_speaks_chatml(shared):
    conversation = '{"messages": [{"role": "user", "content": "Hi"}]}'
    prompt = shared.ask(lambda n: AskPrompt(n, conversation), Said).result(SECONDS).text
    assert prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert shared.about.facts.chat_template is None


def test_a_schema_becomes_a_grammar_that_a_job_keeps_to(shared, patience):
    schema = '{"enum": ["yes", "no"]}'
    grammar = shared.ask(lambda n: AskGrammar(n, schema), Said).result(SECONDS).text
    request = Request(n_predict=9, sampling=SamplingParams(temperature=0, grammar=grammar))
    assert shared.submit("Go", request).result(patience(SECONDS)).text in ('"yes"', '"no"')


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (lambda n: AskText(n, (1 << 30,)), "is not in the vocabulary"),
        (lambda n: AskPrompt(n, '{"messages": [{"role": "user"}]}'), "chat template refuses"),
        (lambda n: AskPrompt(n, "[" * 100_000), "nested too deeply"),
        (lambda n: AskGrammar(n, '{"type": "hiccup"}'), "the JSON schema cannot be used"),
        (lambda n: AskGrammar(n, '{"not": ' * 5000 + "1" + "}" * 5000), "nested too deeply"),
        (lambda n: AskGrammar(n, " " * 70_000), "65536 are allowed"),
    ],
)
def test_a_question_without_an_answer_is_refused_with_a_reason(question, reason, shared):
    with pytest.raises(CallerError, match=reason):
        shared.ask(question, Said).result(SECONDS)


def test_it_says_what_it_is(shared, small):
    with Ring() as ring, ring.load(small, n_threads=1) as loaded:
        assert shared.about.model == loaded.model.description
    assert (shared.about.n_ctx, shared.about.parallel) == (16384, 2)
    assert [stage.device for stage in shared.about.stages] == ["CPU"]
    assert shared.about.capacity.startswith("2 requests at once, 16384 tokens")


def test_a_killed_process_ends_its_jobs_with_the_signal(small, patience):
    shares = []
    with EngineProcess(spec(small), progress=shares.append) as engine:
        jobs = [engine.submit("Go on", Request(n_predict=-1)) for _ in range(3)]
        next(iter(jobs[0]))
        os.kill(engine.pid, signal.SIGKILL)
        for job in jobs:
            with pytest.raises(EngineError, match="the engine's process was killed by SIGKILL"):
                job.result(patience(SECONDS))
            with pytest.raises(EngineError):
                list(job)
        with pytest.raises(EngineError, match="SIGKILL"):
            engine.submit("Go")
        with pytest.raises(EngineError, match="SIGKILL"):
            engine.metrics()
    assert shares[-1] == 1.0


def test_a_closed_process_ends_its_jobs(small):
    engine = EngineProcess(spec(small))
    job = engine.submit("Go on", Request(n_predict=-1))
    next(iter(job))
    engine.close()
    with pytest.raises(EngineError, match="the engine's process was closed"):
        job.result(0)
    engine.close()


@pytest.mark.parametrize(
    ("options", "kind", "reason"),
    [
        ({"model": "/nowhere/model.gguf"}, CallerError, "there is no model file"),
        ({"nodes": ("127.0.0.1:1",)}, NetworkError, r"node 127\.0\.0\.1:1: "),
        ({"parallel": 1, "groups": 2}, CallerError, "each group needs at least one"),
    ],
)
def test_an_engine_that_cannot_be_made_says_why(options, kind, reason, small):
    with pytest.raises(kind, match=reason):
        EngineProcess(spec(small, **options))


def test_a_node_that_dies_is_named_through_the_socket(small, patience):
    with ExitStack() as stack:
        peers = open_peers(stack, "rr")
        nodes = tuple(peer.endpoint for peer in peers)
        engine = stack.enter_context(EngineProcess(spec(small, nodes=nodes)))
        job = engine.submit("Go on", Request(n_predict=-1))
        next(iter(job))
        peers[0].kill()
        with pytest.raises(NetworkError) as failure:
            job.result(patience(SECONDS))
        assert failure.value.peer == peers[0].endpoint
        with pytest.raises(NetworkError, match=peers[0].endpoint):
            engine.submit("Go")


def test_the_process_ends_with_its_client(small, patience):
    script = f"""
import os, sys
from ringline.engine.process.client import EngineProcess
from ringline.engine.process.messages import EngineSpec
engine = EngineProcess(EngineSpec(model={str(small)!r}, n_threads=1))
print(engine.pid, flush=True)
os._exit(0)
"""
    pid = int(run_python(["-c", script]))
    deadline = time.monotonic() + patience(SECONDS)
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{pid}")


def test_the_client_loads_no_library():
    script = (
        "import sys, ringline.engine.process.client; maps = open('/proc/self/maps').read(); "
        "print('llama_cpp' in sys.modules or 'libggml' in maps or 'libllama' in maps)"
    )
    assert run_python(["-c", script]).strip() == "False"


@pytest.mark.parametrize("sent", [b"", b"\x05\x00\x00\x00no", b"\x02\x00\x00\x00{}", b"\xff" * 9])
def test_a_process_that_is_told_nonsense_ends(sent):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-m", "ringline.engine.process", str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        ours.sendall(sent)
        ours.shutdown(socket.SHUT_WR)
        assert process.wait(SECONDS) == 0


@pytest.mark.parametrize(
    "error",
    [
        CallerError("a flag"),
        BusyError("later"),
        EngineError("gone"),
        NetworkError("lost", peer="h:1", command="GET_TENSOR", since=("A", "B")),
        DeadlineError("nothing came", peer="h:1", seconds=3.0),
        RefusedError("no", peer="h:1", command="ALLOC_BUFFER"),
    ],
)
def test_errors_cross_the_socket_whole(error):
    data = msgspec.msgpack.encode(ErrorFacts.of(error))
    found = msgspec.msgpack.decode(data, type=ErrorFacts).error()
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert {**vars(found), "code": 0} == {**vars(error), "code": 0}


def test_an_error_of_an_unknown_kind_keeps_its_sentence():
    found = ErrorFacts("SomethingNew", "it broke").error()
    assert (type(found), str(found)) == (EngineError, "it broke")


def test_messages_cross_a_channel_in_order_and_its_end_is_told():
    decoder = msgspec.msgpack.Decoder(FromClient)
    ends = [Channel(end, decoder) for end in socket.socketpair()]
    messages = [Submit(1, "Größe", Request(stop=("a",))), Cancel(1), AskMetrics(2)]
    for message in messages:
        assert ends[0].send(message)
    assert [ends[1].receive() for _ in messages] == messages
    ends[0].close()
    assert ends[1].receive() is None
    ends[1].close()
    ends[1].close()
