"""HTTPS and proxies: the same client, the same kernel stamps."""

import contextlib
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import QUICK, Ask, Loadstone, ScriptedServer, Send, answer

TUNNEL = b"HTTP/1.1 200 Connection established\r\nProxy-agent: own\r\n\r\n"
RUN = (*QUICK, "--concurrency", "2", "--requests", "6", "--json")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    command += [
        "-addext",
        "subjectAltName=DNS:localhost",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except OSError as error:
        pytest.skip(f"no openssl here: {error}")
    return certificate, key


def served(certificate: tuple[Path, Path]) -> ScriptedServer:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    return ScriptedServer(tls=context)


def test_measured_over_tls(
    loadstone: Loadstone, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    with served(certificate) as server:
        outcome = loadstone(
            "bench", server.url, *QUICK, "--concurrency", "2", "--requests", "6", "--json"
        )
    assert outcome.cell["requests"]["ok"] == 6
    assert {tuple(record["tokens"]) for record in outcome.records} == {(1, 2, 3, 4)}
    assert outcome.cell["client"]["clock"] == "kernel"
    # A stamp of the kernel lies before the read that it belongs to.
    assert all(record["receive_lag_s"] > 0 for record in outcome.records)
    assert any(record["reused_connection"] for record in outcome.records)


def test_a_certificate_that_nobody_vouches_for(
    loadstone: Loadstone, certificate: tuple[Path, Path]
) -> None:
    with served(certificate) as server:
        line = loadstone("bench", server.url).line()
    assert "its certificate is not trusted" in line
    assert "SSL_CERT_FILE" in line


def test_plain_http_spoken_to_a_tls_server_and_the_reverse(
    loadstone: Loadstone, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    with served(certificate) as server:
        line = loadstone("bench", server.url.replace("https", "http")).line()
        assert line.endswith(f"a server answers there, but over TLS; write {server.url}")
    with ScriptedServer() as server:
        line = loadstone("bench", server.url.replace("http", "https")).line()
        assert line.endswith(f"a server answers there, but without TLS; write {server.url}")


def test_a_server_that_waits_for_the_rest_of_a_tls_greeting(
    loadstone: Loadstone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama-server does: it takes the greeting for the beginning of a request."""
    monkeypatch.setattr("loadstone.measure.engines.server._CONNECT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_http_alone() -> None:
            with contextlib.ExitStack() as held, contextlib.suppress(OSError):
                while True:
                    came = held.enter_context(listener.accept()[0])
                    if came.recv(4096).startswith(b"GET "):
                        came.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

        threading.Thread(target=answer_http_alone, daemon=True).start()
        place = f"127.0.0.1:{listener.getsockname()[1]}"
        line = loadstone("bench", f"https://{place}").line()
    assert line.endswith(
        f"https://{place}: a server answers there, but without TLS; write http://{place}"
    )


@contextlib.contextmanager
def explaining(
    certificate: tuple[Path, Path], plain: bytes, over_tls: bytes = b""
) -> Iterator[int]:
    """The port of a TLS server that answers plain HTTP too, with `plain`; over TLS with `over_tls`,
    if anything."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_both() -> None:
            with contextlib.suppress(OSError):
                while True:
                    came, _ = listener.accept()
                    if came.recv(1, socket.MSG_PEEK) == b"\x16":
                        with (
                            contextlib.suppress(OSError),
                            context.wrap_socket(came, server_side=True) as inner,
                        ):
                            if over_tls:
                                inner.recv(4096)
                                inner.sendall(over_tls)
                    else:
                        came.recv(4096)
                        came.sendall(plain)
                        came.close()

        threading.Thread(target=answer_both, daemon=True).start()
        yield listener.getsockname()[1]


def test_a_tls_server_that_explains_itself(
    loadstone: Loadstone, certificate: tuple[Path, Path]
) -> None:
    """nginx, Apache and Go answer plain HTTP at a port of TLS with 400, and a word on it."""
    head = b"HTTP/1.0 400 Bad Request\r\nConnection: close\r\n\r\n"
    with explaining(
        certificate, head + b"Client sent an HTTP request to an HTTPS server.\n"
    ) as port:
        line = loadstone("bench", f"http://127.0.0.1:{port}").line()
    assert "a server answers there, but over TLS; write https://" in line


@pytest.mark.parametrize(
    "word", [b"The SSL certificate error", b"No required SSL certificate was sent"]
)
def test_a_tls_server_that_wants_a_certificate_of_its_clients(
    loadstone: Loadstone,
    certificate: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    word: bytes,
) -> None:
    """nginx refuses with 400 over TLS, and plain HTTP with 400 too: neither is a server without
    TLS."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    head = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n"
    refused = head + b"<html><center>" + word + b"</center></html>"
    plain = head + b"The plain HTTP request was sent to HTTPS port"
    with explaining(certificate, plain, refused) as port:
        line = loadstone("bench", f"https://localhost:{port}").line()
    assert "it requires a client certificate, which is not supported" in line


def test_a_certificate_for_another_name(
    loadstone: Loadstone, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    with served(certificate) as server:
        line = loadstone("bench", server.url.replace("localhost", "127.0.0.1")).line()
    assert "use the host name in the certificate" in line
    assert "SSL_CERT_FILE" not in line


def test_a_file_of_certificates_that_does_not_hold_the_one(
    loadstone: Loadstone, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere.pem")
    monkeypatch.setenv("SSL_CERT_DIR", "/nowhere")
    with served(certificate) as server:
        line = loadstone("bench", server.url).line()
    assert "SSL_CERT_FILE=/nowhere.pem does not hold its issuer's" in line


class Proxy:
    """Forwards connections, one request line looked at on each. `answer`: what CONNECT is answered,
    in pieces."""

    def __init__(self, *answer: bytes) -> None:
        self.lines: list[str] = []
        self._answer = answer or (TUNNEL,)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(
                    target=self._serve, args=(self._listener.accept()[0],), daemon=True
                ).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(65536)
            line = head.partition(b"\r\n")[0].decode()
            self.lines.append(line)
            method, target, _ = line.split()
            place = target.removeprefix("http://").partition("/")[0]
            host, _, port = place.rpartition(":")
            if method == "CONNECT":
                for i, piece in enumerate(self._answer):
                    time.sleep(0.02 * bool(i))
                    client.sendall(piece)
                head = b""
            with socket.create_connection((host, int(port))) as server:
                server.sendall(head)
                back = threading.Thread(target=self._hand_on, args=(server, client), daemon=True)
                back.start()
                self._hand_on(client, server)
                back.join()

    @staticmethod
    def _hand_on(source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def running(*answer: bytes) -> Iterator[Proxy]:
    proxy = Proxy(*answer)
    try:
        yield proxy
    finally:
        proxy.close()


def test_plain_http_names_the_whole_url(loadstone: Loadstone) -> None:
    def as_named(ask: Ask, send: Send) -> None:
        answer(ask._replace(line=ask.line.replace(server.url, "")), send)

    with ScriptedServer(as_named, meets=True) as server, running() as proxy:
        outcome = loadstone("bench", server.url, *RUN, "--proxy", proxy.url)
    assert outcome.cell["requests"]["ok"] == 6
    assert {line.split()[1] for line in proxy.lines} >= {
        f"{server.url}/v1/models",
        f"{server.url}/v1/completions",
    }
    assert all(ask.line.split()[1].startswith(server.url) for ask in server.measured)


@pytest.mark.parametrize("told", [(TUNNEL,), (TUNNEL[:14], TUNNEL[14:-1], TUNNEL[-1:])])
def test_tls_goes_through_a_tunnel_however_the_proxy_answers(
    loadstone: Loadstone,
    certificate: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    told: tuple[bytes, ...],
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    with served(certificate) as server, running(*told) as proxy:
        outcome = loadstone("bench", server.url, *RUN, "--proxy", proxy.url)
    assert outcome.cell["requests"]["ok"] == 6, outcome.records
    assert {line.split()[0] for line in proxy.lines} == {"CONNECT"}
    assert outcome.cell["client"]["clock"] == "kernel"


def test_a_proxy_that_refuses_or_is_not_there_is_named(
    loadstone: Loadstone,
    certificate: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    refused = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 2\r\n\r\nno"
    with served(certificate) as server, running(refused) as proxy:
        line = loadstone("bench", server.url, *RUN, "--proxy", proxy.url).line()
        assert f"--proxy {proxy.url}: the proxy does not lead to {server.url} (407" in line
        with socket.create_server(("127.0.0.1", 0)) as closed:
            nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
        line = loadstone("bench", server.url, *RUN, "--proxy", nobody).line()
        assert f"--proxy {nobody}: no proxy answers there" in line
