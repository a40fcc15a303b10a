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
