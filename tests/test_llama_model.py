"""A model loads, says what it is, and stops loading where somebody says so."""

import ctypes
from pathlib import Path

import llama_cpp
import pytest

import make_model
from make_model import ModelSpec
from ringline.errors import CallerError, NetworkError
from ringline.llama.batch import Batch
from ringline.llama.context import Context
from ringline.llama.loading import MAX_DEVICES
from ringline.llama.model import Model


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    return make_model.make_model(tmp_path_factory.mktemp("small") / "small.gguf", ModelSpec())


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    return make_model.make_model(folder / "parts.gguf", ModelSpec(split=3))


@pytest.fixture(scope="module")
def cpu() -> int:
    """Address of the local CPU's ggml_backend_dev_t."""
    folder = Path(llama_cpp.__file__).parent / "lib"
    by_type = ctypes.CDLL(str(folder / "libggml.so")).ggml_backend_dev_by_type
    by_type.restype, by_type.argtypes = ctypes.c_void_p, [ctypes.c_int]
    return by_type(0)


def row(model: Model) -> bytes:
    """The logits after three tokens, as bytes."""
    batch = Batch(3)
    batch.add_run([5, 6, 7], 0, logits_last=True)
    with Context(model, n_ctx=256, n_threads=1) as context:
        context.decode(batch)
        return context.logits().tobytes()


@pytest.mark.model
def test_a_model_says_what_it_is(model_path):
    with Model.load(model_path) as model:
        assert (model.n_layer, model.n_embd, model.n_vocab) == (30, 576, 49152)
        assert model.n_ctx_train == 8192
        assert model.n_params == 134_515_008
        assert 0 < model.size_bytes < model_path.stat().st_size
        assert "Q4_1" in model.description
        assert model.metadata("general.architecture") == "llama"
        assert model.metadata("no.such.key") is None
        assert "<|im_start|>" in model.chat_template
        assert (model.bos, model.eos, model.adds_bos) == (1, 2, False)
        assert model.is_end(model.eos)
        assert not model.is_end(100)


def test_a_model_without_a_chat_template_has_none(small):
    with Model.load(small) as model:
        assert model.chat_template is None


@pytest.mark.model
def test_tokens_are_those_of_llama_cpp(model_path):
    text = "The capital of France is\n\tParis 🙂 <|im_end|>"
    stock = llama_cpp.Llama(str(model_path), vocab_only=True, verbose=False)
    try:
        expected = [
            stock.tokenize(text.encode(), add_bos=True, special=special)
            for special in (False, True)
        ]
    finally:
        stock.close()
    with Model.load(model_path) as model:
        assert model.tokenize(text) == expected[0]
        assert model.tokenize(text, parse_special=True) == expected[1]
        assert model.tokenize("") == []


def test_text_that_is_no_unicode_is_refused(small):
    with Model.load(small) as model, pytest.raises(CallerError, match=r"character 1 .* surrogate"):
        model.tokenize("a\ud800")


@pytest.mark.parametrize("token", [-1, 10**9])
def test_a_token_outside_the_vocabulary_has_no_piece(token, small):
    with Model.load(small) as model, pytest.raises(CallerError, match=r"token -?\d+ is not in"):
        model.piece(token)


def test_the_first_shard_loads_all_of_them(small, shards):
    with Model.load(shards) as model, Model.load(small) as whole:
        assert model.n_params == whole.n_params
        assert row(model) == row(whole)


def test_a_later_shard_is_refused(shards):
    later = shards.with_name(shards.name.replace("00001-of", "00002-of"))
    with pytest.raises(CallerError, match="shard 2 of 3: name the first"):
        Model.load(later)


def test_progress_goes_from_zero_to_one(small):
    shares = []
    Model.load(small, progress=shares.append).close()
    assert shares[0] == 0
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_progress_that_returns_false_stops_the_load(small):
    shares = []

    def progress(share):
        shares.append(share)
        return share < 0.3

    with pytest.raises(CallerError, match=r"loading small\.gguf was stopped by its progress"):
        Model.load(small, progress=progress)
    assert shares[-2] < 0.3 <= shares[-1] < 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ZeroDivisionError("progress")])
