"""Text from tokens as they come: nothing broken, nothing lost, nothing twice."""

import random

import pytest
from small_tokenizers import (
    END,
    OTHER,
    SENTENCES,
    across_characters,
    byte_fallback,
    byte_level,
)

from scale_invariant_attention.data.encoding import WINDOW, BytesDecoder, TokenizerDecoder

EURO = "€".encode()


@pytest.fixture(scope="module")
def tokenizer():
    return byte_level()


def pieces(decoder, tokens):
    return [*(decoder.add(token) for token in tokens), decoder.finish()]


def of_bytes():
    return BytesDecoder(lambda token: bytes([token]) if token < 256 else None)


def byte_tokens(tokenizer, text):
    """A token for every byte."""
    alphabet = byte_level(merges=0)
    words = alphabet.encode(text).tokens
    return [tokenizer.token_to_id(word) for word in words]


def test_bytes():
    assert pieces(of_bytes(), EURO + b"a") == ["", "", "€", "a", ""]
    assert pieces(of_bytes(), [*EURO[:2], 300, *EURO[:1]]) == ["", "", "\ufffd\ufffd", "", "\ufffd"]


@pytest.mark.parametrize("sentence", SENTENCES)
@pytest.mark.parametrize("merges", [0, 60])
def test_characters_appear_whole(sentence, merges):
    tokenizer = byte_level(merges)
    tokens = tokenizer.encode(sentence).ids
    found = pieces(TokenizerDecoder(tokenizer), tokens)
    assert "".join(found) == sentence
    assert "\ufffd" not in "".join(found)
    assert found[-1] == ""
    assert merges or found[:-1].count("") == len(sentence.encode()) - len(sentence)


def test_a_character_appears_with_its_last_byte(tokenizer):
    tokens = byte_tokens(tokenizer, "é€𝄞")
    found = pieces(TokenizerDecoder(tokenizer), tokens)
    assert found == ["", "é", "", "", "€", "", "", "", "𝄞", ""]


def test_incremental_text_equals_the_text_of_all_tokens(tokenizer):
    rng = random.Random(0)
    single = byte_tokens(tokenizer, SENTENCES[2] + SENTENCES[3])
    everything = range(tokenizer.get_vocab_size())
    for _ in range(300):
        tokens = rng.choices(rng.choice([single, everything]), k=rng.randrange(200))
        found = pieces(TokenizerDecoder(tokenizer), tokens)
        assert "".join(found) == tokenizer.decode(tokens, skip_special_tokens=False)


MANY = 3 * WINDOW


@pytest.mark.parametrize("kind", ["across characters", "wrong bytes"])
def test_tokens_that_never_end_with_a_character(kind):
    """More tokens than are decoded together."""
    if kind == "across characters":
        tokenizer = across_characters("中")
        tokens = tokenizer.encode("中" * MANY).ids[:-1]
        expected = "中" * (MANY - 1) + "\ufffd"
    else:
        tokenizer = byte_level(0)
        tokens = byte_tokens(tokenizer, "中")[:1] * MANY
        expected = "\ufffd" * MANY
    assert len(tokens) == MANY
    decoder = TokenizerDecoder(tokenizer)
    told = [decoder.add(token) for token in tokens]
    # Or a long text would take ever longer.
    assert len(decoder._tokens) <= WINDOW
    assert "".join(told) + decoder.finish() == expected
    # It comes as it goes: all but the last character or what may be one.
    for count in range(1, MANY + 1):
        assert count - 3 <= len("".join(told[:count])) < count


def test_an_unfinished_character_at_the_end(tokenizer):
    tokens = byte_tokens(tokenizer, "a€")[:-1]
    assert pieces(TokenizerDecoder(tokenizer), tokens) == ["a", "", "", "\ufffd"]


def test_a_replacement_character_in_the_text(tokenizer):
    tokens = tokenizer.encode("a\ufffd\ufffd\ufffd\ufffd b").ids
    assert "".join(pieces(TokenizerDecoder(tokenizer), tokens)) == "a\ufffd\ufffd\ufffd\ufffd b"


def test_special_tokens_are_shown(tokenizer):
    special = [tokenizer.token_to_id(word) for word in (OTHER, END)]
    assert pieces(TokenizerDecoder(tokenizer), special) == [OTHER, END, ""]


def test_tokens_that_the_tokenizer_does_not_know(tokenizer):
    unknown = tokenizer.get_vocab_size() + 3
    e, a = byte_tokens(tokenizer, "€")[0], byte_tokens(tokenizer, "a")[0]
    found = pieces(TokenizerDecoder(tokenizer), [a, unknown, e, unknown, a])
    assert found == ["a", "\ufffd", "", "\ufffd\ufffd", "a", ""]


def test_bytes_between_words():
    """A decoder that drops the first space, and discards a run of bytes if one is wrong."""
    tokenizer = byte_fallback()
    the, end = 256, 257
    assert pieces(TokenizerDecoder(tokenizer), [the, end, *EURO, the]) == [
        *("the", " end", "", "", "€", " the", "")
    ]
    assert tokenizer.decode([*EURO, 0xFF]) == "\ufffd" * 4
    found = pieces(TokenizerDecoder(tokenizer), [*EURO, 0xFF, end, *EURO])
    assert found == ["", "", "€", "", "\ufffd end", "", "", "€", ""]
