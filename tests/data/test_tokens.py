import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale_invariant_attention.data import TokenStream, tokens


def stream(parts, dtype=np.uint16):
    arrays = [np.array(part, dtype) for part in parts]
    return TokenStream(arrays, vocab_size=100, document_start=0)


@settings(deadline=None)
@given(
    parts=st.lists(st.lists(st.integers(0, 5), max_size=6), min_size=1, max_size=6),
    data=st.data(),
)
def test_parts_read_as_if_they_were_one(parts, data):
    whole = [token for part in parts for token in part]
    if not whole:
        return
    one = stream(parts)
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    assert len(one) == len(whole)
    assert one.read(start, stop).tolist() == whole[start:stop]
    starts = {0, *(position for position, token in enumerate(whole) if token == 0)}
    assert one.document_starts.tolist() == sorted(starts)
    assert one.fingerprint() == stream([whole]).fingerprint()


def test_reading_gives_a_copy():
    one = stream([[1, 2, 3]])
    one.read(0, 3)[0] = 9
    assert one.read(0, 1).tolist() == [1]


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 1), (0, 4), (4, 4)])
def test_reading_outside_is_an_error(start, stop):
    with pytest.raises(IndexError, match=f"within the 3 tokens .* got {start} and {stop}"):
        stream([[1, 2], [3]]).read(start, stop)


@pytest.mark.parametrize("parts", [[], [[]], [[], []]])
def test_a_stream_of_nothing_is_an_error(parts):
    with pytest.raises(ValueError, match="at least one token"):
        stream(parts)


def test_the_fingerprint_does_not_depend_on_storage():
    expected = hashlib.sha256(b"\1\0\0\0\2\0\0\0\3\0\0\0").hexdigest()
    for dtype in (np.uint8, np.uint16, np.uint32, ">u2"):
        assert stream([[1, 2], [3]], dtype).fingerprint() == expected
    assert stream([[1, 3, 2]]).fingerprint() != expected


def test_scans_in_pieces_lose_nothing(monkeypatch):
    parts = [[0, 1, 2, 0, 3], [4, 0], [0]]
    expected = stream(parts).fingerprint()
    monkeypatch.setattr(tokens, "_PIECE", 2)
    one = stream(parts)
    assert one.fingerprint() == expected
    assert one.document_starts.tolist() == [0, 3, 6, 7]


def test_a_sampled_fingerprint_reads_little_and_notices_other_text(monkeypatch):
    monkeypatch.setattr(tokens, "_READ_WHOLE", 1000)
    monkeypatch.setattr(tokens, "_SAMPLES", 20)
    monkeypatch.setattr(tokens, "_SAMPLE", 10)
    values = np.random.default_rng(0).integers(0, 256, 5000).astype(np.uint8)

    def sampled(values, *cuts):
        stream = TokenStream(np.split(values, cuts), vocab_size=256, document_start=0)
        return stream.sampled_fingerprint()

    whole = sampled(values)
    # However the tokens are stored.
    assert sampled(values, 1234, 4000) == sampled(values.astype(np.uint16)) == whole
    assert sampled(values[::-1]) != whole
    assert sampled(values[:-1]) != whole
    # A replaced shard is noticed: windows are everywhere, at both ends too.
    for start in (0, 990, 2500, 4990):
        other = values.copy()
        other[start : start + 300] ^= 1
        assert sampled(other) != whole


def test_a_small_stream_is_fingerprinted_whole():
    stream = TokenStream([np.arange(100, dtype=np.uint8)], vocab_size=256, document_start=0)
    assert stream.sampled_fingerprint() == stream.fingerprint()
