"""The control plane of a server: single small requests over httpx, before the run.

Nothing that the server says is believed further than it is used: bodies are cut, names become excerpts.
"""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
from collections.abc import Sequence
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httpx
import msgspec

from loadstone.core.errors import InputError, TargetError
from loadstone.core.secrets import blank_bytes, keys_in
from loadstone.core.text import error_text, excerpt
from loadstone.measure.engines.bounded import send
from loadstone.measure.wire.tolerant import storable

_TIMEOUT_S = 60.0
_CONNECT_S = 10.0
_PROBE_S = 3.0
_BODY_BYTES = 4 * 1024 * 1024
_WANTS_CERTIFICATE = "it requires a client certificate, which is not supported; use an address without this"


class Server:
    """The control plane of one server: `api` is the URL up to and without `/v1`. Close it before the run.

    `headers` go with every request; what they hold is blanked where the server repeats it in what is told. Proxies in
    the environment are not used, only `proxy` is.
    """

    def __init__(self, url: str, headers: Sequence[tuple[str, str]], proxy: str | None = None) -> None:
        self.parts = check_url(url)
        path = self.parts.path.rstrip("/")
        self.base_path = path.removesuffix("/v1")
        self.origin = f"{self.parts.scheme}://{self.parts.netloc}"
        self._proxy = proxy
        self._keys = keys_in(headers)
        sent = httpx.Headers({"Accept-Encoding": "identity"})
        sent.update(dict(headers))
        self._http = httpx.Client(
            base_url=self.origin + self.base_path,
            headers=sent,
            timeout=httpx.Timeout(_TIMEOUT_S, connect=_CONNECT_S),
            trust_env=False,
            proxy=proxy,
            # A kept connection would hold a thread of llama-server's, and some servers and proxies cut it unasked.
            limits=httpx.Limits(max_keepalive_connections=0),
            verify=trust(self.parts.scheme),
        )

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, *, must_allow: bool = False) -> httpx.Response | None:
        """The answer if it is a 200, else None. Raises TargetError where there is no server.

        `must_allow`: also where the server wants a key, or another one, or sends one elsewhere.
        """
        answer = self._ask("GET", path, None)
        if must_allow and (answer.status_code in (401, 403) or answer.has_redirect_location):
            raise TargetError(refusal(self.where(path), answer))
        return answer if answer.status_code == 200 else None

    def get_json(self, path: str, *, must_allow: bool = False) -> Any:
        answer = self.get(path, must_allow=must_allow)
        return _json(answer) if answer is not None else None

    def answer(self, path: str) -> httpx.Response:
        """The answer, whatever its status. Raises TargetError where there is no server."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: bytes) -> httpx.Response:
        """The answer to a JSON body, whatever its status. Raises TargetError where there is no server."""
        return self._ask("POST", path, body)

    def post_json(self, path: str, fields: dict[str, Any]) -> Any:
        """The JSON in an answer that is a 200, else None."""
        answer = self.post(path, msgspec.json.encode(fields))
        return _json(answer) if answer.status_code == 200 else None

    def where(self, path: str) -> str:
        """A path of this server's as one would type it."""
        return f"{self.origin}{self.base_path}{path}"

    def _ask(self, method: str, path: str, body: bytes | None) -> httpx.Response:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        try:
            request = self._http.build_request(method, path, content=body, headers=headers)
            answer, said, _ = send(self._http, request, limit_s=_TIMEOUT_S, most_bytes=_BODY_BYTES)
        except httpx.ConnectError as error:
            if "CERTIFICATE_VERIFY" in str(error):
                raise TargetError(
                    f"{self.origin}: its certificate is not trusted ({_reason(error)}); {_cure(str(error))}"
                ) from error
            self._check_scheme()
            if "[SSL" in str(error):
                raise TargetError(
                    f"{self.origin}: TLS failed ({_reason(error)}); write the name that its certificate is for"
                ) from error
            if self._proxy is not None:
                raise TargetError(
                    f"--proxy {self._proxy}: no proxy answers there ({_reason(error)}); start it, or correct --proxy"
                ) from error
            raise TargetError(
                f"{self.origin}: no server answers there ({_reason(error)}); start it, or correct the URL"
            ) from error
        except httpx.ConnectTimeout as error:
            self._check_scheme()  # a server that waits for the rest of what it takes for HTTP
            raise TargetError(
                f"{self.origin}: no connection within {_CONNECT_S:.0f} s; start the server, or correct the URL"
            ) from error
        except httpx.TimeoutException as error:
            raise TargetError(
                f"{self.origin}{path}: no whole answer within {_TIMEOUT_S:.0f} s; check that the server is healthy"
            ) from error
        except httpx.ProxyError as error:
            raise TargetError(
                f"--proxy {self._proxy}: the proxy does not lead to {self.origin} ({_reason(error)}); "
                "correct --proxy or the URL"
            ) from error
        except httpx.DecodingError as error:
            raise TargetError(f"{self.origin}{path}: {_reason(error)}; correct the server, or the URL") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            if "CERTIFICATE_REQUIRED" in str(error):
                raise TargetError(f"{self.origin}: {_WANTS_CERTIFICATE}") from error
            self._check_scheme()
            raise TargetError(
                f"{self.origin}{path}: not an HTTP server ({_reason(error)}); correct the URL"
            ) from error
        if _of_tls(answer.status_code, said):
            if self.parts.scheme == "https":
                raise TargetError(f"{self.origin}: {_WANTS_CERTIFICATE}")
            self._check_scheme()
        if method == "POST" or answer.status_code != 200:
            # It is for people; what describes the server must stay as it is until its model is known.
            said = blank_bytes(said, self._keys)
            if "location" in answer.headers:
                answer.headers.encoding = "utf-8"
                answer.headers["location"] = blank_bytes(answer.headers["location"].encode(), self._keys).decode()
        answer._content, answer.encoding = said, "utf-8"
        return answer

    def _check_scheme(self) -> None:
        """Raises TargetError where the server speaks HTTP without TLS though the URL says https, or the reverse."""
        other = "http" if self.parts.scheme == "https" else "https"
        if self._proxy is None and _speaks(other, self.parts):
            what = "over TLS" if other == "https" else "without TLS"
            raise TargetError(
                f"{self.origin}: a server answers there, but {what}; write {other}://{self.parts.netloc}"
            )


