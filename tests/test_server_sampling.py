"""Tokens are chosen on the node, and are those that a coordinator would have chosen."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import make_model
from make_model import ModelSpec
from ringline.engine.logprobs import token_logprob
from ringline.errors import NetworkError, RefusedError
from ringline.llama.batch import Batch
from ringline.llama.context import Context
from ringline.llama.model import Model
from ringline.llama.sampler import Sampler, SamplingParams
from ringline.server import kept_rows, sampling
from ringline.server.handlers import HANDLERS
from ringline.wire.commands import Command
from ringline.wire.extension import Ping, Role
from ringline.wire.messages import FreeBuffer
from ringline.wire.sampling import (
    KeepRows,
    ReadKept,
    Sample,
    SamplerFree,
    SamplerNew,
    Status,
)
from tests.peers.processes import run_python
from tests.sampling_node import vocabulary_session

WIDTH = 512
N_ROWS = 24
GREEDY = SamplingParams(temperature=0).as_json()
SEEN = [270, 271, 272, 270, 271, 272, 270, 271]
HOT = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 5}
#: name -> parameters; all of them choose among hundreds of tokens that are about as likely.
PARAMS = {
    "greedy": {"temperature": 0.0},
    "defaults": {"seed": 1},
    "temperature": HOT,
    "top-k": HOT | {"top_k": 7},
    "many of top-k": HOT | {"top_k": 300},
    "top-p": HOT | {"top_p": 0.4},
    "min-p": HOT | {"min_p": 0.3},
    "penalties": HOT | {"repeat_penalty": 1.5, "frequency_penalty": 2.0, "presence_penalty": 1.0},
    "greedy with penalties": {"temperature": 0.0, "presence_penalty": 100.0},
    "bias": HOT | {"logit_bias": {11: 3.0, 12: float("-inf"), 300: 4.5}},
    "grammar": HOT | {"grammar": "root ::= [a-z]+"},
    "greedy with grammar": {"temperature": 0.0, "grammar": "root ::= [a-z]+"},
    "dry": HOT | {"dry_multiplier": 50.0, "dry_allowed_length": 1},
    "greedy with dry": {"temperature": 0.0, "dry_multiplier": 50.0, "dry_allowed_length": 0},
    "xtc": HOT | {"xtc_probability": 0.7, "xtc_threshold": 0.003},
    "typical": HOT | {"typical_p": 0.5},
    "typical with grammar": HOT | {"typical_p": 0.5, "grammar": "root ::= [a-z]+"},
    "top-n-sigma": HOT | {"top_n_sigma": 1.0},
    "mirostat": HOT | {"mirostat": 1, "mirostat_tau": 4.0},
    "mirostat 2": HOT | {"mirostat": 2, "mirostat_tau": 4.0},
    "dynamic temperature": HOT | {"dynatemp_range": 1.5, "dynatemp_exponent": 2.0},
}


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    return make_model.make_model(tmp_path_factory.mktemp("small") / "small.gguf", ModelSpec())


@pytest.fixture(scope="module")
def context(model_file):
    """A context that has decoded tokens, each with its row of logits."""
    with Model.load(model_file) as model, Context(model, n_ctx=256, n_threads=1) as opened:
        batch = Batch(N_ROWS)
        for place in range(N_ROWS):
            batch.add(3 + 17 * place, place, logits=True)
        opened.decode(batch)
        yield opened


@pytest.fixture(scope="module")
def rows(context):
    """Its logits, [N_ROWS, WIDTH] f32."""
    return np.stack([context.logits(index) for index in range(N_ROWS)])


@pytest.fixture(scope="module")
def session(model_file):
    """A session that has the model's vocabulary."""
    with vocabulary_session(model_file) as session:
        yield session


@pytest.fixture
def client(session):
    with session.connect() as client:
        yield client


def by_context(context, params, seen=()):
    with Sampler(context.model, params) as sampler:
        for token in seen:
            sampler.accept(token)
        return [sampler.choose(context.logits(index)) for index in range(N_ROWS)]


@pytest.mark.parametrize("name", PARAMS)
def test_the_node_chooses_what_the_coordinator_and_a_bare_row_choose(name, context, rows, client):
    params = SamplingParams(**PARAMS[name])
    ids = by_context(context, params, SEEN)
    needed = context.model if params.needs_vocabulary else None
    with Sampler(needed, params, n_vocab=WIDTH) as sampler:
        sampler.accept_all(SEEN)
        assert [sampler.choose(row.copy()) for row in rows] == ids
    client.sampler(3, params.as_json(), SEEN)
    half = N_ROWS // 2
    client.keep(rows[:half])
    client.keep(rows[half:])
    found = client.sample(1, [(index, 3) for index in range(N_ROWS)])
    assert [one.token for one in found] == ids


