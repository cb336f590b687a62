"""Fetching from a local server that cuts connections, lies and refuses."""

import socket

import numpy as np
import pytest
from shard_server import Answer, running

from scale_invariant_attention.data import (
    PUBLISHED,
    FetchError,
    ShardError,
    fetch_shards,
    open_shards,
    read_shard,
)
from scale_invariant_attention.data.shard_records import RECORD
from scale_invariant_attention.data.shards import HEADER_BYTES, header
from scale_invariant_attention.files import FolderInUseError, _http, download, growing_path, locked

VALIDATION, FIRST = "fineweb_val_000000.bin", "fineweb_train_000001.bin"


def shard(count, seed=0):
    tokens = np.random.default_rng(seed).integers(0, 50257, count)
    return header(count) + tokens.astype("<u2").tobytes()


@pytest.fixture
def server():
    with running({VALIDATION: shard(3000), FIRST: shard(5000, 1)}) as state:
        yield state


def fetch(server, folder, shards=0, **options):
    options = {"attempts": 3, "pause": 0.0} | options
    return fetch_shards("fineweb10B", folder, shards=shards, base_url=server.url, **options)


def only_file(folder):
    """The only file beside the record."""
    (path,) = (path for path in folder.iterdir() if path.name != RECORD)
    return path


def test_whole_shards_arrive_with_progress(server, tmp_path):
    seen = []
    paths = fetch(server, tmp_path / "new", 1, progress=lambda *step: seen.append(step))
    assert [path.name for path in paths] == [VALIDATION, FIRST]
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert names == sorted([VALIDATION, FIRST, RECORD])
    for path in paths:
        assert path.read_bytes() == server.files[path.name]
        steps = [(done, total) for name, done, total in seen if name == path.name]
        size = len(server.files[path.name])
        assert steps[0] == (0, size)
        assert steps[-1] == (size, size)
    assert len(read_shard(paths[1])) == 5000


def test_existing_shards_are_not_requested_again(server, tmp_path):
    fetch(server, tmp_path)
    seen = []
    fetch(server, tmp_path, 1, progress=lambda *step: seen.append(step))
    assert [name for name, _ in server.requests] == [VALIDATION, FIRST]
    size = len(server.files[VALIDATION])
    assert seen[0] == (VALIDATION, size, size)


def test_an_existing_broken_shard_is_fetched_again(server, tmp_path):
    (tmp_path / VALIDATION).write_bytes(server.files[VALIDATION][:-10])
    notices = []
    fetch(server, tmp_path, notice=notices.append)
    assert only_file(tmp_path).read_bytes() == server.files[VALIDATION]
    assert "is truncated" in notices[0]


@pytest.mark.parametrize("cut", [0, 1, 100, HEADER_BYTES, 4000])
def test_a_broken_connection_resumes(server, tmp_path, cut):
    server.answers = [Answer(cut_after=cut)]
    fetch(server, tmp_path)
    assert only_file(tmp_path).read_bytes() == server.files[VALIDATION]
    assert server.requests[1] == (VALIDATION, f"bytes={cut}-" if cut else None)


def test_a_later_run_resumes(server, tmp_path):
    server.answers = [Answer(cut_after=2000), *[Answer(status=503)] * 3]
    with pytest.raises(FetchError, match=r"in 3 attempts: .*503.* Rerun the same command"):
        fetch(server, tmp_path)
    assert growing_path(tmp_path / VALIDATION).stat().st_size == 2000
    fetch(server, tmp_path)
    assert server.requests[-1] == (VALIDATION, "bytes=2000-")
    assert only_file(tmp_path).read_bytes() == server.files[VALIDATION]


def test_attempts_that_gain_bytes_have_no_end(server, tmp_path):
    server.answers = [Answer(cut_after=500) for _ in range(10)]
    fetch(server, tmp_path, attempts=2)
    assert only_file(tmp_path).read_bytes() == server.files[VALIDATION]
    assert len(server.requests) == 11


def test_a_redirection_is_followed_and_resumes(server, tmp_path):
    server.answers = [Answer(redirected=True), Answer(cut_after=1500), Answer(redirected=True)]
    fetch(server, tmp_path)
    assert only_file(tmp_path).read_bytes() == server.files[VALIDATION]
    assert [asked for _, asked in server.requests] == [None, None, *["bytes=1500-"] * 2]


def test_a_server_without_ranges_starts_over(server, tmp_path):
    server.answers = [Answer(cut_after=1500), Answer(ignores_range=True)]
    fetch(server, tmp_path)
    assert only_file(tmp_path).read_bytes() == server.files[VALIDATION]


def test_the_wrong_range_is_not_pasted_together(server, tmp_path):
    server.answers = [Answer(cut_after=1500), Answer(wrong_range=True)]
    notices = []
    fetch(server, tmp_path, notice=notices.append)
    assert "did not send the file from byte 1500" in notices[1]
    assert only_file(tmp_path).read_bytes() == server.files[VALIDATION]


def test_the_length_need_not_be_announced(server, tmp_path):
    server.answers = [Answer(without_length=True)]
    fetch(server, tmp_path)
    assert only_file(tmp_path).read_bytes() == server.files[VALIDATION]


def test_a_cut_without_announced_length_is_found_by_the_header(server, tmp_path):
    server.answers = [Answer(without_length=True, cut_after=3000)]
    fetch(server, tmp_path)
    assert only_file(tmp_path).read_bytes() == server.files[VALIDATION]