def _speaks(scheme: str, parts: SplitResult) -> bool:
    """Whether something that speaks this scheme listens at a URL's host and port, whatever the URL's own scheme."""
    name = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((name, port), timeout=_PROBE_S) as plain:
            if scheme == "https":
                believing = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                believing.check_hostname, believing.verify_mode = False, ssl.CERT_NONE
                believing.wrap_socket(plain, server_hostname=name).close()
                return True
            plain.sendall(f"GET / HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode())
            said = plain.recv(4096)
            # A TLS server may say in plain HTTP that it wants another.
            return said.startswith(b"HTTP/") and not _of_tls(400 * (said[9:12] == b"400"), said)
    except (OSError, ValueError):
        return False


def _of_tls(status: int, said: bytes) -> bool:
    """Whether an answer is a TLS server's complaint: plain HTTP was spoken to it, or no certificate shown."""
    return status == 400 and re.search(rb"HTTPS|\bSSL|\bTLS", said) is not None


def _cure(error: str) -> str:
    """What to do about a certificate that OpenSSL does not trust."""
    if "mismatch" in error:
        return "use the host name in the certificate, or have this one added to the certificate"
    if "expired" in error or "not yet valid" in error:
        return "renew it, or set this machine's clock"
    named = os.environ.get("SSL_CERT_FILE")
    if named is not None:
        return f"SSL_CERT_FILE={excerpt(named)} does not hold its issuer's certificate; name a file that does, in PEM"
    return "set SSL_CERT_FILE to its issuer's certificate (to its own if it is self-signed)"


def check_url(url: str) -> SplitResult:
    """The parts of a server's URL. Raises InputError, one line, on anything but http(s)://host[:port][/path]."""
    if not url.isascii() or not url.isprintable() or " " in url:
        raise InputError(f"{shown(url)}: not a URL (ASCII, without spaces); write e.g. http://localhost:8000")
    try:
        parts = urlsplit(url)
        port = parts.port
        (parts.hostname or "").encode("idna")
    except ValueError:
        # The reason would repeat a piece, which may be one of a password.
        raise InputError(f"{shown(url)}: no host and port; write e.g. http://localhost:8000") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise InputError(f"{shown(url)}: not a URL of a server; write e.g. http://localhost:8000")
    if parts.query or parts.fragment:
        raise InputError(f"{parts.scheme}://{parts.hostname}: leave out what begins with ? or # in the URL")
    if "@" in parts.netloc:
        raise InputError("the URL holds a user name or password; give keys in LOADSTONE_API_KEY or OPENAI_API_KEY")
    endpoint = re.search(r"/v1/(chat/completions|completions|models)/?$", parts.path)
    if endpoint is not None:
        raise InputError(f"{url}: leave out {endpoint[0]}; --endpoint says what is asked there")
    return parts


def shown(url: str) -> str:
    """What may be said of a URL, whatever it is: without user, password, and what begins with ? or #."""
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
        raise InputError("--proxy: this proxy cannot be used; write http://host:port, without a name or password")


def trust(scheme: str) -> ssl.SSLContext:
    """Whom to believe over TLS. Without it nobody: reading all certificates takes longer than the meeting."""
    return ssl.create_default_context() if scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def refusal(where: str, answer: httpx.Response) -> str:
    """One line about an answer that is no 200: where, what, remedy."""
    if answer.has_redirect_location:
        to = excerpt(answer.headers["location"])
        return f"{where}: HTTP {answer.status_code}: it is at {to}; give that server's URL"
    said = error_text(answer.content)
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
        remedy = "it requires a user name and password: -H 'Authorization: Basic …', the base64 of name:password"
    return f"{where}: HTTP {answer.status_code}: {said}; {remedy}"


def _json(answer: httpx.Response) -> Any:
    try:
        return storable(json.loads(answer.content.decode("utf-8-sig", "replace")))
    except (ValueError, RecursionError):
        return None


def _reason(error: Exception) -> str:
    return excerpt(str(error)) or type(error).__name__
