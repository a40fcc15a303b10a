"""The page on extending: the API that it shows is built, installed, and measured by."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import LAST_CHUNK, SSE, Ask, ScriptedServer, Send, chunk, event, whole
from extending_package import install_from_page
from loadstone.core.errors import InputError
from loadstone.measure.wire.wire import find_wire

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"
WORDS = 8


def talk(ask: Ask, send: Send) -> None:
    """Answer as the page says that such servers do."""
    if ask.path != "/talk":
        send(whole("404 Not Found", b"{}"))
        return
    fields = ask.json
    heard, words = len(fields["say"].split()), fields["words"]
    if not fields["live"]:
        said = {"heard": heard, "word": "time " * words, "count": words, "end": "length"}
        send(whole("200 OK", json.dumps(said).encode()))
        return
    send(SSE)
    for number in range(1, words + 1):
        send(chunk(event({"heard": heard, "word": "time", "count": number})))
        time.sleep(0.002)
    send(chunk(event({"end": "length"})) + LAST_CHUNK)


@pytest.mark.process
def test_an_api_of_another_package_is_measured(tmp_path: Path) -> None:
    site = install_from_page(PAGE.read_text(), "loadstone_talk.py", tmp_path)
    shape = f"--input 16 --output {WORDS} --concurrency 2 --requests 6 --warmup 0 --json"
    with ScriptedServer(talk, meets=True) as server:
        command = ["-m", "loadstone.commands", "bench", server.url, "--endpoint", "talk"]
        done = subprocess.run(
            [sys.executable, *command, "--model", "any", "--out", str(tmp_path), *shape.split()],
            env={**os.environ, "PYTHONPATH": str(site)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (cell,) = document["cells"]
    assert (document["target"]["endpoint"], document["target"]["model"]) == ("talk", "any")
    assert cell["requests"]["ok"] == 6
    assert cell["metrics"]["output_tokens"] == 6 * WORDS
    assert cell["metrics"]["tpot_s"]["p50"] >= 0.002


def test_an_api_that_no_package_offers_is_refused() -> None:
    with pytest.raises(
        InputError,
        match=r"--endpoint: .nobody. .*chat, completions, embeddings, messages, rerank, responses, score, sglang,"
        " triton",
    ):
        find_wire("nobody")
