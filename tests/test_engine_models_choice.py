"""Which model `-m` and `-hf` mean, decided without a network."""

import pytest

from ringline.engine.models import HubModel, choose_files, resolve_model
from ringline.errors import CallerError

REPO = "someone/Tiny-GGUF"
FILES = [
    "README.md",
    "mmproj-F16.gguf",
    "Tiny-Q2_K.gguf",
    "Tiny-Q4_K_M.gguf",
    "Tiny-Q8_0.gguf",
    "big/Tiny-BF16-00001-of-00002.gguf",
    "big/Tiny-BF16-00002-of-00002.gguf",
]


@pytest.mark.parametrize(
    ("quant", "names", "chosen"),
    [
        (None, ["a-Q8_0.gguf", "a-Q4_K_M.gguf", "a-Q2_K.gguf"], ["a-Q4_K_M.gguf"]),
        (None, ["a-Q8_0.gguf", "a-F16.gguf"], ["a-Q8_0.gguf"]),
        (None, ["b-F16.gguf", "a-F32.gguf"], ["a-F32.gguf"]),
        (None, ["mmproj-Q4_K_M.gguf", "mtp-a-Q4_K_M.gguf", "a-F16.gguf"], ["a-F16.gguf"]),
        ("q8_0", ["a-Q8_0.gguf", "a-Q4_K_M.gguf"], ["a-Q8_0.gguf"]),
        ("Q4_K", ["a-Q4_K_M.gguf", "a-Q4_K.gguf"], ["a-Q4_K.gguf"]),
        ("UD-Q2_K_XL", ["a-UD-Q2_K_XL.gguf", "a-Q2_K_XL.gguf"], ["a-UD-Q2_K_XL.gguf"]),
        (
            "F16",
            ["F16/a-F16-00002-of-00002.gguf", "F16/a-F16-00001-of-00002.gguf"],
            ["F16/a-F16-00001-of-00002.gguf", "F16/a-F16-00002-of-00002.gguf"],
        ),
    ],
)
def test_files_are_chosen_as_llama_cpp_chooses_them(quant, names, chosen):
    assert choose_files(HubModel(REPO, quant), names) == chosen


def test_a_quantisation_that_is_not_there_lists_what_is():
    with pytest.raises(CallerError) as caught:
        choose_files(HubModel(REPO, "Q5_0"), FILES)
    assert str(caught.value) == (
        f"the repository {REPO} holds no model Q5_0; it has Tiny-Q2_K.gguf, Tiny-Q4_K_M.gguf, "
        "Tiny-Q8_0.gguf, big/Tiny-BF16-00001-of-00002.gguf, big/Tiny-BF16-00002-of-00002.gguf"
    )


def test_a_long_list_is_cut():
    names = [f"a-{i:03}.gguf" for i in range(25)]
    with pytest.raises(CallerError, match=r"a-019\.gguf and 5 more$"):
        choose_files(HubModel(REPO, "Q5_0"), names)


def test_a_shard_that_the_repository_lacks_is_named():
    with pytest.raises(CallerError, match=r"lacks a shard of the model: a-F16-00002-of"):
        choose_files(HubModel(REPO, None), ["a-F16-00001-of-00002.gguf"])


@pytest.mark.parametrize("text", ["", "model", "a/b/c", "a/b:", "a/b:c:d", "../b", "https://x/a/b"])
def test_what_is_no_repository_is_refused(text):
    with pytest.raises(CallerError, match=r"is no model on the hub: write USER/MODEL\[:QUANT\]"):
        HubModel.parse(text)


@pytest.mark.parametrize("text", ["a/b", "unsloth/Qwen3-0.6B-GGUF:Q4_K_M"])
def test_a_repository_reads_back_as_it_was_written(text):
    assert str(HubModel.parse(text)) == text


def test_a_file_is_taken_as_it_is_named(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    assert resolve_model(str(path), None) == path


def test_a_file_in_the_home_folder_may_be_named_with_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert resolve_model("~/model.gguf", None) == tmp_path / "model.gguf"


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CallerError, match="there is no model file"):
        resolve_model(str(tmp_path / "none.gguf"), None)


@pytest.mark.parametrize(
    ("path", "hf", "message"),
    [(None, None, "no model is named"), ("a.gguf", "a/b", "two models are named")],
)
def test_exactly_one_model_is_named(path, hf, message):
    with pytest.raises(CallerError, match=message):
        resolve_model(path, hf)
