"""Asks a server single small things before the run: its pages, and requests that are sent and read
as in the run.

Nothing that the server says is believed further than it is used: bodies are cut, names become
excerpts.
"""

import os
import re
import ssl
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import httpx
import msgspec

from loadstone.core.errors import TargetError
from loadstone.core.secrets import blank_bytes, keys_in
from loadstone.core.text import error_text, excerpt
from loadstone.measure.engines.http import check_url, http_client, read_first_words, send
from loadstone.measure.wire.answer import Answer
from loadstone.measure.wire.request import RequestBody, make_body, make_path
from loadstone.measure.wire.tolerant import load, storable
from loadstone.measure.wire.wire import find_wire
from loadstone.workload.request import RequestSpec

_BODY_BYTES = 4 * 1024 * 1024
_FRAMING = (b"content-encoding", b"content-length", b"transfer-encoding")
"""Headers that say how the body came, which may have been cut since."""


class Patience(NamedTuple):
    """How long a server is waited for, in seconds: for a connection, a whole answer, a page that a
    run can do without, all such pages together; and before each time that a request is sent again
    whose connection was cut, as by a restart or a gateway.

    prompt_s   a page that comes within this takes nothing of `spare_pages_s`
    """

    connect_s: float = 10.0
    answer_s: float = 60.0
    spare_page_s: float = 5.0
    spare_pages_s: float = 10.0
    prompt_s: float = 0.1
    pauses_s: tuple[float, ...] = (0.1, 0.5, 1.0)


PATIENCE = Patience()


class Trial(NamedTuple):
    """Holds the outcome of one request. `error`: why it is no answer, one line; None: it is one."""

    answer: Answer
    error: str | None
    response: httpx.Response

    @property
    def status(self) -> int:
        return self.response.status_code