@pytest.mark.parametrize("name", [name for name in PARAMS if name not in ("greedy", "temperature")])
def test_each_of_these_parameters_makes_a_difference(name, context):
    """Or the test above would prove nothing."""
    plain = SamplingParams(temperature=0.0) if "greedy" in name else SamplingParams(**HOT)
    if name == "defaults":
        plain = SamplingParams(seed=2)
    wanted = by_context(context, SamplingParams(**PARAMS[name]), SEEN)
    assert wanted != by_context(context, plain, SEEN)


def test_samplers_of_one_step_do_not_mix(context, rows, client):
    seeds = (1, 2, 3)
    for seed in seeds:
        client.sampler(seed, SamplingParams(**{**HOT, "seed": seed}).as_json())
    found = []
    for step in range(8):
        client.keep(rows[3 * step : 3 * step + 3])
        pairs = [(index, seed) for index, seed in enumerate(seeds)]
        found.append([one.token for one in client.sample(step, pairs)])
    for place, seed in enumerate(seeds):
        with Sampler(None, SamplingParams(**{**HOT, "seed": seed}), n_vocab=WIDTH) as sampler:
            wanted = [sampler.choose(rows[3 * step + place]) for step in range(8)]
        assert [tokens[place] for tokens in found] == wanted


@pytest.mark.parametrize("top", [0, 5, 1000])
def test_logprobs_are_the_numbers_of_the_engine(top, context, rows, client):
    client.sampler(0, SamplingParams(**HOT).as_json())
    client.keep(rows)
    found = client.sample(1, [(index, 0) for index in range(N_ROWS)], top=top)
    for row, one in zip(rows, found, strict=True):
        wanted = token_logprob(row, one.token, top, context.model)
        assert one.logprob == wanted.logprob
        pairs = [(entry.token, entry.logprob) for entry in wanted.top]
        assert list(map(tuple, one.top.tolist())) == pairs
        assert len(pairs) == min(top, WIDTH)


def test_the_same_number_gives_the_same_reply_and_advances_nothing(rows, client):
    client.sampler(0, SamplingParams(**HOT).as_json())
    client.keep(rows)
    request = Sample(9, list(range(8)), [0] * 8, [-1] * 8)
    first = client.call(request)
    assert client.call(request) == first
    client.keep(rows[8:])
    assert client.call(request) == first
    client.keep(rows[8:16])
    later = client.sample(10, [(index, 0) for index in range(8)])
    with Sampler(None, SamplingParams(**HOT), n_vocab=WIDTH) as sampler:
        wanted = [sampler.choose(row) for row in rows[:16]]
    assert np.frombuffer(first, np.int32).tolist() == wanted[:8]
    assert [one.token for one in later] == wanted[8:]


def test_rows_are_numbered_from_0_after_each_sample_and_stay_readable_until_then(rows, client):
    client.sampler(0, GREEDY)
    client.keep(rows[:2])
    client.keep(rows[2:5])
    client.sample(1, [(0, 0)])
    assert client.call(ReadKept([4, 0])) == rows[4].tobytes() + rows[0].tobytes()
    assert client.sample(2, [(3, 0)])[0].token == rows[3].argmax()
    client.keep(rows[7:8])
    assert client.call(ReadKept([0])) == rows[7].tobytes()
    with pytest.raises(RefusedError, match="no kept row 1, there are 1"):
        client.call(ReadKept([0, 1]))


def test_rows_of_a_step_that_failed_are_forgotten_by_a_sample_of_nothing(rows, client):
    client.sampler(0, SamplingParams(**HOT).as_json())
    client.keep(rows[:1])
    request = Sample(1, [0], [0], [-1])
    first = client.call(request)
    client.keep(rows[5:8])
    assert client.call(Sample(99)) == b""
    client.keep(rows[1:2])
    assert client.call(ReadKept([0])) == rows[1].tobytes()
    assert client.call(request) == first


