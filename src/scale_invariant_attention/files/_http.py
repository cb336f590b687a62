"""HTTP requests that never fall back from HTTPS, and that a slow server cannot hold up."""

import http.client
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

# Seconds after which a silent connection is given up, and over which its rate is measured.
TIMEOUT = 60.0
# Bytes per second; a server that sends fewer is given up.
MINIMUM_RATE = 1000.0
# The hub names the SHA-256 of a large file in the answer that redirects to its storage.
LINKED_HASH = "X-Linked-ETag"
NETWORK_ERRORS = (OSError, http.client.HTTPException)


class TooSlowError(OSError):
    """A server sends fewer than `MINIMUM_RATE` bytes per second."""


class UnsafeRedirectError(RuntimeError):
    """A server redirects to an address that must not be followed."""


class Response:
    """The answer to a request: its status, its headers and, piece by piece, its body."""

    def __init__(self, answer: http.client.HTTPResponse, linked_hash: str | None) -> None:
        self.status = answer.status
        self.headers = answer.headers
        self.linked_hash = linked_hash
        self._answer = answer
        self._watch: _Watch = answer.watch  # type: ignore[attr-defined]

    def read(self, at_most: int) -> bytes:
        """The bytes that have arrived; none at the end of the body."""
        with self._watch.explaining():
            piece = self._answer.read1(at_most)
        self._watch.count(len(piece))
        return piece

    def __enter__(self) -> "Response":
        return self

    def __exit__(self, *error: object) -> None:
        _leave(self._answer)


def open_url(url: str, headers: Mapping[str, str]) -> Response:
    """Send a GET request; ``urllib.error.HTTPError`` for an answer that is an error."""
    redirects = _Redirects()
    opener = urllib.request.build_opener(_Http, _Https, redirects)
    request = urllib.request.Request(url, headers=dict(headers))  # noqa: S310  checked to be HTTP
    try:
        answer = opener.open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as refusal:
        _leave(refusal.fp)
        raise
    return Response(answer, redirects.linked_hash or answer.headers.get(LINKED_HASH))


class _Watch:
    """Shuts a connection down once it delivers too little; `TIMEOUT` of a socket allows a byte each."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = 0
        self._ended = threading.Event()
        self._slow: str | None = None
        threading.Thread(target=self._run, args=(TIMEOUT,), daemon=True).start()

    def count(self, received: int) -> None:
        """Count bytes that have arrived."""
        self._received += received

    def end(self) -> None:
        """Stop watching."""
        self._ended.set()

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Within it, an end or an error that this watch has caused is a `TooSlowError`."""
        try:
            yield
        except TimeoutError as error:
            # That of the socket may come a moment before this watch notices.
            raise TooSlowError(f"timed out after {TIMEOUT:g} s") from error
        finally:
            if self._slow is not None:
                raise TooSlowError(self._slow)

    def _run(self, window: float) -> None:
        before = 0
        while not self._ended.wait(window):
            received, before = self._received - before, self._received
            if received < MINIMUM_RATE * window:
                arrived = f"only {received:,} bytes in" if received else "timed out after"
                self._slow = f"{arrived} {window:g} s"
                # Not `SSLSocket.shutdown`, which another thread may be reading from.
                with suppress(OSError):
                    socket.socket.shutdown(self._connection, socket.SHUT_RDWR)
                return


def _leave(answer: Any) -> None:
    answer.watch.end()
    answer.close()


class _WatchedConnection(http.client.HTTPConnection):
    def getresponse(self) -> http.client.HTTPResponse:
        watch = _Watch(self.sock)
        try:
            with watch.explaining():
                answer = super().getresponse()
        except BaseException:
            watch.end()
            raise
        # The header has arrived in time, however short it is.
        watch.count(int(MINIMUM_RATE * TIMEOUT))
        answer.watch = watch  # type: ignore[attr-defined]
        return answer


class _WatchedSecureConnection(_WatchedConnection, http.client.HTTPSConnection):
    pass


class _Http(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(_WatchedConnection, request)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(_WatchedSecureConnection, request)


class _Redirects(urllib.request.HTTPRedirectHandler):
    def __init__(self) -> None:
        self.linked_hash: str | None = None

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        # Left unread, as it may be endless.
        _leave(fp)
        secure = req.type == "https"
        if not newurl.startswith("https://" if secure else ("https://", "http://")):
            raise UnsafeRedirectError(
                f"it redirects to {newurl}, and only {'https://' if secure else 'HTTP'} is followed"
            )
        self.linked_hash = self.linked_hash or headers.get(LINKED_HASH)
        return super().redirect_request(req, fp, code, msg, headers, newurl)
