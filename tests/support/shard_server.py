"""A local file server that misbehaves on demand, standing in for the hub."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


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


@dataclass
class ShardServer:
    """Files by name, the next answers, and all requests as (name, Range)."""

    files: dict[str, bytes]
    url: str = ""
    answers: list[Answer] = field(default_factory=list)
    requests: list[tuple[str, str | None]] = field(default_factory=list)


@contextmanager
def running(files: dict[str, bytes]) -> Iterator[ShardServer]:
    """Run a server within a `with` block."""
    state = ShardServer(files)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name, asked = self.path.rsplit("/", 1)[-1], self.headers.get("Range")
            state.requests.append((name, asked))
            answer = state.answers.pop(0) if state.answers else Answer()
            if answer.redirected:
                self.send_response(302)
                self.send_header("Location", f"/elsewhere/{name}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if answer.status is not None or name not in state.files:
                self.send_error(answer.status or 404)
                return
            content, start = state.files[name], 0
            if asked and not answer.ignores_range:
                start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])
                if start >= len(content):
                    self.send_error(416)
                    return
            body = content[start:]
            self.send_response(206 if start else 200)
            if start:
                first = start + 1 if answer.wrong_range else start
                self.send_header(
                    "Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}"
                )
            if not answer.without_length:
                self.send_header("Content-Length", str(answer.announced or len(body)))
            self.end_headers()
            self.wfile.write(body[: answer.cut_after])

        def log_message(self, *_: object) -> None:
            """Silence."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}/files"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
