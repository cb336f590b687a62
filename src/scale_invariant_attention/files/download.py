"""Downloads files over HTTP, resumes interrupted downloads, and keeps only what passes a check.

`huggingface_hub` is not used: it discards what an interrupted run has downloaded, needs the hub's
metadata, so that no other server can be named, and appends whatever range a server sends.
"""

import http.client
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

from ._durable import finish_growing, growing_path

# Seconds after which a silent connection is given up.
TIMEOUT = 60.0
_PIECE = 2**20
# Errors below 500 that may pass; no other does.
_TRANSIENT = frozenset({408, 425, 429})
_NETWORK = (OSError, http.client.HTTPException)

Progress = Callable[[str, int, int | None], None]
Notice = Callable[[str], None]


class FetchError(RuntimeError):
    """A file could not be downloaded; the message says from where and why."""


class _Interrupted(Exception):  # noqa: N818  not an error while there is another attempt
    """An attempt ended early and may be resumed."""


def check_address(name: str, url: str) -> str:
    """An address of HTTP without a slash at its end; errors call it `name`.

    >>> check_address("base_url", "https://example.org/files/")
    'https://example.org/files'
    """
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"{name} must begin with https:// or http://, got {url!r}")
    return url.rstrip("/")


def download(
    url: str,
    path: Path,
    damage: Callable[[Path], str | None],
    *,
    attempts: int = 5,
    pause: float = 1.0,
    progress: Progress = lambda *_: None,
    notice: Notice = lambda _: None,
) -> None:
    """Download a file, or the rest of it, and give it its name once it is whole.

    Args:
        url: an address that :func:`check_address` has accepted.
        path: of the file; its folder exists.
        damage: describes what is wrong with the downloaded file; None if it is whole.
        attempts: how many attempts in a row may fail to gain a byte.
        pause: seconds before the second attempt, doubled before each later one.
        progress: called with the file's name, the bytes downloaded, and the total if known.
        notice: called with a sentence for the user about retries.
    """
    failed = 0
    while True:
        before = _downloaded(path)
        try:
            _attempt(url, path, progress)
            _verify(growing_path(path), damage)
            break
        except _Interrupted as problem:
            failed = 1 if _downloaded(path) > before else failed + 1
            if failed >= attempts:
                raise FetchError(
                    f"{url} could not be fetched in {attempts} attempts: {problem}. Rerun the same "
                    f"command to resume. If this machine has no network, copy the file to {path}"
                ) from problem
            wait = pause * 2 ** (failed - 1)
            notice(f"{path.name}: {problem}; trying again in {wait:g} s")
            time.sleep(wait)
    finish_growing(path)


def _attempt(url: str, path: Path, progress: Progress) -> None:
    """Resume the partial file until the server has no more bytes, or raise `_Interrupted`."""
    partial, start = growing_path(path), _downloaded(path)
    headers = {"User-Agent": "scale-invariant-attention"}
    if start:
        headers["Range"] = f"bytes={start}-"
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  checked to be HTTP
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)  # noqa: S310
    except urllib.error.HTTPError as refusal:
        refusal.close()
        # The server has no more bytes: the partial file is complete, or too long.
        if refusal.code == 416:
            return
        answer = f"the server answers {refusal.code} {refusal.reason}"
        if refusal.code in _TRANSIENT or refusal.code >= 500:
            raise _Interrupted(answer) from refusal
        raise FetchError(
            f"{url} cannot be fetched: {answer}; check the address and the file's name"
        ) from refusal
    except _NETWORK as problem:
        host = urllib.parse.urlsplit(url).netloc
        raise _Interrupted(f"no connection to {host} ({_reason(problem)})") from problem
    with response:
        if response.status != http.client.PARTIAL_CONTENT:
            # A server may send the whole file although it was asked for the rest.
            start = 0
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            raise _Interrupted(f"the server did not send the file from byte {start} on, as asked")
        announced = response.headers.get("Content-Length")
        total = start + int(announced) if announced and announced.isdigit() else None
        with partial.open("ab" if start else "wb") as file:
            progress(path.name, start, total)
            while piece := _received(response):
                file.write(piece)
                progress(path.name, file.tell(), total)
            end = file.tell()
    if total is not None and end < total:
        raise _Interrupted(f"the connection ended at {end} of {total} bytes")


def _received(response: http.client.HTTPResponse) -> bytes:
    # Only reading may fail because of the network; a full disk must not look like it.
    try:
        return response.read1(_PIECE)
    except _NETWORK as problem:
        raise _Interrupted(f"the connection broke ({_reason(problem)})") from problem


def _verify(partial: Path, damage: Callable[[Path], str | None]) -> None:
    fault = damage(partial)
    if fault is not None:
        # No further bytes could make it whole.
        partial.unlink()
        raise _Interrupted(f"the server sent {fault}")


def _reason(problem: BaseException) -> str:
    if isinstance(problem, urllib.error.URLError):
        return str(problem.reason)
    return str(problem) or type(problem).__name__


def _downloaded(path: Path) -> int:
    partial = growing_path(path)
    return partial.stat().st_size if partial.exists() else 0
