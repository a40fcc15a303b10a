"""HTTPS: the same client, the same kernel stamps."""

import ssl
import subprocess
from pathlib import Path

import pytest

from conftest import QUICK, Loadstone, ScriptedServer


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
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
        outcome = loadstone("bench", server.url, *QUICK, "--concurrency", "2", "--requests", "6", "--json")
    assert outcome.cell["requests"]["ok"] == 6
    assert {tuple(record["tokens"]) for record in outcome.records} == {(1, 2, 3, 4)}
    assert outcome.cell["client"]["clock"] == "kernel"
    # A stamp of the kernel lies before the read that it belongs to.
    assert all(record["receive_lag_s"] > 0 for record in outcome.records)
    assert any(record["reused_connection"] for record in outcome.records)


def test_a_certificate_that_nobody_vouches_for(loadstone: Loadstone, certificate: tuple[Path, Path]) -> None:
    with served(certificate) as server:
        line = loadstone("bench", server.url).line()
    assert "its certificate is not trusted" in line
    assert "SSL_CERT_FILE" in line


def test_plain_http_spoken_to_a_tls_server_and_the_reverse(
    loadstone: Loadstone, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    with served(certificate) as server:
        assert "not an HTTP server" in loadstone("bench", server.url.replace("https", "http")).line()
    with ScriptedServer() as server:
        loadstone("bench", server.url.replace("http", "https")).line()