def test_rows_are_copies_of_what_the_tensor_was_then(rows, client):
    tensor = client.upload(rows[:2])
    client.post(KeepRows(tensor.pack(), rows[0].nbytes, rows[0].nbytes, WIDTH))
    client.write(tensor, bytes(2 * rows[0].nbytes))
    client.post(KeepRows(tensor.pack(), 0, rows[0].nbytes, WIDTH))
    client.post(FreeBuffer(tensor.buffer))
    assert client.call(ReadKept([0, 1])) == rows[1].tobytes() + bytes(rows[0].nbytes)


@pytest.mark.parametrize(
    ("changes", "size", "width", "reason"),
    [
        ({}, 2048, 0, "2048 bytes are no rows of 0 logits"),
        ({}, 2047, 512, "2047 bytes are no rows of 512 logits"),
        ({}, 4096, 512, "4096 bytes at 0 of tensor .* are outside its 2048 bytes"),
        ({"type": 1, "nb": (2, 1024, 1024, 1024)}, 1024, 256, "f32, not of type 1"),
        ({"buffer": 1}, 2048, 512, "no buffer 0x1"),
    ],
)
def test_what_is_no_rows_of_logits_is_refused(changes, size, width, reason, rows, client):
    tensor = dataclasses.replace(client.upload(rows[:1]), **changes)
    client.post(KeepRows(tensor.pack(), 0, size, width))
    with pytest.raises(RefusedError, match=f"KEEP_ROWS: .*{reason}"):
        client.ping()
    client.keep(rows[:1])
    assert client.call(ReadKept([0])) == rows[0].tobytes()


def test_kept_rows_have_a_limit_which_a_sample_makes_room_in(rows, client, monkeypatch):
    monkeypatch.setattr(kept_rows, "MOST_KEPT", 4 * rows[0].nbytes)
    client.sampler(0, GREEDY)
    client.keep(rows[:4])
    client.ping()
    client.keep(rows[:1])
    with pytest.raises(RefusedError, match="2048 bytes of logits beside 8192 that wait"):
        client.ping()
    with pytest.raises(RefusedError, match="10240 bytes in one READ_KEPT"):
        client.call(ReadKept([0] * 5))
    client.sample(1, [(3, 0)])
    client.keep(rows[:4])
    client.ping()


def test_what_is_wrong_with_one_sampler_does_not_hurt_the_others(rows, client):
    nothing = SamplingParams(
        temperature=0, grammar='root ::= "a"', logit_bias=dict.fromkeys(range(WIDTH), -np.inf)
    )
    client.sampler(0, GREEDY)
    client.sampler(1, SamplingParams(grammar="root ::= (").as_json())
    client.sampler(2, nothing.as_json())
    client.sampler(3, b"no json")
    client.sampler(4, SamplingParams(logit_bias={10**6: 1.0}).as_json())
    broken = rows[0].copy()
    broken[3] = np.nan
    client.keep(np.stack([rows[0], broken]))
    pairs = [(0, 1), (0, 2), (0, 3), (0, 8), (1, 0), (0, 4), (0, 0)]
    found = client.sample(1, pairs, top=2)
    codes = [one.token for one in found[:6]]
    assert codes == [
        Status.BROKEN, Status.NO_TOKEN, Status.BROKEN, Status.UNKNOWN, Status.NOT_NUMBERS,
        Status.BROKEN,
    ]  # fmt: skip
    assert found[6].token == rows[0].argmax()
    assert found[6].top["token"][0] == found[6].token
    assert "failed to parse grammar" in found[0].reason
    assert "the parameters of sampling cannot be read" in found[2].reason
    assert "logit_bias names token 1000000" in found[5].reason
    assert all(one.logprob is None for one in found[:6])
    client.ping()


def test_a_row_that_is_no_row_of_the_vocabulary_breaks_nothing(rows, client):
    client.sampler(0, GREEDY)
    client.keep(rows[:1, :100].copy())
    (found,) = client.sample(1, [(0, 0)])
    assert found.token == Status.BROKEN
    assert "a row of 100 logits is none of a vocabulary of 512 tokens" in found.reason


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (Sample(1, [0, 1], [0, 0], [-1, -1]), "there is no kept row 1, there are 1"),
        (Sample(1, [-1], [0], [-1]), "there is no kept row -1"),
        (Sample(1, [0, 0], [0, -1], [-1, -1]), "-1 is no number of a sampler"),
        (Sample(1, [0, 0], [0, 0], [0, -2]), "-2 of the likeliest tokens"),
        (Sample(1, [0, 0], [0, 0], [0, 1025]), "1025 of the likeliest tokens"),
    ],
)
def test_a_sample_that_cannot_be_is_refused_before_anything_is_chosen(
    request_, reason, rows, client
):
    client.sampler(0, SamplingParams(**HOT).as_json())
    client.keep(rows[:1])
    with pytest.raises(RefusedError, match=f"SAMPLE: {reason}"):
        client.call(request_)
    with Sampler(None, SamplingParams(**HOT), n_vocab=WIDTH) as sampler:
        assert client.sample(1, [(0, 0)])[0].token == sampler.choose(rows[0])


