"""A local file server that misbehaves on demand, standing in for the hub."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread


@dataclass
class Answer:
    """The answer to one request: in full by default."""

    status: int | None = None  # an error instead of the file
    cut_after: int | None = None  # bytes of the body before the connection breaks
    announced: int | None = None  # a false Content-Length
    without_length: bool = False
    ignores_range: bool = False
    wrong_range: bool = False
    redirected: bool = False  # to the same file, as the hub redirects to its storage
    location: str | None = None  # of a redirection
    linked_hash: str | None = None  # in the redirection, as the hub names the SHA-256
    without_version: bool = False  # neither ETag nor Last-Modified
    last_modified: str | None = None  # instead of an ETag
    ignores_if_range: bool = False  # sends the rest of whatever it has now
    endless: bool = False  # goes on after the file until the client leaves
    trickles: float | None = None  # seconds between two bytes of the body


@dataclass
class ShardServer:
    """Files by name, the next answers, all requests as (name, Range), and how much was sent."""

    files: dict[str, bytes]
    url: str = ""
    answers: list[Answer] = field(default_factory=list)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    sent: int = 0
    stopped: Event = field(default_factory=Event)


@contextmanager
def running(files: dict[str, bytes]) -> Iterator[ShardServer]:
    """Run a server within a `with` block."""
    state = ShardServer(files)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name, asked = self.path.rsplit("/", 1)[-1], self.headers.get("Range")
            state.requests.append((name, asked))
            answer = state.answers.pop(0) if state.answers else Answer()
            if answer.redirected or answer.location:
                self.send_response(302)
                self.send_header("Location", answer.location or f"/elsewhere/{name}")
                if answer.linked_hash:
                    self.send_header("X-Linked-ETag", f'"{answer.linked_hash}"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if answer.status is not None or name not in state.files:
                self.send_error(answer.status or 404)
                return
            content, start = state.files[name], 0
            versions = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"'}
            if answer.last_modified:
                versions = {"Last-Modified": answer.last_modified}
            if answer.without_version:
                versions = {}
            expected = self.headers.get("If-Range")
            same = expected is None or expected in versions.values() or answer.ignores_if_range
            if asked and same and not answer.ignores_range:
                start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])
                if start >= len(content):
                    self.send_error(416)
                    return
            body = content[start:]
            self.send_response(206 if start else 200)
            for header, value in versions.items():
                self.send_header(header, value)
            if start:
                first = start + 1 if answer.wrong_range else start
                self.send_header(
                    "Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}"
                )
            if not answer.without_length:
                self.send_header("Content-Length", str(answer.announced or len(body)))
            self.end_headers()
            with suppress(ConnectionError):
                self._send(answer, body)

        def _send(self, answer: Answer, body: bytes) -> None:
            if answer.trickles is not None:
                for byte in body:
                    self._write(bytes([byte]))
                    if state.stopped.wait(answer.trickles):
                        return
            self._write(body[: answer.cut_after])
            while answer.endless:
                self._write(bytes(2**16))

        def _write(self, piece: bytes) -> None:
            self.wfile.write(piece)
            state.sent += len(piece)

        def log_message(self, *_: object) -> None:
            """Silence."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}/files"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        state.stopped.set()
        server.shutdown()
        thread.join()
        server.server_close()
