"""Downloads are of one version, no longer than announced, and never wait for ever."""

import hashlib
import json
import socket
import ssl
import subprocess
import time
import urllib.error
from contextlib import contextmanager
from email.message import Message
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from shard_server import Answer, running

from scale_invariant_attention.files import _http, growing_path
from scale_invariant_attention.files import download as downloads
from scale_invariant_attention.files.download import FetchError, check_address, download

NAME = "file.bin"
FIRST = bytes(range(256)) * 40
# The same size, other bytes.
SECOND = FIRST[::-1]
LONG_AGO = formatdate(1_000_000_000, usegmt=True)
LATER = formatdate(1_000_000_001, usegmt=True)


@pytest.fixture
def server():
    with running({NAME: FIRST}) as state:
        yield state


def nothing_wrong(path, *, whole):
    return None


def fetch(server, folder, check=nothing_wrong, **options):
    options = {"attempts": 3, "pause": 0.0} | options
    download(f"{server.url}/{NAME}", folder / NAME, check, **options)


def interrupt(server, folder, cut=4000, **answer):
    """Download a part of the file, as if the process was then stopped."""
    server.answers = [Answer(cut_after=cut, **answer), Answer(status=503)]
    with pytest.raises(FetchError, match="503"):
        fetch(server, folder, attempts=1 if not cut else 2)
    server.answers.clear()


def only_file(folder):
    (path,) = folder.iterdir()
    return path


@pytest.mark.parametrize("version", [{}, {"last_modified": LONG_AGO}])
def test_the_same_version_is_resumed(server, tmp_path, version):
    interrupt(server, tmp_path, **version)
    server.answers = [Answer(**version)]
    fetch(server, tmp_path)
    assert server.requests[-1] == (NAME, "bytes=4000-")
    assert only_file(tmp_path).read_bytes() == FIRST


@pytest.mark.parametrize("honest", [True, False])
@pytest.mark.parametrize("dated", [True, False])
def test_two_versions_are_never_spliced(server, tmp_path, honest, dated):
    """The file changes between two requests; a server may ignore If-Range and send its rest."""
    first, second = ({"last_modified": date} if dated else {} for date in (LONG_AGO, LATER))
    interrupt(server, tmp_path, **first)
    server.files[NAME] = SECOND
    server.answers = [Answer(**second, ignores_if_range=not honest), Answer(**second)]
    notices = []
    fetch(server, tmp_path, notice=notices.append)
    assert only_file(tmp_path).read_bytes() == SECOND
    if not honest:
        assert "rest of another version" in notices[0]


def test_a_file_that_changes_during_retries_is_of_one_version(server, tmp_path):
    def switch(_):
        server.files[NAME] = SECOND

    server.answers = [Answer(cut_after=4000)]
    fetch(server, tmp_path, notice=switch)
    assert only_file(tmp_path).read_bytes() == SECOND


@pytest.mark.parametrize(
    "version", [{"without_version": True}, {"last_modified": "now"}, {"last_modified": "soon"}]
)
def test_without_a_version_it_starts_from_zero(server, tmp_path, version):
    if version.get("last_modified") == "now":
        # A second write within this second would have the same date.
        version = {"last_modified": formatdate(usegmt=True)}
    interrupt(server, tmp_path, **version)
    server.files[NAME] = SECOND
    server.answers = [Answer(**version, ignores_if_range=True)]
    fetch(server, tmp_path)
    assert server.requests[-1] == (NAME, None)
    assert only_file(tmp_path).read_bytes() == SECOND


def test_without_a_version_attempts_that_gain_nothing_end(server, tmp_path):
    server.answers = [Answer(cut_after=cut, without_version=True) for cut in (50, 90, 70, 80, 60)]
    with pytest.raises(FetchError, match="in 3 attempts: the connection ended at 80 of"):
        fetch(server, tmp_path)