def test_a_length_too_short_is_found_by_the_header(server, tmp_path):
    server.answers = [Answer(announced=2000)]
    notices = []
    fetch(server, tmp_path, notice=notices.append)
    assert "not a whole shard" in notices[0]
    assert only_file(tmp_path).read_bytes() == server.files[VALIDATION]


def test_after_too_long_a_length_the_rest_is_requested_and_verified(server, tmp_path):
    server.answers = [Answer(announced=9000)]
    notices = []
    fetch(server, tmp_path, notice=notices.append)
    assert "ended at 7024 of 9000 bytes" in notices[0]
    assert server.requests[1] == (VALIDATION, "bytes=7024-")
    assert only_file(tmp_path).read_bytes() == server.files[VALIDATION]


@pytest.mark.parametrize(
    "content",
    [b"", b"<html>Please log in</html>", header(7) + b"\0" * 13, header(0), shard(9) + b"x"],
)
def test_only_shards_are_kept(server, tmp_path, content):
    server.files[VALIDATION] = content
    with pytest.raises(FetchError, match="not a whole shard"):
        fetch(server, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_a_permanent_refusal_is_reported_at_once(server, tmp_path, status):
    server.answers = [Answer(status=status)]
    with pytest.raises(FetchError, match=rf"{VALIDATION} cannot be fetched: .* {status} "):
        fetch(server, tmp_path)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_a_temporary_refusal_is_retried(server, tmp_path, status):
    server.answers = [Answer(status=status)] * 2
    fetch(server, tmp_path)
    assert only_file(tmp_path).read_bytes() == server.files[VALIDATION]


def test_pauses_double(server, tmp_path, monkeypatch):
    slept = []
    monkeypatch.setattr(download.time, "sleep", slept.append)
    server.answers = [Answer(status=500)] * 10
    with pytest.raises(FetchError):
        fetch(server, tmp_path, attempts=5, pause=0.5)
    assert slept == [0.5, 1.0, 2.0, 4.0]


def test_without_a_network_it_says_so(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(FetchError, match=rf"no connection to {address} .* has no network"):
            fetch_shards(
                "fineweb10B",
                tmp_path,
                shards=0,
                base_url=f"http://{address}",
                attempts=2,
                pause=0,
            )


def test_a_silent_server_is_given_up(tmp_path, monkeypatch):
    # Long enough to connect on a busy machine.
    monkeypatch.setattr(_http, "TIMEOUT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(FetchError, match="timed out after 0\\.5 s"):
            fetch_shards("fineweb10B", tmp_path, shards=0, base_url=url, attempts=2, pause=0)


def test_a_full_disk_is_not_taken_for_a_bad_network(server, tmp_path):
    def full(name, done, total):
        if done:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        fetch(server, tmp_path, progress=full)
    assert len(server.requests) == 1


def test_fetched_shards_are_recorded_with_their_hashes(server, tmp_path):
    fetch(server, tmp_path)
    # A shard of an earlier version of this package is recorded as it is.
    (tmp_path / RECORD).unlink()
    fetch(server, tmp_path, 1)
    stream = open_shards(tmp_path, "train", verify=True)
    assert (stream.vocab_size, stream.document_start, len(stream)) == (50257, 50256, 5000)
    path = tmp_path / FIRST
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    assert len(open_shards(tmp_path, "train")) == 5000
    with pytest.raises(ShardError, match=rf"{FIRST} is corrupt: its SHA-256 is .* shards\.json"):
        open_shards(tmp_path, "train", verify=True)


def test_shards_of_two_origins_are_not_mixed(server, tmp_path):
    fetch(server, tmp_path)
    with pytest.raises(
        ValueError, match="has shards of 'fineweb10B', and 'fineweb100B' are others"
    ):
        fetch_shards("fineweb100B", tmp_path, shards=1, base_url=server.url)


def test_two_downloads_into_one_folder_do_not_mix(server, tmp_path):
    with locked(tmp_path), pytest.raises(FolderInUseError, match="in use by another process"):
        fetch(server, tmp_path)
    assert not server.requests


def test_an_endless_shard_is_cut_off_at_its_header(server, tmp_path):
    server.answers = [Answer(endless=True, without_length=True)] * 3
    with pytest.raises(FetchError, match="exceeds the 7024 bytes of its header"):
        fetch(server, tmp_path)
    assert server.sent < 50_000_000
    assert not list(tmp_path.iterdir())


def test_a_shard_replaced_between_two_requests_is_fetched_whole(server, tmp_path):
    server.answers = [Answer(cut_after=3000), Answer(status=503)]
    with pytest.raises(FetchError):
        fetch(server, tmp_path, attempts=2)
    server.files[VALIDATION] = shard(3000, seed=7)
    fetch(server, tmp_path)
    assert only_file(tmp_path).read_bytes() == shard(3000, seed=7)


def test_wrong_arguments(tmp_path):
    with pytest.raises(ValueError, match="one of fineweb10B, fineweb100B, got 'fineweb'"):
        fetch_shards("fineweb", tmp_path, shards=1)
    with pytest.raises(ValueError, match="shards must be from 0 to 103, got 104"):
        fetch_shards("fineweb10B", tmp_path, shards=104)
    with pytest.raises(ValueError, match="base_url must begin with https"):
        fetch_shards("fineweb10B", tmp_path, shards=1, base_url="file:///etc")
    assert not list(tmp_path.iterdir())


def test_the_published_names():
    assert PUBLISHED["fineweb10B"].url == (
        "https://huggingface.co/datasets/kjj0/fineweb10B-gpt2/resolve/main"
    )
    names = PUBLISHED["fineweb100B"].names(1030)
    assert (len(names), names[0], names[-1]) == (1031, VALIDATION, "fineweb_train_001030.bin")
