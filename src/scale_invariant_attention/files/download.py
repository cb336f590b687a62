"""Downloads files over HTTP, resumes interrupted downloads, and keeps only what passes a check.

Beside a partial file, a description of it is kept: which version of the file it belongs to, as the
server names it (`ETag` or `Last-Modified`), and size and SHA-256 of what has arrived. Only that is
resumed, and only while the server has the same version; anything else starts from zero.

`huggingface_hub` is not used: it discards what an interrupted run has downloaded, needs the hub's
metadata, so that no other server can be named, and appends whatever range a server sends.
"""

import hashlib
import http.client
import json
import re
import time
import urllib.error
import urllib.parse
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from email.message import Message
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Protocol

from ._durable import finish_growing, growing_path, replace_file
from ._http import NETWORK_ERRORS, Response, TooSlowError, UnsafeRedirectError, open_url
from .manifest import signed_text, verified

_PIECE = 2**20
# Bytes after which the description of the partial file is renewed: a kill loses no more.
_RENEWED_EVERY = 2**26
# Errors below 500 that may pass; no other does.
_TRANSIENT = frozenset({408, 425, 429})
_COUNT = re.compile(r"[0-9]{1,18}")
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18}|\*)")
_SHA256 = re.compile(r"[0-9a-f]{64}")

Progress = Callable[[str, int, int | None], None]
Notice = Callable[[str], None]


class FetchError(RuntimeError):
    """A file could not be downloaded; the message says from where and why."""


class Check(Protocol):
    """Finds what is wrong with a downloaded file."""

    def __call__(self, path: Path, *, whole: bool) -> str | None:
        """The fault of a file in words, or None; if not `whole`, a fault that no more bytes can cure."""


class _Interrupted(Exception):  # noqa: N818  not an error while there is another attempt
    """An attempt ended early and may be resumed."""


class _TooSlow(_Interrupted):
    """An attempt that the server drew out; it counts as failed even if it gained a few bytes."""


@dataclass(frozen=True)
class _Version:
    """A version of a file: the header that names it, its size and its SHA-256, as far as known."""

    header: str | None
    value: str | None
    total: int | None
    sha256: str | None

    def is_confirmed_by(self, headers: Message) -> bool:
        """Whether the answer to a request for the rest of the file is of this version."""
        return self.header is not None and headers.get(self.header) == self.value


def check_address(name: str, url: str) -> str:
    """An address of HTTP without a slash at its end; errors call it `name`.

    >>> check_address("base_url", "https://example.org/files/")
    'https://example.org/files'
    """
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"{name} must begin with https:// or http://, got {url!r}")
    try:
        parts = urllib.parse.urlsplit(url)
        fault = None if parts.hostname else "it names no host"
        _ = parts.port  # raises for what is no port
        url.encode("ascii")
    except UnicodeEncodeError:
        fault = "it has characters that must be percent-encoded, or a host that must be in punycode"
    except ValueError as error:
        fault = str(error)
    if fault is not None:
        raise ValueError(f"{name} must be an address, got {url!r}: {fault}")
    return url.rstrip("/")


def download(
    url: str,
    path: Path,
    check: Check,
    *,
    attempts: int = 5,
    pause: float = 1.0,
    progress: Progress = lambda *_: None,
    notice: Notice = lambda _: None,
) -> None:
    """Download a file, or the rest of it, and give it its name once it is whole.

    Only one process at a time may download a file: hold a lock on its folder.

    Args:
        url: an address that :func:`check_address` has accepted.
        path: of the file; its folder exists.
        check: called with the partial file as it grows, and when it is whole.
        attempts: how many attempts in a row may fail to get further than those before.
        pause: seconds before the second attempt, doubled before each later one.
        progress: called with the file's name, the bytes downloaded, and the total if known.
        notice: called with a sentence for the user about retries.
    """
    partial = _PartialFile(path)
    failed, furthest = 0, partial.count
    while True:
        try:
            if not partial.is_complete:
                _attempt(url, partial, check, progress)
            _verify(partial, check)
            break
        except _Interrupted as problem:
            gained = partial.count > furthest and not isinstance(problem, _TooSlow)
            failed = 1 if gained else failed + 1
            furthest = max(furthest, partial.count)
            if failed >= attempts:
                raise FetchError(
                    f"{url} could not be fetched in {attempts} attempts: {problem}. Rerun the same "
                    f"command to resume. If this machine has no network, copy the file to {path}"
                ) from problem
            wait = pause * 2 ** (failed - 1)
            notice(f"{path.name}: {problem}; trying again in {wait:g} s")
            time.sleep(wait)
    partial.finish()


