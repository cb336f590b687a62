import json
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from scale_invariant_attention.data import get_encoding, text_files
from scale_invariant_attention.data.encoding import encode_documents, smallest_dtype


@pytest.fixture
def tokenizer_file(tmp_path):
    """A byte-level tokenizer without merges, with an end of text, as a file."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    tokenizer.enable_truncation(4)
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def encode(encoding, *texts):
    return encode_documents(encoding, [(f"{n}.txt", text) for n, text in enumerate(texts)])


def test_bytes_are_tokens():
    (tokens,) = encode(get_encoding("bytes"), b"a\xff\r\n")
    assert tokens.dtype == np.uint8
    assert tokens.tolist() == [0, 97, 255, 13, 10]


def test_a_zero_byte_is_not_text():
    with pytest.raises(ValueError, match=r"1\.txt contains token 0, .* zero byte"):
        encode(get_encoding("bytes"), b"fine", b"a\0b")


def test_a_tokenizer_file(tokenizer_file):
    encoding = get_encoding(str(tokenizer_file))
    assert (encoding.vocab_size, encoding.document_start) == (257, 256)
    first, second = encode(encoding, "caf\u00e9 au lait".encode(), b"x")
    assert first.dtype == np.uint16
    assert (first[0], len(first)) == (256, 14)
    decoder = Tokenizer.from_file(str(tokenizer_file))
    assert decoder.decode(first[1:].tolist()) == "caf\u00e9 au lait"
    assert len(second) == 2


def test_text_cannot_forge_a_boundary(tokenizer_file):
    text = b"a<|endoftext|>b"
    (tokens,) = encode(get_encoding(str(tokenizer_file)), text)
    assert (tokens == 256).sum() == 1
    assert len(tokens) == 1 + len(text)


def test_a_document_start_that_is_an_ordinary_token_must_not_occur_in_text(tokenizer_file):
    encoding = get_encoding(str(tokenizer_file), document_start="b")
    encode(encoding, b"acd")
    with pytest.raises(ValueError, match=r"0\.txt contains token \d+, which"):
        encode(encoding, b"abc")


def test_different_files_have_different_names(tokenizer_file, tmp_path):
    content = json.loads(tokenizer_file.read_text())
    content["truncation"] = None
    other = tmp_path / "other" / "tokenizer.json"
    other.parent.mkdir()
    other.write_text(json.dumps(content))
    names = {get_encoding(str(path)).name for path in (tokenizer_file, other)}
    assert len(names) == 2
    assert get_encoding(str(tokenizer_file)).name in names


def test_text_that_is_not_utf8_is_named(tokenizer_file):
    with pytest.raises(ValueError, match=r"1\.txt is not UTF-8: .* at byte 2"):
        encode(get_encoding(str(tokenizer_file)), b"fine", b"ab\xff")


def test_a_document_start_that_the_tokenizer_lacks(tokenizer_file):
    with pytest.raises(ValueError, match=r"document_start must be a token .* got '</s>'"):
        get_encoding(str(tokenizer_file), document_start="</s>")


def test_files_that_are_not_tokenizers(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no tokenizer file .*missing\.json"):
        get_encoding(str(tmp_path / "missing.json"))
    for content in ("{}", "[1, 2", "", '{"model": {"type": "none"}}'):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(
            ValueError, match=r"bad\.json' is not a JSON file of the tokenizers library"
        ):
            get_encoding(str(tmp_path / "bad.json"))


@pytest.mark.parametrize(("library", "name"), [("tokenizers", "some.json"), ("tiktoken", "gpt2")])
def test_a_missing_library_names_the_extra(monkeypatch, library, name):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ModuleNotFoundError, match=r"scale-invariant-attention\[tokenizers\]"):
        get_encoding(name)


class Ranks:
    """Stands in for an encoding of tiktoken, which would be downloaded."""

    n_vocab = 100_000
    eot_token = 99_999

    def encode_ordinary_batch(self, texts):
        return [[ord(letter) for letter in text] for text in texts]

    def decode_single_token_bytes(self, token):
        """Bytes by their numbers, as pieces of characters; raises KeyError as tiktoken does."""
        return {number: bytes([number]) for number in range(256)}[token]


def stand_in(get):
    return SimpleNamespace(list_encoding_names=lambda: ["gpt2"], get_encoding=get)


def test_tiktoken(monkeypatch):
    monkeypatch.setitem(sys.modules, "tiktoken", stand_in(lambda name: Ranks()))
    encoding = get_encoding("gpt2")
    assert encoding.name == "tiktoken gpt2"
    first, second = encode(encoding, b"ab", "\u4e2d".encode())
    assert first.dtype == np.uint32
    assert first.tolist() == [99_999, 97, 98]
    assert second.tolist() == [99_999, 0x4E2D]


def test_decoding_with_tiktoken(monkeypatch):
    monkeypatch.setitem(sys.modules, "tiktoken", stand_in(lambda name: Ranks()))
    decoder = get_encoding("gpt2").decoder()
    tokens = [97, *"\u4e2d".encode(), 5000, 0xE4]
    assert [decoder.add(token) for token in tokens] == ["a", "", "", "\u4e2d", "\ufffd", ""]
    assert decoder.finish() == "\ufffd"


def test_decoding_with_a_tokenizer_file(tokenizer_file):
    encoding = get_encoding(str(tokenizer_file))
    (tokens,) = encoding.encode(["caf\u00e9".encode()])
    decoder = encoding.decoder()
    assert [decoder.add(token) for token in tokens.tolist()] == ["c", "a", "f", "", "\u00e9"]


def test_a_tokenizer_file_is_kept(tokenizer_file, tmp_path):
    folder = tmp_path / "shards"
    folder.mkdir()
    encoding = get_encoding(str(tokenizer_file))
    for _ in range(2):
        encoding.keep(folder)
        assert [path.name for path in folder.iterdir()] == ["tokenizer.json"]
        assert (folder / "tokenizer.json").read_bytes() == tokenizer_file.read_bytes()
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(FileExistsError, match="is another tokenizer"):
        encoding.keep(folder)
    assert (folder / "tokenizer.json").read_text() == "{}"


def test_tiktoken_without_a_network(monkeypatch):
    def get(name):
        raise OSError("Name or service not known")

    monkeypatch.setitem(sys.modules, "tiktoken", stand_in(get))
    with pytest.raises(ConnectionError, match=r"could not download.*TIKTOKEN_CACHE_DIR"):
        get_encoding("gpt2")


def test_an_unknown_encoding_lists_the_known_ones(monkeypatch):
    monkeypatch.setitem(sys.modules, "tiktoken", stand_in(None))
    with pytest.raises(ValueError, match=r"'bytes', .*\(gpt2\), got 'gpt3'"):
        get_encoding("gpt3")


@pytest.mark.parametrize(
    ("size", "dtype"), [(256, "u1"), (257, "u2"), (65_536, "u2"), (65_537, "u4")]
)
def test_the_smallest_dtype_holds_every_token(size, dtype):
    assert smallest_dtype(size) == np.dtype(dtype)


def test_an_encoding_for_text_in_memory(tokenizer_file, tmp_path):
    (tmp_path / "text.txt").write_text("hello")
    stream = text_files(tmp_path / "text.txt", encoding=str(tokenizer_file))
    assert (stream.vocab_size, len(stream)) == (257, 6)
    assert stream.document_starts.tolist() == [0]


def test_a_pipe_is_no_tokenizer_file(tmp_path):
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(ValueError, match="must be a file, got a pipe"):
        get_encoding(str(tmp_path / "tokenizer.json"))
