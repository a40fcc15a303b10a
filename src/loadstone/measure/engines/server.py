"""Is the control plane of a server: single small requests before the run, over HTTP (triton_grpc
has those over gRPC).

Nothing that the server says is believed further than it is used: bodies are cut, names become
excerpts.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self
from urllib.parse import SplitResult, quote, urlsplit

import httpx
import msgspec

from loadstone.core.errors import InputError, TargetError
from loadstone.core.secrets import blank_bytes, keys_in
from loadstone.core.text import error_text, excerpt
from loadstone.measure.wire.answer import Answer
from loadstone.measure.wire.coding import Unpacker
from loadstone.measure.wire.request import RequestBody, make_body, make_path, new_answer
from loadstone.measure.wire.tolerant import load, storable
from loadstone.workload.request import SGLANG, TRITON_ENDPOINTS, RequestSpec
from loadstone.workload.word_list import WORDS

PROMPT = " ".join(WORDS[:8])
IDS = list(range(100, 108))
"""Such a prompt SGLang takes though it has no tokenizer (--skip-tokenizer-init), and every
vocabulary has these."""

_TIMEOUT_S = 60.0
_CONNECT_S = 10.0
_PROBE_S = 3.0
_SPARE_S = 5.0
_PATIENCE_S = 10.0
"""For a page that a run can do without, and for all of them; one that comes within _PROMPT_S takes
nothing of it."""
_PROMPT_S = 0.1
_BODY_BYTES = 4 * 1024 * 1024
_WANTS_CERTIFICATE = (
    "it requires a client certificate, which is not supported; use an address without this"
)
_OF_THE_BODY = (b"content-encoding", b"content-length", b"transfer-encoding")
_VERSION = re.compile(r"api-version=[\w.-]+")
"""Azure's, which its servers want; other queries may hold keys."""
_PAUSES_S = (0.1, 0.5, 1.0)
"""Before a request is sent again whose connection was cut: one that a restart or a gateway cut is
soon served."""


class Reply(NamedTuple):
    """Holds an answer, whose body is read here and not by httpx; `whole`: the body is all of it."""

    answer: httpx.Response
    body: bytes
    whole: bool


