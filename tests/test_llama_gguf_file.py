"""A model file is checked before the library sees it, and what is wrong is said in one sentence."""

import pytest

from ringline.errors import CallerError
from ringline.llama.gguf_file import check_model_file, shard_paths


def write(folder, *names, data=b"GGUF rest"):
    for name in names:
        (folder / name).write_bytes(data)
    return folder / names[0]


def test_a_gguf_file_is_fine(tmp_path):
    path = write(tmp_path, "model.gguf")
    assert check_model_file(path) == [path]


def test_all_shards_are_found_by_the_first(tmp_path):
    names = [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    path = write(tmp_path, *names)
    assert [shard.name for shard in check_model_file(path)] == names


def test_a_later_shard_is_refused_and_the_first_one_named(tmp_path):
    path = write(tmp_path, "m-00002-of-00003.gguf")
    with pytest.raises(CallerError, match=r"shard 2 of 3: name the first, m-00001-of-00003\.gguf"):
        check_model_file(path)


def test_a_missing_shard_is_named(tmp_path):
    path = write(tmp_path, "m-00001-of-00003.gguf", "m-00002-of-00003.gguf")
    with pytest.raises(CallerError, match=r"shard 3 of 3 .* is missing: .*m-00003-of-00003\.gguf"):
        check_model_file(path)


def test_a_shard_that_is_no_gguf_file_is_named(tmp_path):
    path = write(tmp_path, "m-00001-of-00002.gguf")
    write(tmp_path, "m-00002-of-00002.gguf", data=b"<html>")
    with pytest.raises(CallerError, match=r"m-00002-of-00002\.gguf is not a GGUF file"):
        check_model_file(path)


@pytest.mark.parametrize("name", ["m-00001-of-00000.gguf", "m-1-of-2.gguf", "m.gguf"])
def test_names_that_only_look_like_shards_are_single_files(name, tmp_path):
    assert shard_paths(tmp_path / name) == [tmp_path / name]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CallerError, match=r"there is no model file .*none\.gguf"):
        check_model_file(tmp_path / "none.gguf")


def test_a_missing_first_shard_is_a_missing_file(tmp_path):
    with pytest.raises(CallerError, match=r"there is no model file .*m-00001-of-00002\.gguf"):
        check_model_file(tmp_path / "m-00001-of-00002.gguf")


def test_a_folder_is_not_a_model(tmp_path):
    with pytest.raises(CallerError, match="is a folder: name the GGUF file in it"):
        check_model_file(tmp_path)


@pytest.mark.parametrize("data", [b"", b"GG", b"PK\x03\x04zip"])
def test_a_file_of_another_kind_is_refused(data, tmp_path):
    path = write(tmp_path, "model.gguf", data=data)
    with pytest.raises(CallerError, match=r"is not a GGUF file: it begins with b"):
        check_model_file(path)


def test_a_name_that_the_system_refuses_is_an_error_of_the_caller(tmp_path):
    with pytest.raises(CallerError, match=r"cannot be read: File name too long"):
        check_model_file(tmp_path / ("m" * 300 + ".gguf"))