def test_a_partial_file_of_unknown_origin_is_not_resumed(server, tmp_path):
    growing_path(tmp_path / NAME).write_bytes(SECOND[:4000])
    fetch(server, tmp_path)
    assert server.requests == [(NAME, None)]
    assert only_file(tmp_path).read_bytes() == FIRST


def test_a_damaged_partial_file_is_not_resumed(server, tmp_path):
    interrupt(server, tmp_path)
    partial = growing_path(tmp_path / NAME)
    partial.write_bytes(partial.read_bytes()[:-1] + b"?")
    fetch(server, tmp_path)
    assert server.requests[-1] == (NAME, None)
    assert only_file(tmp_path).read_bytes() == FIRST


def test_bytes_after_the_description_of_a_killed_download_are_dropped(server, tmp_path):
    interrupt(server, tmp_path)
    with growing_path(tmp_path / NAME).open("ab") as file:
        file.write(b"written, but not yet described")
    fetch(server, tmp_path)
    assert server.requests[-1] == (NAME, "bytes=4000-")
    assert only_file(tmp_path).read_bytes() == FIRST


def test_a_kill_loses_little(server, tmp_path, monkeypatch):
    monkeypatch.setattr(downloads, "_RENEWED_EVERY", 3000)
    monkeypatch.setattr(downloads, "_PIECE", 1000)
    described = []

    def look(name, done, total):
        path = tmp_path / f"{NAME}.partial.json"
        described.append(json.loads(path.read_bytes())["count"] if path.exists() else 0)

    fetch(server, tmp_path, progress=look)
    assert described[:5] == [0, 0, 0, 3000, 3000]


def test_a_complete_partial_file_is_only_verified(server, tmp_path):
    def killed(name, done, total):
        if done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(server, tmp_path, progress=killed)
    fetch(server, tmp_path)
    assert only_file(tmp_path).read_bytes() == FIRST
    assert len(server.requests) == 1


@pytest.mark.parametrize("resumed", [True, False])
def test_a_body_longer_than_its_check_allows_is_cut_off(server, tmp_path, resumed):
    def check(path, *, whole):
        return "too much" if path.stat().st_size > len(FIRST) else None

    if resumed:
        interrupt(server, tmp_path)
    server.answers = [Answer(endless=True, without_length=True)] * 3
    with pytest.raises(FetchError, match="the server sent "):
        fetch(server, tmp_path, check)
    # What the sockets buffered, not gigabytes.
    assert server.sent < 50_000_000
    assert not list(tmp_path.iterdir())


def test_a_longer_body_than_announced_is_not_kept(server, tmp_path):
    server.answers = [Answer(endless=True)]
    fetch(server, tmp_path)
    assert only_file(tmp_path).read_bytes() == FIRST


def test_a_server_that_trickles_is_given_up(server, tmp_path, monkeypatch):
    monkeypatch.setattr(_http, "TIMEOUT", 0.3)
    server.answers = [Answer(trickles=0.02)] * 9
    started = time.monotonic()
    with pytest.raises(FetchError, match=r"too slow \(only \d+ bytes in 0\.3 s\)"):
        fetch(server, tmp_path)
    assert time.monotonic() - started < 10


def test_a_header_that_trickles_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(_http, "TIMEOUT", 0.3)

    def trickle(listening):
        connection, _ = listening.accept()
        with connection:
            try:
                while True:
                    connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n"[:1])
                    time.sleep(0.02)
            except OSError:
                pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = Thread(target=trickle, args=(listening,))
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/{NAME}"
        with pytest.raises(FetchError, match=r"no connection to .*timed out after 0\.3 s"):
            download(url, tmp_path / NAME, nothing_wrong, attempts=1)
        thread.join()


def test_a_fast_server_is_not_called_slow(server, tmp_path, monkeypatch):
    monkeypatch.setattr(_http, "TIMEOUT", 0.2)
    server.files[NAME] = FIRST[:40]
    server.answers = [Answer(trickles=0.01)]
    monkeypatch.setattr(_http, "MINIMUM_RATE", 20.0)
    fetch(server, tmp_path, attempts=1)
    assert only_file(tmp_path).read_bytes() == FIRST[:40]