class Server:
    """A server to be measured, asked over HTTP; leave its block before the run.

    `headers` go with every request; what they hold is blanked where the server repeats it in what
    is told. Proxies in the environment are not used, only `proxy` is.
    parts, origin, base_path   its URL; without the path; the path, up to and without `/v1`
    query                      what its URL says of an API's version, with its question mark
    cuts                       how often connections were cut under requests, by URL; each was sent
                               again
    missed                     why pages that a run can do without were not had, a line each
    """

    def __init__(
        self,
        url: str,
        headers: Sequence[tuple[str, str]],
        proxy: str | None = None,
        patience: Patience | None = None,
        extra_body: object = None,
    ) -> None:
        self.parts = check_url(url)
        self.query = f"?{self.parts.query}" if self.parts.query else ""
        path = self.parts.path.rstrip("/")
        self.base_path = (
            re.sub("(/chat)?/completions$|/(messages|responses)$", "", path)
            if self.query
            else path.removesuffix("/v1")
        )
        self.origin = f"{self.parts.scheme}://{self.parts.netloc}"
        self.cuts: Counter[str] = Counter()
        self.missed: list[str] = []
        self._proxy = proxy
        self._keys = keys_in(headers, extra_body)
        self._patience = patience = patience or PATIENCE
        self._spare_s = patience.spare_pages_s
        timeout = httpx.Timeout(patience.answer_s, connect=patience.connect_s)
        self._http = http_client(self.url, headers, proxy, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    @property
    def url(self) -> str:
        return self.origin + self.base_path

    # --- pages ------------------------------------------------------------------------------------

    def get(self, path: str, *, must_allow: bool = False) -> httpx.Response | None:
        """Return the answer if it is a 200, else None.

        `must_allow`: raises TargetError where there is no server, or it wants a key, or another
        one, or sends one elsewhere; else such a page is done without.
        """
        if not must_allow:
            return self._ask_spare("GET", path, None)
        answer = self.answer(path)
        if answer.status_code in (401, 403) or answer.has_redirect_location:
            raise TargetError(refusal(self.url + path, answer))
        return _take_ok(answer)

    def get_json(self, path: str, *, must_allow: bool = False) -> Any:
        """Return the JSON of a page as `get` does."""
        return _read_json(self.get(path, must_allow=must_allow))

    def answer(self, path: str) -> httpx.Response:
        """Return the answer, whatever its status. Raises TargetError where there is no server."""
        return self._ask("GET", path, None, self._patience.answer_s)

    def post(
        self, path: str, body: bytes, headers: Sequence[tuple[str, str]] = ()
    ) -> httpx.Response:
        """Return the answer to a JSON body, whatever its status; `headers` where the user gives no
        others. Raises TargetError where there is no server."""
        return self._ask("POST", path, body, self._patience.answer_s, headers)

    def options(self, path: str) -> httpx.Response:
        """Ask which methods a path takes. Raises TargetError where there is no server."""
        return self._ask("OPTIONS", path, None, self._patience.answer_s)

    def post_json(self, path: str, fields: dict[str, Any]) -> Any:
        """Return the JSON in an answer that is a 200, else None; also where the server gives none
        in time."""
        return _read_json(self._ask_spare("POST", path, msgspec.json.encode(fields)))

    def count_tokens(self, model: str, text: str) -> int | None:
        """Ask the server for the tokens of a text alone, as `tokenize` does."""
        tokens = self.tokenize(model, text)
        return None if tokens is None else len(tokens)

    def tokenize(self, model: str, text: str) -> list[int] | None:
        """Ask the server for the ids of a text's tokens; None where it has no /tokenize, in vLLM's
        and SGLang's form, llama.cpp's or TEI's."""
        fields = {"model": model, "add_special_tokens": False}
        fields |= dict.fromkeys(("prompt", "content", "inputs"), text)
        answer = self.post_json("/tokenize", fields)
        tokens = answer.get("tokens") if isinstance(answer, dict) else None
        if isinstance(answer, list) and len(answer) == 1 and isinstance(answer[0], list):
            tokens = [entry.get("id") for entry in answer[0] if isinstance(entry, dict)]
        if not isinstance(tokens, list):
            return None
        are_ids = all(isinstance(token, int) and token >= 0 for token in tokens)
        return tokens if are_ids else None

    # --- requests ---------------------------------------------------------------------------------

    def send_once(
        self,
        spec: RequestSpec,
        prompt: str | Sequence[int] | Sequence[str] | None = None,
        *,
        tokens: int | None = None,
        keep_text: bool = False,
        previous: str | None = None,
    ) -> Trial:
        """Send one request as in a run, and return what came of it. Raises TargetError where there
        is no server.

        tokens    the most in its answer; but as many at least as a user's own fields demand
        previous  the server's name of a stored answer that it goes on from
        """
        wire = find_wire(spec.endpoint)
        content: object = wire.probe_prompt if prompt is None else prompt
        if wire.takes_messages:
            content = [{"role": "user", "content": content}]
        demanded = _find_count(spec.extra, wire.least_field)
        tokens = max(tokens or wire.probe_tokens, spec.least_tokens, demanded)
        body = RequestBody(make_body(spec), wire.spell)
        rendered = body.render(msgspec.json.encode(content), tokens, previous)
        response = self.post(make_path(spec), rendered, wire.headers)
        answer = wire.answer(stream=spec.stream, keep_text=keep_text)
        if response.status_code != 200:
            error = f"HTTP {response.status_code}: {error_text(response.content)}"
            return Trial(answer, error, response)
        answer.feed(response.content)
        answer.finish()
        answer.take_headers({name.lower(): value for name, value in response.headers.raw})
        if answer.error is None and answer.finish_reason is None and not answer.done:
            return Trial(answer, excerpt(response.content) or "an empty answer", response)
        return Trial(answer, answer.error, response)

    def _ask_spare(self, method: str, path: str, body: bytes | None) -> httpx.Response | None:
        """Return the answer of a page that a run can do without, if it is a 200 that comes in
        time, else None."""
        if self._spare_s < self._patience.prompt_s:
            return None
        begun_s = time.monotonic()
        try:
            limit_s = min(self._patience.spare_page_s, self._spare_s)
            return _take_ok(self._ask(method, path, body, limit_s))
        except TargetError as error:
            self.missed.append(f"{error}; measured without this page")
            return None
        finally:
            took_s = time.monotonic() - begun_s
            self._spare_s -= max(0.0, took_s - self._patience.prompt_s)

    def _ask(
        self,
        method: str,
        path: str,
        body: bytes | None,
        limit_s: float,
        added: Sequence[tuple[str, str]] = (),
    ) -> httpx.Response:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        headers |= {name: value for name, value in added if name not in self._http.headers}
        for pause_s in (*self._patience.pauses_s, None):
            try:
                request = self._http.build_request(method, path, content=body, headers=headers)
                reply = send(self._http, request, limit_s=limit_s, max_bytes=_BODY_BYTES)
                break
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                if pause_s is None or not _is_cut(error):
                    raise TargetError(self._explain_failure(error, path, limit_s)) from error
                if not self.cuts:
                    self._check_http(path)
                self.cuts[f"{self.url}{path}"] += 1
                time.sleep(pause_s)
        content, status = reply.body, reply.answer.status_code
        headers_left = [
            header for header in reply.answer.headers.raw if header[0].lower() not in _FRAMING
        ]
        if method == "POST" or status != 200:
            # It is for people; what describes the server must stay as it is until its model is
            # known.
            content = blank_bytes(content, self._keys)
            headers_left = [(name, blank_bytes(value, self._keys)) for name, value in headers_left]
        answer = httpx.Response(status, headers=headers_left, content=content)
        answer.encoding = "utf-8"
        return answer

    def _check_http(self, path: str) -> None:
        """Raises TargetError where the server says something that is not HTTP, and leaves."""
        if self._proxy is not None or self.parts.scheme != "http":
            return
        words = read_first_words(self.parts)
        if words and not words.startswith(b"HTTP/"):
            raise TargetError(
                f"{self.url}{path}: not an HTTP server (it says {excerpt(words, 60)}); correct the"
                " URL"
            )

    def _explain_failure(
        self, error: httpx.HTTPError | httpx.InvalidURL, path: str, limit_s: float
    ) -> str:
        """Return why there is no answer, in one line."""
        text, place = str(error), self.url + path
        reason = excerpt(text) or type(error).__name__
        if self._proxy is not None:
            place += f" through --proxy {self._proxy}"
        if _is_cut(error):
            return (
                f"{place}: the connection was cut before the answer's end,"
                f" {len(self._patience.pauses_s) + 1} times ({reason}); see the server's log, or"
                " correct the URL"
            )
        if "[SSL" in text:
            return f"{self.origin}: {_explain_tls(text, reason)}"
        match error:
            case httpx.ConnectError() if self._proxy is not None:
                return (
                    f"--proxy {self._proxy}: no proxy answers there ({reason}); start it, or"
                    " correct --proxy"
                )
            case httpx.ConnectError():
                return (
                    f"{self.origin}: no server answers there ({reason}); start it, or correct"
                    " the URL"
                )
            case httpx.ConnectTimeout():
                return (
                    f"{self.origin}: no connection within {self._patience.connect_s:.0f} s; start"
                    " the server, or correct the URL"
                )
            case httpx.TimeoutException():
                return (
                    f"{place}: no whole answer within {limit_s:.2g} s; check that the server is"
                    " healthy"
                )
            case httpx.ProxyError():
                way = f"the proxy does not lead to {self.origin} ({reason})"
                return f"--proxy {self._proxy}: {way}; correct --proxy or the URL"
            case httpx.DecodingError():
                return f"{place}: {reason}; correct the server, or the URL"
        return f"{place}: not an HTTP server ({reason}); correct the URL"


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


_TLS_REMEDIES = (
    ("mismatch", "use the host name in the certificate, or have this one added to the certificate"),
    ("expired", "renew it, or set this machine's clock"),
    ("not yet valid", "renew it, or set this machine's clock"),
    (
        "CERTIFICATE_REQUIRED",
        "it requires a client certificate, which is not supported; use an address without this",
    ),
    ("UNRECOGNIZED_NAME", "write the name that its certificate is for"),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS; write http://, or correct the URL"),
)
"""Words in OpenSSL's errors, and what to do."""


def _explain_tls(error: str, reason: str) -> str:
    """Return why no TLS session comes about, and what to do."""
    remedy = next((remedy for word, remedy in _TLS_REMEDIES if word in error), None)
    if "CERTIFICATE_VERIFY" not in error:
        remedy = remedy or (
            "the server must offer TLS 1.2 or newer, with a cipher that this machine takes; see"
            " its log"
        )
        return f"TLS failed ({reason}); {remedy}"
    named = os.environ.get("SSL_CERT_FILE")
    if remedy is None and named is not None:
        remedy = (
            f"SSL_CERT_FILE={excerpt(named)} does not hold its issuer's certificate; name a file"
            " that does, in PEM"
        )
    remedy = (
        remedy or "set SSL_CERT_FILE to its issuer's certificate (to its own if it is self-signed)"
    )
    return f"its certificate is not trusted ({reason}); {remedy}"


def _take_ok(answer: httpx.Response) -> httpx.Response | None:
    return answer if answer.status_code == 200 else None


def _read_json(answer: httpx.Response | None) -> Any:
    return storable(load(answer.content)) if answer is not None else None


def _find_count(fields: Any, path: Sequence[str]) -> int:
    """Return the number at a path in a user's own fields; 0 where there is none."""
    for name in path:
        fields = fields.get(name) if isinstance(fields, dict) else None
    return fields if isinstance(fields, int) else 0


_BEHIND = "a proxy finds no engine behind it, or not in time; check that the engine runs"
_NO_KEY = "set LOADSTONE_API_KEY or OPENAI_API_KEY"
_REMEDIES = {
    401: _NO_KEY,
    403: _NO_KEY,
    404: "check --model and the URL",
    429: "the server limits requests; raise its limit",
    502: _BEHIND,
    503: _BEHIND,
    504: _BEHIND,
}


def refusal(place: str, answer: httpx.Response) -> str:
    """Return one line about an answer that is no 200: where, what, remedy."""
    status = answer.status_code
    if answer.has_redirect_location:
        location = excerpt(answer.headers["location"])
        return f"{place}: HTTP {status}: it is at {location}; give that server's URL"
    remedy = _REMEDIES.get(status, "the server refuses the simplest request; see its log")
    if status == 401 and answer.headers.get("www-authenticate", "").lower().startswith("basic"):
        remedy = (
            "it requires a user name and password: -H 'Authorization: Basic …', the base64 of"
            " name:password"
        )
    return f"{place}: HTTP {status}: {error_text(answer.content)}; {remedy}"