def test_samplers_are_made_and_freed_even_while_an_error_waits(rows, client):
    client.sampler(1, GREEDY)
    client.post(FreeBuffer(1))
    client.sampler(0, GREEDY)
    client.post(SamplerFree(1))
    with pytest.raises(RefusedError, match="FREE_BUFFER"):
        client.ping()
    client.keep(rows[:1])
    tokens = [one.token for one in client.sample(1, [(0, 0), (0, 1)])]
    assert tokens == [rows[0].argmax(), Status.UNKNOWN]


def test_a_sampler_is_replaced_by_one_of_its_number_and_freed_twice(rows, client):
    client.keep(rows[:1])
    client.sampler(0, SamplingParams(grammar="(").as_json())
    client.sampler(0, GREEDY)
    assert client.sample(1, [(0, 0)])[0].token == rows[0].argmax()
    client.post(SamplerFree(0))
    client.post(SamplerFree(0))
    assert client.sample(2, [(0, 0)])[0].token == Status.UNKNOWN


def test_samplers_of_a_connection_have_a_limit(client, monkeypatch):
    monkeypatch.setattr(sampling, "MOST_SAMPLERS", 2)
    for number in (0, 1, 1):
        client.sampler(number, GREEDY)
    client.ping()
    client.sampler(2, GREEDY)
    with pytest.raises(RefusedError, match="2 samplers already"):
        client.ping()


@pytest.mark.parametrize(
    ("command", "body", "reason"),
    [
        (Command.SAMPLER_NEW, SamplerNew(0, b"{}", [1]).pack()[:-1], "18 bytes are announced, 17"),
        (Command.SAMPLE, Sample(0, [1], [1], [1]).pack() + b"x", "20 bytes are announced, 21 came"),
        (Command.SAMPLE, b"\0\0\0\0\xff\xff\xff\xff", "bytes are announced, 8 came"),
        (Command.READ_KEPT, ReadKept([1]).pack()[:-1], "8 bytes are announced, 7 came"),
        (Command.VOCABULARY, b"\2", "2 is neither 0 nor 1"),
    ],
)
def test_a_body_of_another_size_than_it_says_ends_the_connection(command, body, reason, session):
    with session.connect() as client:
        client.send(command, body)
        with pytest.raises(RefusedError, match=f"{command.name}: .*{reason}"):
            client.call(Ping())
        with pytest.raises(NetworkError):
            client.ping()


@pytest.mark.parametrize(("role", "level"), [(Role.CLIENT, 4), (Role.PEER, 5)])
@pytest.mark.parametrize("command", [Command.SAMPLE, Command.KEEP_ROWS, Command.VOCABULARY])
def test_nobody_samples_below_level_5_nor_as_a_peer(role, level, command, session):
    assert command in HANDLERS
    with session.connect(role=role, level=level) as client:
        client.send(command, bytes(316 if command is Command.KEEP_ROWS else 8))
        with pytest.raises(RefusedError, match=f"{command.name}: "):
            client.ping()


def test_samplers_are_freed_with_their_connection(session):
    with session.connect() as client:
        client.sampler(0, GREEDY)
        client.ping()
        entry = session.context.samplers._entries[0]
        chain = entry.sampler._choosing
        assert chain.alive
    assert not chain.alive


def test_libllama_is_loaded_by_the_first_sampler_and_not_before():
    script = """
import sys
import numpy as np
from tests.sampling_node import local_session

def loaded():
    return "llama_cpp" in sys.modules or "libllama" in open("/proc/self/maps").read()

rows = np.arange(8, dtype=np.float32).reshape(1, 8)
with local_session() as session, session.connect() as client:
    client.keep(rows)
    client.ping()
    before = loaded()
    client.sampler(0, '{"temperature": 0}')
    tokens = [one.token for one in client.sample(1, [(0, 0)], width=8)]
    print(before, loaded(), tokens)
"""
    assert run_python(["-c", script]).split("\n")[0] == "False True [7]"
