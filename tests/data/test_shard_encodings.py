"""From shards back to the tokenizer that they were made with."""

import json

import numpy as np
import pytest
from small_tokenizers import END, OTHER, SENTENCES, byte_level

from scale_invariant_attention.data import TextFiles, get_encoding, make_shards, write_shard
from scale_invariant_attention.data.shards import BYTES, shards_encoding
from scale_invariant_attention.files.manifest import signed_text


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(SENTENCES))
    return path


def saved(path, **options):
    byte_level(**options).save(str(path))
    return str(path)


def made(text, folder, encoding):
    make_shards(TextFiles([text]), folder, encoding, validation=0)
    return shards_encoding(folder)


def test_bytes(text, tmp_path):
    noted = made(text, tmp_path / "shards", get_encoding("bytes"))
    assert (noted.name, noted.vocab_size, noted.document_start) == ("bytes", 256, 0)
    assert noted.open().name == BYTES.open().name == "bytes"
    assert noted.document_start_name is None
    noted.check(get_encoding("bytes"))


def test_a_tokenizer_file_is_kept_with_the_shards(text, tmp_path):
    path = tmp_path / "my.tokenizer.json"
    encoding = get_encoding(saved(path), document_start=OTHER)
    noted = made(text, tmp_path / "shards", encoding)
    path.unlink()
    assert noted.name == encoding.name
    assert noted.document_start_name == OTHER
    again = noted.open()
    assert (again.vocab_size, again.document_start) == (encoding.vocab_size, 1)
    sentence = [SENTENCES[0].encode()]
    assert again.encode(sentence)[0].tolist() == encoding.encode(sentence)[0].tolist()


def test_a_tokenizer_file_that_was_not_kept(text, tmp_path):
    noted = made(text, tmp_path / "shards", get_encoding(saved(tmp_path / "my.json")))
    (tmp_path / "shards" / "tokenizer.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"'my\.json [0-9a-f]{16} <.*not beside them"):
        noted.open()


def test_another_tokenizer_is_refused(text, tmp_path):
    path = saved(tmp_path / "a.json")
    noted = made(text, tmp_path / "shards", get_encoding(path))
    noted.check(get_encoding(saved(tmp_path / "copy.json")))
    others = [
        get_encoding("bytes"),
        get_encoding(path, document_start=OTHER),
        get_encoding(saved(tmp_path / "larger.json", merges=61)),
        get_encoding(saved(tmp_path / "as-large.json", sentences=SENTENCES[::2])),
    ]
    assert others[-1].vocab_size == noted.vocab_size
    for other in others:
        with pytest.raises(ValueError, match=r"made with 'a\.json .* is another tokenizer"):
            noted.check(other)


def test_a_kept_file_that_was_replaced(text, tmp_path):
    noted = made(text, tmp_path / "shards", get_encoding(saved(tmp_path / "a.json")))
    saved(tmp_path / "shards" / "tokenizer.json", sentences=SENTENCES[::2])
    with pytest.raises(ValueError, match="is another tokenizer"):
        noted.open()


def test_shards_without_a_record_are_of_gpt2(tmp_path):
    write_shard(tmp_path / "fineweb_train_000001.bin", np.array([50256, 464]))
    noted = shards_encoding(tmp_path)
    assert (noted.name, noted.vocab_size, noted.document_start) == ("tiktoken gpt2", 50257, 50256)


def test_shards_of_several_encodings(text, tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder, sentences in zip(folders, (SENTENCES, SENTENCES[::2]), strict=True):
        path = saved(tmp_path / "t.json", sentences=sentences)
        made(text, folder, get_encoding(path, document_start=END))
    with pytest.raises(ValueError, match="different encodings"):
        shards_encoding(folders)


def test_a_record_of_a_custom_encoding(text, tmp_path):
    made(text, tmp_path / "shards", get_encoding("bytes"))
    record = tmp_path / "shards" / "shards.json"
    record.write_bytes(signed_text(json.loads(record.read_text()) | {"encoding": "mine"}))
    with pytest.raises(FileNotFoundError, match="made with 'mine'"):
        shards_encoding(tmp_path / "shards").open()
