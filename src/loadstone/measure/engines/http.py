"""Sends small requests to a server over HTTP, each bounded in time and size; and reads the URLs of
servers and proxies.
"""

import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

import httpx

from loadstone.core.errors import InputError
from loadstone.core.text import excerpt

_VERSION = re.compile(r"api-version=[\w.-]+")
"""Azure's, which its servers want; other queries may hold keys."""
_WORDS_S = 3.0


class Reply(NamedTuple):
    """Holds an answer, whose body is read here and not by httpx; `whole`: the body is all of it."""

    answer: httpx.Response
    body: bytes
    whole: bool


def send(http: httpx.Client, request: httpx.Request, *, limit_s: float, max_bytes: int) -> Reply:
    """Return the answer and the beginning of its body. Raises httpx.HTTPError: ReadTimeout where it
    does not end in time, DecodingError where it is compressed."""
    body = bytearray()
    with _limit_time(limit_s, request):
        answer = http.send(request, stream=True)
        with contextlib.closing(answer):
            coding = answer.headers.get("content-encoding", "identity").strip().lower()
            if coding != "identity":
                raise httpx.DecodingError(
                    f"its answer is compressed by {coding}, though asked not to be"
                )
            for piece in answer.iter_raw():
                body += piece
                if len(body) > max_bytes:
                    break
    return Reply(answer, bytes(body[:max_bytes]), len(body) <= max_bytes)


@contextlib.contextmanager
def _limit_time(limit_s: float, request: httpx.Request) -> Iterator[None]:
    """Send `request` in this block. httpx.ReadTimeout ends what takes longer, however it is spun
    out.

    httpx counts from one piece of an answer to the next: headers that drip, or interim answers
    (1xx) that flood, would last for ever. So the socket is shut when the time is over, which wakes
    whoever reads it.
    """
    over = threading.Event()
    sockets: list[socket.socket] = []

    def shut() -> None:
        for opened in sockets:
            with contextlib.suppress(OSError):
                # Of TLS too: its own way would pull the session from under who reads it.
                socket.socket.shutdown(opened, socket.SHUT_RDWR)

    def end() -> None:
        over.set()
        shut()

    def on_trace(event: str, details: dict[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            sockets.append(details["return_value"].get_extra_info("socket"))
            if over.is_set():
                shut()

    request.extensions["trace"] = on_trace
    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (httpx.HTTPError, OSError, ValueError) as error:
        if over.is_set():
            raise httpx.ReadTimeout("the answer does not end", request=request) from error
        raise
    finally:
        timer.cancel()
    if over.is_set():  # what was read may be cut
        raise httpx.ReadTimeout("the answer does not end", request=request)


def status_of(http: httpx.Client, url: str, limit_s: float) -> int:
    """Return the status of what answers there, whose body is not read; 0: nothing does in time."""
    request = http.build_request("GET", url)
    try:
        with (
            _limit_time(limit_s, request),
            contextlib.closing(http.send(request, stream=True)) as answer,
        ):
            return answer.status_code
    except httpx.HTTPError:
        return 0


def read_first_words(parts: SplitResult) -> bytes:
    """Return what the server at a plain URL says to a GET; nothing where it says nothing."""
    request = f"GET / HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n"
    address = (parts.hostname or "", parts.port or 80)
    with contextlib.suppress(OSError), socket.create_connection(address, _WORDS_S) as plain:
        plain.sendall(request.encode())
        return plain.recv(4096)
    return b""


def check_url(url: str) -> SplitResult:
    """Return the parts of a server's URL. Raises InputError, one line, on anything but
    http(s)://host[:port][/path]."""
    if not url.isascii() or not url.isprintable() or " " in url:
        raise InputError(
            f"{shown(url)}: not a URL (ASCII, without spaces); write e.g. http://localhost:8000"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
        _ = (parts.hostname or "").encode("idna"), httpx.URL(url).host
    except (ValueError, httpx.InvalidURL):
        # The reason would repeat a piece, which may be one of a password.
        raise InputError(
            f"{shown(url)}: no host and port; write e.g. http://localhost:8000"
        ) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise InputError(f"{shown(url)}: not a URL of a server; write e.g. http://localhost:8000")
    if (parts.query and not _VERSION.fullmatch(parts.query)) or parts.fragment:
        raise InputError(
            f"{parts.scheme}://{parts.hostname}: leave out what begins with ? or # in the URL (but "
            "?api-version=…); keys are headers, -H"
        )
    if "@" in parts.netloc:
        raise InputError(
            "the URL holds a user name or password; give keys in LOADSTONE_API_KEY or"
            " OPENAI_API_KEY"
        )
    endpoint = re.search(
        r"/v1/(chat/completions|completions|messages|responses|models)/?$", parts.path
    )
    if endpoint is not None and not parts.query:
        raise InputError(f"{url}: leave out {endpoint[0]}; --endpoint says what is asked there")
    return parts


def shown(url: str) -> str:
    """Return what may be said of a URL, whatever it is: without user, password, and what begins
    with ? or #."""
    scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", url)
    begin = scheme[0] if scheme is not None else ""
    _, sign, place = url[len(begin) :].rpartition("@")
    hidden = "…@" if sign else ""
    return excerpt(f"{begin}{hidden}{re.split('[?#]', place)[0]}", 120)


def check_proxy(url: str) -> None:
    """Raises InputError, one line that repeats no password, on anything but http://host[:port]."""
    try:
        parts = check_url(url)
    except InputError:
        parts = None
    if parts is None or parts.scheme != "http" or parts.path.strip("/"):
        raise InputError(
            "--proxy: this proxy cannot be used; write http://host:port, without a name or password"
        )


def http_client(
    url: str, headers: Iterable[tuple[str, str]], proxy: str | None, timeout: httpx.Timeout | float
) -> httpx.Client:
    """Return a client for requests to a URL and what is below it. Proxies in the environment are
    not used, only `proxy` is."""
    sent = httpx.Headers({"Accept-Encoding": "identity"})
    sent.update(dict(headers))
    # Over plain HTTP nobody is trusted: reading all certificates takes longer than all requests
    # together.
    tls = url.startswith("https:")
    return httpx.Client(
        base_url=url,
        headers=sent,
        timeout=timeout,
        trust_env=False,
        proxy=proxy,
        # A kept connection would hold a thread of llama-server's, and some servers and proxies cut
        # it unasked.
        limits=httpx.Limits(max_keepalive_connections=0),
        verify=ssl.create_default_context() if tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
    )