def test_what_progress_raises_stops_the_load_and_comes_out(error, small):
    calls = []

    def progress(share):
        calls.append(share)
        raise error

    with pytest.raises(type(error)):
        Model.load(small, progress=progress)
    assert len(calls) == 1


def test_an_error_elsewhere_stops_the_load_and_comes_out(small):
    calls = []

    def check():
        calls.append(None)
        if len(calls) == 3:
            raise NetworkError("connection lost", peer="127.0.0.1:1")

    with pytest.raises(NetworkError, match="connection lost"):
        Model.load(small, check=check)
    assert len(calls) == 3


def test_an_error_elsewhere_goes_before_the_librarys_own(tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF")

    def check():
        raise NetworkError("connection lost", peer="127.0.0.1:1")

    with pytest.raises(NetworkError):
        Model.load(bad, check=check)


def test_a_file_that_is_cut_short_is_refused_with_the_reason(small, tmp_path):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(small.read_bytes()[:-1000])
    with pytest.raises(CallerError, match=r"cut\.gguf cannot be loaded: tensor .* file bounds"):
        Model.load(cut)


def test_a_file_of_an_unknown_architecture_is_refused_with_the_reason(small, tmp_path):
    odd = tmp_path / "odd.gguf"
    odd.write_bytes(small.read_bytes().replace(b"llama", b"xlamb", 1))
    with pytest.raises(CallerError, match="unknown model architecture: 'xlamb'"):
        Model.load(odd)


def test_a_missing_file_is_an_error_of_the_caller(tmp_path):
    with pytest.raises(CallerError, match="there is no model file"):
        Model.load(tmp_path / "none.gguf")


def test_a_name_that_is_not_ascii_loads(small, tmp_path):
    path = tmp_path / "modèle 模型.gguf"
    path.write_bytes(small.read_bytes())
    Model.load(path).close()


@pytest.mark.parametrize("options", [{"use_mmap": False}, {"repack": False}])
def test_weights_may_be_read_in_other_ways_with_the_same_result(options, small):
    with Model.load(small) as model, Model.load(small, **options) as other:
        assert row(model) == row(other)


@pytest.mark.parametrize("n_devices", [1, 2, MAX_DEVICES])
def test_the_local_cpu_may_stand_in_the_list_of_devices(n_devices, small, cpu):
    with Model.load(small) as model, Model.load(small, devices=[cpu] * n_devices) as other:
        assert row(model) == row(other)


@pytest.mark.parametrize(
    ("split", "n_devices", "message"),
    [
        ((1, 1), 1, "split 1,1 has 2 numbers for 1 devices"),
        ((1.5,), 2, r"split 1\.5 has 1 numbers for 2 devices"),
        ((1,), 0, "split 1 has 1 numbers for 0 devices"),
        ((1, -1), 2, "split 1,-1: each share is a number of 0 or more"),
        ((1, float("nan")), 2, "split 1,nan: each share"),
        ((0, 0), 2, "split 0,0 gives no device a layer"),
    ],
)
def test_a_split_that_contradicts_the_devices_is_refused(split, n_devices, message, small, cpu):
    with pytest.raises(CallerError, match=message):
        Model.load(small, devices=[cpu] * n_devices, tensor_split=split)


def test_more_devices_than_ggml_can_take_are_refused(small, cpu):
    with pytest.raises(CallerError, match=f"takes at most {MAX_DEVICES}"):
        Model.load(small, devices=[cpu] * (MAX_DEVICES + 1))


def test_a_device_that_does_not_exist_is_refused(small):
    with pytest.raises(CallerError, match="does not exist"):
        Model.load(small, devices=[0])


def test_a_closed_model_says_so_and_closes_again(small):
    model = Model.load(small)
    context = Context(model, n_ctx=256, n_threads=1)
    model.close()
    model.close()
    with pytest.raises(CallerError, match=r"the model small\.gguf is closed"):
        model.tokenize("x")
    with pytest.raises(CallerError, match="closed"):
        context.memory_clear()
    context.close()