def test_416_without_a_partial_file_is_an_error_that_says_so(server, tmp_path):
    server.answers = [Answer(status=416)]
    with pytest.raises(FetchError, match=rf"{NAME} cannot be fetched: the server answers 416 "):
        fetch(server, tmp_path)
    assert not list(tmp_path.iterdir())


def test_416_for_a_shorter_version_starts_over(server, tmp_path):
    def check(path, *, whole):
        return "half of it" if whole and path.read_bytes() not in (FIRST, SECOND[:100]) else None

    interrupt(server, tmp_path)
    server.files[NAME] = SECOND[:100]
    server.answers = [Answer(ignores_if_range=True)]
    fetch(server, tmp_path, check)
    assert only_file(tmp_path).read_bytes() == SECOND[:100]


@pytest.mark.parametrize("right", [True, False])
def test_the_hash_that_the_hub_names_is_checked(server, tmp_path, right):
    linked = hashlib.sha256(FIRST if right else SECOND).hexdigest()
    server.answers = [Answer(redirected=True, linked_hash=linked), Answer()] * 2
    if right:
        fetch(server, tmp_path)
        assert only_file(tmp_path).read_bytes() == FIRST
    else:
        with pytest.raises(FetchError, match=f"announced {linked}"):
            fetch(server, tmp_path, attempts=2)
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("location", ["ftp://127.0.0.1/x", "file:///etc/passwd"])
def test_only_http_is_followed(server, tmp_path, location):
    server.answers = [Answer(location=location)]
    with pytest.raises(FetchError, match="cannot be fetched: "):
        fetch(server, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("location", ["http://[bad", "http://127.0.0.1:port/", "http://b\xfccher/"])
def test_a_redirection_to_no_address_is_named(server, tmp_path, location):
    server.answers = [Answer(location=location)]
    with pytest.raises(
        FetchError, match=f"{NAME} cannot be fetched: it redirects to an invalid address"
    ):
        fetch(server, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("reason", "said"), [("", "404;"), ("a\n  b", "404 a b;")])
def test_an_answer_may_have_no_reason_or_several_lines(tmp_path, monkeypatch, reason, said):
    def refuse(url, headers):
        raise urllib.error.HTTPError(url, 404, reason, Message(), None)

    monkeypatch.setattr(downloads, "open_url", refuse)
    with pytest.raises(FetchError, match=f"the server answers {said}"):
        download(f"http://127.0.0.1/{NAME}", tmp_path / NAME, nothing_wrong)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("file:///etc", "must begin with https:// or http://"),
        ("http://[::1", "Invalid IPv6"),
        ("http://", "names no host"),
        ("http://127.0.0.1:abc/", "Port could not be cast"),
        ("http://b\xfccher/", "punycode"),
    ],
)
def test_addresses_that_are_none_are_refused(address, message):
    with pytest.raises(ValueError, match=f"^base_url .*{message}"):
        check_address("base_url", address)


@contextmanager
def secure_server(folder, location):
    """A server over TLS that redirects, and a context that trusts it."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    subprocess.run([*made, *subject, *files], check=True, capture_output=True)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(302)
            self.send_header("Location", location)
            self.end_headers()

        def log_message(self, *_):
            """Silence."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}/{NAME}", certificate
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_https_never_redirects_to_http(server, tmp_path, monkeypatch):
    (tmp_path / "tls").mkdir()
    with secure_server(tmp_path / "tls", f"{server.url}/{NAME}") as (url, certificate):
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        (tmp_path / "files").mkdir()
        with pytest.raises(FetchError, match=r"redirects to http://.* only https:// is followed"):
            download(url, tmp_path / "files" / NAME, nothing_wrong, attempts=1)
    assert not server.requests
    assert not list((tmp_path / "files").iterdir())