class _PartialFile:
    """A file that is being downloaded, and its description."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.partial = growing_path(path)
        self._description = self.partial.with_name(f"{self.partial.name}.json")
        self._digest = hashlib.sha256()
        self.count = 0
        self.version = _Version(None, None, None, None)
        try:
            self._reopen()
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            # Nothing is known of these bytes.
            self.discard()

    def _reopen(self) -> None:
        found = verified(json.loads(self._description.read_bytes()))
        count, sha256 = found["count"], found["count_sha256"]
        with self.partial.open("r+b") as file:
            for start in range(0, count, _PIECE):
                self._digest.update(file.read(min(_PIECE, count - start)))
            if file.tell() != count or self._digest.hexdigest() != sha256:
                raise ValueError(f"{self.partial} is not as {self._description} describes it")
            file.truncate()
        self.version, self.count = _Version(**found["version"]), count

    @property
    def is_complete(self) -> bool:
        return self.count > 0 and self.count == self.version.total

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def start(self, version: _Version) -> None:
        """Begin a version from zero."""
        self.discard()
        self.version = version
        self.partial.touch()

    def discard(self) -> None:
        """Remove all that has been downloaded; the description first, so that it never misleads."""
        self._description.unlink(missing_ok=True)
        self.partial.unlink(missing_ok=True)
        self._digest, self.count = hashlib.sha256(), 0

    def grow(self, response: Response, check: Check, progress: Progress) -> None:
        """Append the body of a response, to the end of the file or until something is wrong."""
        described = self.count
        try:
            with self.partial.open("ab", buffering=0) as file:
                progress(self.path.name, self.count, self.version.total)
                while piece := _received(response):
                    file.write(piece)
                    self._digest.update(piece)
                    self.count += len(piece)
                    if (fault := self._fault_so_far(check)) is not None:
                        self.discard()
                        raise _Interrupted(fault)
                    if self.count - described >= _RENEWED_EVERY:
                        self.describe()
                        described = self.count
                    progress(self.path.name, self.count, self.version.total)
        finally:
            self.describe()

    def _fault_so_far(self, check: Check) -> str | None:
        total = self.version.total
        if total is not None and self.count > total:
            return f"the server sent more than the {total} bytes that it announced"
        fault = check(self.partial, whole=False)
        return None if fault is None else f"the server sent {fault}"

    def describe(self) -> None:
        """Record what has arrived, if it can be resumed."""
        if self.version.header is not None and self.count:
            described = {"count": self.count, "count_sha256": self.sha256}
            text = signed_text({"version": asdict(self.version), **described})
            replace_file(self._description, text)

    def finish(self) -> None:
        """Give the file its name."""
        finish_growing(self.path)
        self._description.unlink(missing_ok=True)


def _attempt(url: str, partial: _PartialFile, check: Check, progress: Progress) -> None:
    """Resume the partial file until the server has no more bytes, or raise `_Interrupted`."""
    headers = {"User-Agent": "scale-invariant-attention"}
    if partial.count and partial.version.value is not None:
        # A server that has another version by now sends all of that.
        headers |= {"Range": f"bytes={partial.count}-", "If-Range": partial.version.value}
    else:
        partial.discard()
    try:
        response = open_url(url, headers)
    except urllib.error.HTTPError as refusal:
        if refusal.code == 416 and partial.count:
            # The server has no more bytes: the partial file is complete, or of another version.
            return
        # Some servers give no reason; for redirects in a circle, urllib gives several lines.
        answer = " ".join(f"the server answers {refusal.code} {refusal.reason}".split())
        if refusal.code in _TRANSIENT or refusal.code >= 500:
            raise _Interrupted(answer) from refusal
        raise FetchError(
            f"{url} cannot be fetched: {answer}; check the address and the file's name"
        ) from refusal
    except UnsafeRedirectError as problem:
        raise FetchError(f"{url} cannot be fetched: {problem}") from problem
    except (ValueError, http.client.InvalidURL) as problem:
        # The address of the file has been checked, so this is about the target of a redirect.
        raise FetchError(
            f"{url} cannot be fetched: it redirects to an invalid address ({problem})"
        ) from problem
    except NETWORK_ERRORS as problem:
        host = urllib.parse.urlsplit(url).netloc
        kind = _TooSlow if isinstance(problem, TooSlowError) else _Interrupted
        raise kind(f"no connection to {host} ({_reason(problem)})") from problem
    with response:
        if response.status == http.client.PARTIAL_CONTENT:
            _check_rest(partial, response.headers)
        else:
            # A server may send the whole file although it was asked for the rest.
            partial.start(_version(response))
        partial.grow(response, check, progress)
    end, total = partial.count, partial.version.total
    if total is not None and end < total:
        raise _Interrupted(f"the connection ended at {end} of {total} bytes")


def _check_rest(partial: _PartialFile, headers: Message) -> None:
    """Refuse a part of the file that does not continue the partial file."""
    content_range = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
    if content_range is None or int(content_range[1]) != partial.count:
        raise _Interrupted(
            f"the server did not send the file from byte {partial.count} on, as asked"
        )
    known, total = partial.version.total, _count(content_range[2])
    other_size = known is not None and total is not None and known != total
    if other_size or not partial.version.is_confirmed_by(headers):
        partial.discard()
        raise _Interrupted("the server sent the rest of another version of the file")
    partial.version = replace(partial.version, total=known if total is None else total)


def _version(response: Response) -> _Version:
    headers, linked = response.headers, (response.linked_hash or "").strip('"')
    etag, date = headers.get("ETag", ""), headers.get("Last-Modified", "")
    header = value = None
    # A weak tag stands for files that may differ in bytes; so does the time of a moment ago.
    if etag.startswith('"'):
        header, value = "ETag", etag
    elif _seconds_between(date, headers.get("Date", "")) >= 1:
        header, value = "Last-Modified", date
    sha256 = linked if _SHA256.fullmatch(linked) else None
    return _Version(header, value, _count(headers.get("Content-Length", "")), sha256)


def _seconds_between(earlier: str, later: str) -> float:
    try:
        return (parsedate_to_datetime(later) - parsedate_to_datetime(earlier)).total_seconds()
    except (ValueError, TypeError):
        return 0.0


def _count(text: str) -> int | None:
    return int(text) if _COUNT.fullmatch(text) else None


def _received(response: Response) -> bytes:
    # Only reading may fail because of the network; a full disk must not look like it.
    try:
        return response.read(_PIECE)
    except TooSlowError as problem:
        raise _TooSlow(f"the server is too slow ({_reason(problem)})") from problem
    except NETWORK_ERRORS as problem:
        raise _Interrupted(f"the connection broke ({_reason(problem)})") from problem


def _verify(partial: _PartialFile, check: Check) -> None:
    fault = check(partial.partial, whole=True)
    if fault is None and partial.version.sha256 not in (None, partial.sha256):
        fault = f"a file with the SHA-256 {partial.sha256}, and announced {partial.version.sha256}"
    if fault is not None:
        # No further bytes could make it whole.
        partial.discard()
        raise _Interrupted(f"the server sent {fault}")


def _reason(problem: BaseException) -> str:
    if isinstance(problem, urllib.error.URLError):
        return str(problem.reason)
    return str(problem) or type(problem).__name__
