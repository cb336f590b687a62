"""Bytes as a tokenizer: the tokens that models were trained on, for any text, and the text again."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, TextIteratorStreamer

from scale_invariant_attention.data import get_encoding
from scale_invariant_attention.huggingface.tokenizer import byte_tokenizer

# What looks like the library's own way to write bytes, and like special tokens of others.
ODD = [
    "\0",
    "a\0\0b",
    "Ā",
    "ĠĊ",
    "<|endoftext|>",
    "<0x00>",
    " \u2581 ",
    "\ufffd",
    "\u2028 \r\n\t ",
    "",
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """As it is opened from a folder."""
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_tokenizer().save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


@settings(max_examples=60, deadline=None)
@given(st.text())
@example("".join(map(chr, range(0x180))))
def test_any_text_is_its_bytes_and_comes_back(saved, text):
    ids = saved(text).input_ids
    assert ids == list(text.encode())
    assert saved.decode(ids) == text


@pytest.mark.parametrize("text", ODD)
def test_nothing_that_looks_special_is_taken_for_it(saved, text):
    ids = saved(text).input_ids
    assert ids == list(text.encode())
    assert saved.decode(ids) == text
    assert saved.decode(ids, skip_special_tokens=True) == text.replace("\0", "")


@settings(max_examples=60, deadline=None)
@given(st.binary())
def test_any_bytes_are_shown_as_utf_8_shows_them(saved, data):
    assert saved.decode(list(data)) == data.decode(errors="replace")


def test_the_start_of_a_document_is_that_of_our_encoding(saved):
    start = get_encoding("bytes").document_start
    assert saved.bos_token_id == saved.eos_token_id == saved.pad_token_id == start
    assert len(saved) == get_encoding("bytes").vocab_size
    assert sorted(saved.get_vocab().values()) == list(range(256))
    batch = saved(["ab", "c"], padding=True)
    assert batch["input_ids"] == [[97, 98], [0, 99]]
    assert batch["attention_mask"] == [[1, 1], [0, 1]]
    assert list(batch) == ["input_ids", "attention_mask"]


def test_streamed_text_has_no_halves_of_characters(saved):
    import torch

    text = "naïve 注意力 𝄞 end"
    streamer = TextIteratorStreamer(saved, timeout=1)
    for token in saved(text).input_ids:
        streamer.put(torch.tensor([token]))
    streamer.end()
    pieces = list(streamer)
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
