import numpy as np
import pytest

from scale_invariant_attention.data import standard_library, write_shard
from scale_invariant_attention.training import recipe
from scale_invariant_attention.training.training_data import corpus_encoding, open_corpus


@pytest.fixture
def texts(tmp_path):
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text(f"{number}. text")
    return tmp_path


@pytest.mark.parametrize("split", ["train", "validation"])
def test_the_standard_library(split):
    found = open_corpus("standard-library", split, 256)
    assert found.fingerprint() == standard_library(split).fingerprint()


def test_text_is_divided(texts):
    train, held_out = (open_corpus(f"text:{texts}", s, 256) for s in ("train", "validation"))
    assert len(train) > len(held_out) > 0
    assert len(train.document_starts) + len(held_out.document_starts) == 40


def test_shards_by_their_names(tmp_path):
    write_shard(tmp_path / "fineweb_train_000001.bin", np.array([50256, 1, 2], np.uint16))
    write_shard(tmp_path / "fineweb_val_000000.bin", np.array([50256, 3], np.uint16))
    data = f"shards:{tmp_path}"
    assert open_corpus(data, "train", 50_304).read(0, 3).tolist() == [50256, 1, 2]
    assert open_corpus(data, "validation", 50_257).read(0, 2).tolist() == [50256, 3]
    with pytest.raises(ValueError, match=r"vocab_size must be at least the 50257 of .*got 256"):
        open_corpus(data, "train", 256)


@pytest.mark.parametrize("data", ["", "fineweb10B", "text:", "shards:", "texts:here", "standard"])
def test_the_error_says_what_a_value_may_be(data):
    with pytest.raises(ValueError, match=r"data must be 'standard-library', 'text:PATH' or"):
        open_corpus(data, "train", 256)


def test_a_path_is_met_with_the_name_of_its_corpus(texts, tmp_path):
    shards = tmp_path / "shards"
    write_shard(shards / "some_train_000001.bin", np.array([50256, 5]))
    for path, kind in ((texts / "0.txt", "text"), (texts, "text"), (shards, "shards")):
        with pytest.raises(ValueError, match=f"got '{path}'; for this .*, give '{kind}:{path}'"):
            open_corpus(str(path), "train", 256)
    with pytest.raises(ValueError, match="got 'fineweb'; there is no file or folder of that name"):
        open_corpus("fineweb", "train", 256)


def test_shards_set_the_vocabulary_unless_it_is_given(tmp_path):
    write_shard(tmp_path / "some_train_000001.bin", np.array([50256, 5]))
    data = f"shards:{tmp_path}"
    assert recipe("mini", data=data).vocab_size == 50_257
    # Of more tokens than there are, a few are never used.
    assert recipe("162m-4k", data=data).vocab_size == 50_304
    assert recipe("mini", data=data, vocab_size=50_432).vocab_size == 50_432
    assert recipe("mini", data=f"shards:{tmp_path / 'missing'}").vocab_size == 256
    assert recipe("mini", data="text:input.txt").vocab_size == 256


def test_a_folder_that_is_missing_is_named(tmp_path):
    for kind in ("text", "shards"):
        with pytest.raises((ValueError, OSError), match="nothing"):
            open_corpus(f"{kind}:{tmp_path / 'nothing'}", "train", 50_304)


def test_the_encoding_of_every_kind(tmp_path):
    write_shard(tmp_path / "some_train_000001.bin", np.array([50256, 5]))
    for data, name in (
        ("standard-library", "bytes"),
        ("text:anywhere", "bytes"),
        (f"shards:{tmp_path}", "tiktoken gpt2"),
    ):
        assert corpus_encoding(data).name == name