def send(http: httpx.Client, request: httpx.Request, *, limit_s: float, most_bytes: int) -> Reply:
    """Return the answer and the beginning of its body. Raises httpx.HTTPError; ReadTimeout where it
    does not end in time."""
    with _limit_time(limit_s, request):
        answer = http.send(request, stream=True)
        with contextlib.closing(answer):
            body = _read(answer, most_bytes)
    return Reply(answer, body[:most_bytes], len(body) <= most_bytes)


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
        for each in sockets:
            with contextlib.suppress(OSError):
                # Of TLS too: its own way would pull the session from under who reads it.
                socket.socket.shutdown(each, socket.SHUT_RDWR)

    def end() -> None:
        over.set()
        shut()

    def on_trace(event: str, about: dict[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            sockets.append(about["return_value"].get_extra_info("socket"))
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


def _read(answer: httpx.Response, most_bytes: int) -> bytes:
    """Return the body, or its beginning: then longer than `most_bytes`. Raises httpx.DecodingError.

    httpx would unpack each piece whole, and as many times over as the header says: 7 kB can become
    gigabytes.
    """
    coding = answer.headers.get("content-encoding", "identity").strip().lower()
    unpacker = Unpacker.choose(coding)
    if unpacker is None and coding != "identity":
        raise httpx.DecodingError(f"its answer is compressed by {coding}, though asked not to be")
    body = bytearray()
    for piece in answer.iter_raw():
        try:
            body += piece if unpacker is None else unpacker.feed(piece, most_bytes + 1 - len(body))
        except zlib.error as error:
            raise httpx.DecodingError(f"its compressed answer cannot be read: {error}") from error
        if len(body) > most_bytes:
            return bytes(body)
    if unpacker is not None and not unpacker.whole:
        raise httpx.DecodingError("its compressed answer is cut")
    return bytes(body)


# --- a server -------------------------------------------------------------------------------------


class Trial(NamedTuple):
    """Holds what came of one request. `error`: why it is no answer, one line; None: it is one.
    `response`: over HTTP."""

    answer: Answer
    error: str | None
    response: httpx.Response | None = None

    @property
    def status(self) -> int:
        return self.response.status_code if self.response is not None else 0


class TritonModel(NamedTuple):
    """Holds a model of Triton's by its configuration: `types` are its inputs' names and KServe's
    datatypes, as far as said.

    where     what to name in a message about it
    batched   its tensors have a first dimension for the batch
    """

    where: str
    types: dict[str, str]
    batched: bool = False


class Server:
    """Is the control plane of one server, over whatever protocol. Leave its block before the run.

    parts, origin, base_path   its URL; without the path; the path, up to and without `/v1`
    """

    parts: SplitResult
    origin: str
    base_path: str = ""

    def __init__(self) -> None:
        self.cuts: Counter[str] = Counter()
        """How often connections were cut under requests, by URL; each was sent again."""
        self.missed: list[str] = []
        """Why pages that a run can do without were not had, a line each."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        raise NotImplementedError

    @property
    def url(self) -> str:
        return self.origin + self.base_path

    def send_once(
        self,
        spec: RequestSpec,
        prompt: str | Sequence[int] | None = None,
        *,
        tokens: int | None = None,
        keep_text: bool = False,
    ) -> Trial:
        """Return one request, sent and read as in a run. Raises TargetError where there is no
        server.

        tokens   the most in its answer; but as many at least as a user's own fields demand
        """
        if prompt is None:
            prompt = IDS if spec.endpoint == SGLANG else PROMPT
        content: object = (
            [{"role": "user", "content": prompt}] if spec.endpoint == "chat" else prompt
        )
        # A token of Triton's may have no text, and is not seen where the model does not count.
        tokens = tokens or (4 if spec.endpoint in TRITON_ENDPOINTS else 1)
        tokens = max(tokens, spec.least_tokens, _least_tokens(spec.extra))
        rendered = RequestBody(make_body(spec)).render(msgspec.json.encode(content), tokens)
        answer = new_answer(spec.endpoint, stream=spec.stream, keep_text=keep_text)
        return self._exchange(spec, rendered, answer, tokens)

    def _exchange(self, spec: RequestSpec, rendered: bytes, answer: Answer, tokens: int) -> Trial:
        raise NotImplementedError

    def tokenize(self, model: str, text: str) -> list[int] | None:
        """Return the ids of a text's tokens by the server's own tokenizer; None where it offers
        none."""
        return None

    def triton_about(self) -> dict[str, Any]:
        """Return what a Triton server says of itself: `name`, `version`. Raises TargetError where
        none answers."""
        raise NotImplementedError

    def triton_index(self) -> Any:
        """Return the index of its models, [{"name": …, "state": …}, …], or whatever it gives."""
        raise NotImplementedError

    def triton_model(self, name: str) -> TritonModel:
        raise NotImplementedError


class HttpServer(Server):
    """Talks HTTP; `headers` go with every request; what they hold is blanked where the server
    repeats it in what is told. Proxies in the environment are not used, only `proxy` is.
    """

    def __init__(
        self, url: str, headers: Sequence[tuple[str, str]], proxy: str | None = None
    ) -> None:
        super().__init__()
        self.parts = check_url(url)
        self.query = f"?{self.parts.query}" if self.parts.query else ""
        whole = self.parts.path.rstrip("/")
        self.base_path = (
            re.sub("(/chat)?/completions$", "", whole) if self.query else whole.removesuffix("/v1")
        )
        self.origin = f"{self.parts.scheme}://{self.parts.netloc}"
        self._proxy = proxy
        self._keys = keys_in(headers)
        self._patience_s = _PATIENCE_S
        self._scheme_is_right = False
        timeout = httpx.Timeout(_TIMEOUT_S, connect=_CONNECT_S)
        self._http = http_client(self.url, headers, proxy, timeout)

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, *, must_allow: bool = False) -> httpx.Response | None:
        """Return the answer if it is a 200, else None.

        `must_allow`: raises TargetError where there is no server, or it wants a key, or another
        one, or sends one elsewhere; else such a page is done without.
        """
        answer = self._ask("GET", path, None) if must_allow else self._ask_spare("GET", path, None)
        if answer is None:
            return None
        if must_allow and (answer.status_code in (401, 403) or answer.has_redirect_location):
            raise TargetError(refusal(self.url + path, answer))
        return answer if answer.status_code == 200 else None

    def get_json(self, path: str, *, must_allow: bool = False) -> Any:
        answer = self.get(path, must_allow=must_allow)
        return storable(load(answer.content)) if answer is not None else None

    def answer(self, path: str) -> httpx.Response:
        """Return the answer, whatever its status. Raises TargetError where there is no server."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: bytes) -> httpx.Response:
        """Return the answer to a JSON body, whatever its status. Raises TargetError where there is
        no server."""
        return self._ask("POST", path, body)

    def post_json(self, path: str, fields: dict[str, Any]) -> Any:
        """Return the JSON in an answer that is a 200, else None; also where the server gives none
        in time."""
        answer = self._ask_spare("POST", path, msgspec.json.encode(fields))
        return (
            storable(load(answer.content))
            if answer is not None and answer.status_code == 200
            else None
        )

    def _exchange(self, spec: RequestSpec, rendered: bytes, answer: Answer, tokens: int) -> Trial:
        response = self.post(make_path(spec), rendered)
        if response.status_code != 200:
            return Trial(
                answer, f"HTTP {response.status_code}: {error_text(response.content)}", response
            )
        answer.feed(response.content)
        answer.finish()
        error = answer.error
        if error is None and answer.finish_reason is None and not answer.done:
            error = excerpt(response.content) or "an empty answer"
        return Trial(answer, error, response)

    def tokenize(self, model: str, text: str) -> list[int] | None:
        """Return by its own /tokenize: vLLM's and SGLang's form, or llama.cpp's."""
        fields = {"model": model, "prompt": text, "content": text, "add_special_tokens": False}
        answer = self.post_json("/tokenize", fields)
        tokens = answer.get("tokens") if isinstance(answer, dict) else None
        if not isinstance(tokens, list) or not all(
            isinstance(token, int) and token >= 0 for token in tokens
        ):
            return None
        return tokens

    def triton_about(self) -> dict[str, Any]:
        about = self.get_json("/v2", must_allow=True)
        if not isinstance(about, dict) or "name" not in about:
            raise TargetError(
                f"{self.url}/v2: no Triton server answers there; correct the URL, or --endpoint"
            )
        return about

    def triton_index(self) -> Any:
        return self.post_json("/v2/repository/index", {"ready": True})

    def triton_model(self, name: str) -> TritonModel:
        page = f"/v2/models/{quote(name, safe='')}/config"
        config = self.get_json(page, must_allow=True)
        return TritonModel(
            self.url + page, {str(entry.get("name")): "" for entry in objects(config, "input")}
        )

    def _ask_spare(self, method: str, path: str, body: bytes | None) -> httpx.Response | None:
        """Return the answer of a page that a run can do without, whatever its status; None where
        none comes in time."""
        if self._patience_s < _PROMPT_S:
            return None
        begun_s = time.monotonic()
        try:
            return self._ask(method, path, body, min(_SPARE_S, self._patience_s))
        except TargetError as error:
            self.missed.append(f"{error}; measured without this page")
            return None
        finally:
            self._patience_s -= max(0.0, time.monotonic() - begun_s - _PROMPT_S)

    def _ask(
        self, method: str, path: str, body: bytes | None, limit_s: float | None = None
    ) -> httpx.Response:
        limit_s = limit_s or _TIMEOUT_S
        headers = {"Content-Type": "application/json"} if body is not None else {}
        for pause_s in (*_PAUSES_S, None):
            try:
                request = self._http.build_request(method, path, content=body, headers=headers)
                reply, content, _ = send(
                    self._http, request, limit_s=limit_s, most_bytes=_BODY_BYTES
                )
                break
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                if pause_s is None or not _is_cut(error):
                    raise TargetError(self._explain_failure(error, path, limit_s)) from error
                if not self.cuts:
                    self._check_scheme()
                    self._check_http(path)
                self.cuts[f"{self.url}{path}"] += 1
                time.sleep(pause_s)
        if _is_of_tls(reply.status_code, content):
            if self.parts.scheme == "https":
                raise TargetError(f"{self.origin}: {_WANTS_CERTIFICATE}")
            self._check_scheme()
        # The body is unpacked already, and may have been cut.
        headers_left = [
            (name, value) for name, value in reply.headers.raw if name.lower() not in _OF_THE_BODY
        ]
        if method == "POST" or reply.status_code != 200:
            # It is for people; what describes the server must stay as it is until its model is
            # known.
            content = blank_bytes(content, self._keys)
            headers_left = [(name, blank_bytes(value, self._keys)) for name, value in headers_left]
        answer = httpx.Response(reply.status_code, headers=headers_left, content=content)
        answer.encoding = "utf-8"
        return answer

    def _explain_failure(
        self, error: httpx.HTTPError | httpx.InvalidURL, path: str, limit_s: float
    ) -> str:
        """Return why there is no answer, in one line. Raises TargetError where the URL should begin
        by the other scheme."""
        text, where = str(error), self.url + path
        reason = excerpt(text) or type(error).__name__
        if self._proxy is not None:
            where += f" through --proxy {self._proxy}"
        match error:
            case httpx.ConnectError() if "CERTIFICATE_VERIFY" in text:
                return (
                    f"{self.origin}: its certificate is not trusted ({reason});"
                    f" {_explain_certificate(text)}"
                )
            case httpx.ConnectError() if not _is_cut(error):
                self._check_scheme()
                if "[SSL" in text:
                    return f"{self.origin}: TLS failed ({reason}); {_explain_handshake(text)}"
                if self._proxy is not None:
                    return (
                        f"--proxy {self._proxy}: no proxy answers there ({reason}); start it, or"
                        " correct --proxy"
                    )
                return (
                    f"{self.origin}: no server answers there ({reason}); start it, or correct"
                    " the URL"
                )
            case httpx.ConnectTimeout():
                self._check_scheme()  # a server that waits for the rest of what it takes for HTTP
                return (
                    f"{self.origin}: no connection within {_CONNECT_S:.0f} s; start the server, or"
                    " correct the URL"
                )
            case httpx.TimeoutException():
                return (
                    f"{where}: no whole answer within {limit_s:.2g} s; check that the server is"
                    " healthy"
                )
            case httpx.ProxyError():
                way = f"the proxy does not lead to {self.origin} ({reason})"
                return f"--proxy {self._proxy}: {way}; correct --proxy or the URL"
            case httpx.DecodingError():
                return f"{where}: {reason}; correct the server, or the URL"
            case _ if "CERTIFICATE_REQUIRED" in text:
                return f"{self.origin}: {_WANTS_CERTIFICATE}"
        self._check_scheme()
        if _is_cut(error):
            return (
                f"{where}: the connection was cut before the answer's end, {len(_PAUSES_S) + 1}"
                f" times ({reason}); see the server's log, or correct the URL"
            )
        return f"{where}: not an HTTP server ({reason}); correct the URL"

    def _check_http(self, path: str) -> None:
        """Raises TargetError where the server says something that is not HTTP, and leaves."""
        if self._proxy is None and self.parts.scheme == "http":
            with contextlib.suppress(OSError):
                words = _first_words(self.parts)
                if words and not words.startswith(b"HTTP/"):
                    what = f"not an HTTP server (it says {excerpt(words, 60)})"
                    raise TargetError(f"{self.url}{path}: {what}; correct the URL")

    def _check_scheme(self) -> None:
        """Raises TargetError where the server speaks HTTP without TLS though the URL says https, or
        the reverse."""
        if self._scheme_is_right:
            return
        other = "http" if self.parts.scheme == "https" else "https"
        if self._proxy is None and _speaks(other, self.parts):
            what = "over TLS" if other == "https" else "without TLS"
            raise TargetError(
                f"{self.origin}: a server answers there, but {what}; write"
                f" {other}://{self.parts.netloc}"
            )
        self._scheme_is_right = True


def _place(parts: SplitResult) -> tuple[str, int]:
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _first_words(parts: SplitResult) -> bytes:
    """Return what something that listens at a URL's host and port says to a plain GET; nothing
    where it says nothing.

    Raises OSError.
    """
    with socket.create_connection(_place(parts), timeout=_PROBE_S) as plain:
        plain.sendall(
            f"GET / HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode()
        )
        return plain.recv(4096)


def _is_cut(error: BaseException | None) -> bool:
    """Return whether a connection that was made, or almost, was cut: by a restart, an overload,
    something between."""
    if isinstance(error, httpx.RemoteProtocolError) and (
        "disconnected" in str(error) or "closed" in str(error)
    ):
        return True
    while error is not None:
        if isinstance(
            error, ConnectionResetError | BrokenPipeError | ConnectionAbortedError | ssl.SSLEOFError
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


def _speaks(scheme: str, parts: SplitResult) -> bool:
    """Return whether something that speaks this scheme listens at a URL's host and port, whatever
    the URL's own scheme."""
    try:
        if scheme == "https":
            believing = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            believing.check_hostname, believing.verify_mode = False, ssl.CERT_NONE
            with socket.create_connection(_place(parts), timeout=_PROBE_S) as plain:
                believing.wrap_socket(plain, server_hostname=parts.hostname).close()
            return True
        answer = _first_words(parts)
        # A TLS server may say in plain HTTP that it wants another.
        return answer.startswith(b"HTTP/") and not _is_of_tls(
            400 * (answer[9:12] == b"400"), answer
        )
    except (OSError, ValueError):
        return False


def _is_of_tls(status: int, body: bytes) -> bool:
    """Return whether an answer is a TLS server's complaint: plain HTTP was spoken to it, or no
    certificate shown."""
    return status == 400 and re.search(rb"HTTPS|\bSSL|\bTLS", body) is not None


def _explain_certificate(error: str) -> str:
    """Return what to do about a certificate that OpenSSL does not trust."""
    if "mismatch" in error:
        return "use the host name in the certificate, or have this one added to the certificate"
    if "expired" in error or "not yet valid" in error:
        return "renew it, or set this machine's clock"
    named = os.environ.get("SSL_CERT_FILE")
    if named is not None:
        return (
            f"SSL_CERT_FILE={excerpt(named)} does not hold its issuer's certificate; name a file"
            " that does, in PEM"
        )
    return "set SSL_CERT_FILE to its issuer's certificate (to its own if it is self-signed)"


def _least_tokens(extra: dict[str, Any]) -> int:
    """Return the least number of tokens that a user's own fields ask for: vLLM and SGLang refuse a
    shorter limit."""
    sampling = extra.get("sampling_params")
    least = (
        extra.get("min_tokens"),
        sampling.get("min_new_tokens") if isinstance(sampling, dict) else None,
    )
    return max((tokens for tokens in least if isinstance(tokens, int)), default=0)


def objects(document: object, name: str) -> list[dict[str, Any]]:
    """Return the objects in a document's list of that name; none where there is no such list."""
    entries = document.get(name) if isinstance(document, dict) else None
    return (
        [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    )


def _explain_handshake(error: str) -> str:
    """Return what to do where no TLS session comes about, for another reason than trust."""
    if "UNRECOGNIZED_NAME" in error:
        return "write the name that its certificate is for"
    if "WRONG_VERSION_NUMBER" in error:
        return "it does not speak TLS; correct the URL"
    return (
        "the server must offer TLS 1.2 or newer, with a cipher that this machine takes; see its log"
    )


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
    endpoint = re.search(r"/v1/(chat/completions|completions|models)/?$", parts.path)
    if endpoint is not None and not parts.query:
        raise InputError(f"{url}: leave out {endpoint[0]}; --endpoint says what is asked there")
    return parts


def shown(url: str) -> str:
    """Return what may be said of a URL, whatever it is: without user, password, and what begins
    with ? or #."""
    scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", url)
    begin = scheme[0] if scheme is not None else ""
    _, at, place = url[len(begin) :].rpartition("@")
    return excerpt(f"{begin}{'…@' if at else ''}{re.split('[?#]', place)[0]}", 120)


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


def refusal(where: str, answer: httpx.Response) -> str:
    """Return one line about an answer that is no 200: where, what, remedy."""
    if answer.has_redirect_location:
        to = excerpt(answer.headers["location"])
        return f"{where}: HTTP {answer.status_code}: it is at {to}; give that server's URL"
    status = answer.status_code
    behind = "a proxy finds no engine behind it, or not in time; check that the engine runs"
    remedy = {
        401: "set LOADSTONE_API_KEY or OPENAI_API_KEY",
        403: "set LOADSTONE_API_KEY or OPENAI_API_KEY",
        404: "check --model and the URL",
        429: "the server limits requests; raise its limit",
        502: behind,
        503: behind,
        504: behind,
    }.get(status, "the server refuses the simplest request; see its log")
    if status == 401 and answer.headers.get("www-authenticate", "").lower().startswith("basic"):
        remedy = (
            "it requires a user name and password: -H 'Authorization: Basic …', the base64 of"
            " name:password"
        )
    return f"{where}: HTTP {status}: {error_text(answer.content)}; {remedy}"
