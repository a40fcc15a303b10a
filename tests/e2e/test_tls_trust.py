"""Certificates: an authority of one's own, expired ones, and what fails in TLS during a run."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from conftest import QUICK, Ask, Hangup, Loadstone, ScriptedServer, Send, answer
from loadstone.measure.engines import server as control_plane

RUN = (*QUICK, "--concurrency", "2", "--requests", "6", "--json")
CONFIG = """
[ca]
default_ca = own
[own]
dir = {folder}
database = {folder}/index.txt
new_certs_dir = {folder}
rand_serial = yes
default_md = sha256
policy = any
unique_subject = no
copy_extensions = copy
[any]
commonName = supplied
"""


class Identity(NamedTuple):
    certificate: Path
    key: Path


class Authority:
    """Issues certificates in a folder; `bundle` holds its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bundle = folder / "authority.pem"
        (folder / "index.txt").touch()
        (folder / "ca.cnf").write_text(CONFIG.format(folder=folder))
        self._openssl(
            *(
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "30",
                "-subj",
                "/CN=Own authority",
            ),
            *("-keyout", str(folder / "authority.key"), "-out", str(self.bundle)),
        )

    def issue(
        self, name: str, start: str = "20200101000000Z", end: str = "20400101000000Z"
    ) -> Identity:
        stem = f"{name}-{start}-{end}"
        certificate, key, request = (
            self.folder / f"{stem}.{suffix}" for suffix in ("pem", "key", "csr")
        )
        self._openssl(
            *("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", str(key)),
            *("-addext", f"subjectAltName=DNS:{name}", "-out", str(request)),
        )
        self._openssl(
            *(
                "ca",
                "-batch",
                "-notext",
                "-config",
                str(self.folder / "ca.cnf"),
                "-cert",
                str(self.bundle),
            ),
            *(
                "-keyfile",
                str(self.folder / "authority.key"),
                "-in",
                str(request),
                "-out",
                str(certificate),
            ),
            *("-startdate", start, "-enddate", end),
        )
        return Identity(certificate, key)

    @staticmethod
    def _openssl(*command: str) -> None:
        subprocess.run(["openssl", *command], check=True, capture_output=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here")
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def trusted(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Authority:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.bundle))
    return authority


def context_of(identity: Identity) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(identity.certificate, identity.key)
    return context


def test_an_authority_of_ones_own(loadstone: Loadstone, trusted: Authority) -> None:
    with ScriptedServer(tls=context_of(trusted.issue("localhost"))) as server:
        outcome = loadstone("bench", server.url, *RUN)
    assert outcome.cell["requests"]["ok"] == 6


def test_a_folder_of_authorities(
    loadstone: Loadstone, authority: Authority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copy(authority.bundle, tmp_path / "own.pem")
    subprocess.run(["openssl", "rehash", str(tmp_path)], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    with ScriptedServer(tls=context_of(authority.issue("localhost"))) as server:
        outcome = loadstone("bench", server.url, *RUN)
    assert outcome.cell["requests"]["ok"] == 6


@pytest.mark.parametrize(
    ("name", "start", "end", "words"),
    [
        (
            "elsewhere",
            "20200101000000Z",
            "20400101000000Z",
            ["certificate", "use the host name in the certificate"],
        ),
        (
            "localhost",
            "20200101000000Z",
            "20210101000000Z",
            ["expired", "renew it, or set this machine's clock"],
        ),
        (
            "localhost",
            "20380101000000Z",
            "20400101000000Z",
            ["not yet valid", "set this machine's clock"],
        ),
    ],
)
def test_a_certificate_that_is_not_good_is_told_with_the_reason(
    loadstone: Loadstone, trusted: Authority, name: str, start: str, end: str, words: list[str]
) -> None:
    with ScriptedServer(tls=context_of(trusted.issue(name, start, end))) as server:
        line = loadstone("bench", server.url).line()
    assert "its certificate is not trusted" in line
    assert all(word in line for word in words)


def test_a_bundle_that_is_no_certificate(
    loadstone: Loadstone, authority: Authority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_text("-----BEGIN CERTIFICATE-----\nnone\n-----END CERTIFICATE-----\n")
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    with ScriptedServer(tls=context_of(authority.issue("localhost"))) as server:
        line = loadstone("bench", server.url).line()
    assert f"SSL_CERT_FILE={bundle}" in line


def test_a_certificate_that_is_replaced_by_an_expired_one_during_the_run(
    loadstone: Loadstone, trusted: Authority
) -> None:
    context = context_of(trusted.issue("localhost"))
    expired = trusted.issue("localhost", end="20210101000000Z")

    def expire(ask: Ask, send: Send) -> None:
        answer(ask, send)
        context.load_cert_chain(expired.certificate, expired.key)
        raise Hangup  # the next request takes a new connection

    with ScriptedServer(expire, tls=context) as server:
        outcome = loadstone(
            "bench", server.url, *QUICK, "--concurrency", "1", "--requests", "4", "--json"
        )
    errors = [record["error"] for record in outcome.records if record["status"] == "error"]
    assert errors
    assert all("TLS failed" in error and "certificate has expired" in error for error in errors)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tls_of_long_ago_is_told_as_such(loadstone: Loadstone, trusted: Authority) -> None:
    context = context_of(trusted.issue("localhost"))
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with ScriptedServer(tls=context) as server:
        line = loadstone("bench", server.url).line()
    assert "TLS failed" in line
    assert "the server must offer TLS 1.2 or newer" in line


@contextlib.contextmanager
def handshakes(reply: bytes) -> Iterator[str]:
    """A port that answers a TLS greeting with these bytes, and leaves."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    came, _ = listener.accept()
                    with came, contextlib.suppress(OSError):
                        came.recv(4096)
                        came.sendall(reply)

        threading.Thread(target=serve, daemon=True).start()
        yield f"https://localhost:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (b"", "the connection was cut before the answer's end, 2 times"),
        (b"\x16\x03\x03\xff", "the connection was cut before the answer's end, 2 times"),
        (b"\x15\x03\x03\x00\x02\x02\x28", "the server must offer TLS 1.2 or newer"),
        (b"\x15\x03\x03\x00\x02\x02\x70", "write the name that its certificate is for"),
        (bytes(100), "it does not speak TLS"),
    ],
)
def test_a_handshake_that_fails_is_one_line(
    loadstone: Loadstone,
    trusted: Authority,
    monkeypatch: pytest.MonkeyPatch,
    reply: bytes,
    words: str,
) -> None:
    monkeypatch.setattr(control_plane, "PATIENCE", control_plane.Patience(pauses_s=(0.01,)))
    with handshakes(reply) as url:
        line = loadstone("bench", url).line()
    assert url in line
    assert words in line
