"""The byte tokenizer gives the tokens of training for any text, and the text back."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, TextIteratorStreamer

from scale_invariant_attention.data import get_encoding
from scale_invariant_attention.huggingface.export import byte_tokenizer

# Text that resembles the library's characters for bytes, or special tokens of other tokenizers.
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
    """The tokenizer, saved and loaded."""
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_tokenizer().save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


@settings(max_examples=60, deadline=None)
@given(st.text())
@example("".join(map(chr, range(0x180))))
def test_any_text_is_encoded_as_its_bytes_and_decoded_again(saved, text):
    ids = saved(text).input_ids
    assert ids == list(text.encode())
    assert saved.decode(ids) == text


@pytest.mark.parametrize("text", ODD)
def test_text_that_looks_special_is_plain_text(saved, text):
    ids = saved(text).input_ids
    assert ids == list(text.encode())
    assert saved.decode(ids) == text
    assert saved.decode(ids, skip_special_tokens=True) == text.replace("\0", "")


@settings(max_examples=60, deadline=None)
@given(st.binary())
def test_any_bytes_are_decoded_as_utf_8(saved, data):
    assert saved.decode(list(data)) == data.decode(errors="replace")


def test_the_document_start_equals_our_encodings(saved):
    start = get_encoding("bytes").document_start
    assert saved.bos_token_id == saved.eos_token_id == saved.pad_token_id == start
    assert len(saved) == get_encoding("bytes").vocab_size
    assert sorted(saved.get_vocab().values()) == list(range(256))
    batch = saved(["ab", "c"], padding=True)
    assert batch["input_ids"] == [[97, 98], [0, 99]]
    assert batch["attention_mask"] == [[1, 1], [0, 1]]
    assert list(batch) == ["input_ids", "attention_mask"]


def test_streamed_text_has_no_partial_characters(saved):
    import torch

    text = "naïve 注意力 𝄞 end"
    streamer = TextIteratorStreamer(saved, timeout=1)
    for token in saved(text).input_ids:
        streamer.put(torch.tensor([token]))
    streamer.end()
    pieces = list(streamer)
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
