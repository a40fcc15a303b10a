import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadstone.core.errors import InputError, TargetError
from loadstone.measure.engines import llama_cpp
from loadstone.measure.engines.process import ServerProcess
from loadstone.workload.word_list import WORDS


@pytest.fixture(scope="module")
def binary() -> Path:
    try:
        return llama_cpp.find() or llama_cpp.fetch()
    except InputError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def server(binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("llama") / "server.log"
    with llama_cpp.launch(slots=2, context_tokens=2048, log_path=log) as process:
        yield process


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    # llama-server closes kept connections after a while, which may be the moment of the next
    # request.
    fresh = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60, limits=fresh) as connection:
        yield connection


def tokenize(client: httpx.Client, text: str) -> list[int]:
    tokens: list[int] = client.post("/tokenize", json={"content": text}).json()["tokens"]
    return tokens


def complete(client: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = client.post("/v1/completions", json={"model": "tiny", "temperature": 0, **body})
    assert answer.status_code == 200, answer.text
    decoded: dict[str, Any] = answer.json()
    return decoded


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.process
def test_each_word_is_one_token(client: httpx.Client) -> None:
    ids = tokenize(client, "".join(f" {word}" for word in WORDS))
    assert len(ids) == len(set(ids)) == len(WORDS)
    assert len(tokenize(client, "time")) == 4  # without its space a word is bytes
    assert len(tokenize(client, "é")) == 2


@pytest.mark.process
def test_a_prompt_of_k_words_or_ids_is_k_tokens_and_n_are_generated(client: httpx.Client) -> None:
    text = "".join(f" {word}" for word in WORDS[100:150])
    for prompt in (text, tokenize(client, text)):
        answer = complete(client, prompt=prompt, max_tokens=37, ignore_eos=True)
        assert answer["usage"]["prompt_tokens"] == 50
        assert answer["usage"]["completion_tokens"] == 37
        assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.process
@pytest.mark.parametrize(
    "sampling", [{"temperature": 0}, {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0}]
)
def test_what_is_generated_is_words_only(client: httpx.Client, sampling: dict[str, float]) -> None:
    answer = complete(
        client, prompt=" time", max_tokens=200, **sampling
    )  # not asked to ignore an end: there is none
    assert answer["usage"]["completion_tokens"] == 200
    text = answer["choices"][0]["text"]
    assert set(text.split()) <= set(WORDS)
    assert len(tokenize(client, text)) == 200


@pytest.mark.process
def test_a_chat_message_of_k_words_is_k_tokens_and_two_of_template(client: httpx.Client) -> None:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": " time people water"}],
        "max_tokens": 20,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    events = [json.loads(line) for line in lines[:-1]]
    pieces = [event["choices"][0]["delta"].get("content") for event in events if event["choices"]]
    assert (
        len([piece for piece in pieces if piece]) == 20
    )  # each token shows as an event of its own
    assert events[-1]["usage"]["prompt_tokens"] == 3 + 2
    assert events[-1]["usage"]["completion_tokens"] == 20


@pytest.mark.process
def test_metrics_are_served(client: httpx.Client) -> None:
    assert "llamacpp:requests_processing" in client.get("/metrics").text


@pytest.mark.process
def test_the_prompt_cache_can_be_switched_off(client: httpx.Client, tmp_path: Path) -> None:
    prompt = "".join(f" {word}" for word in WORDS[200:300])

    def cached(connection: httpx.Client) -> list[int]:
        answers = [complete(connection, prompt=prompt, max_tokens=2) for _ in range(2)]
        return [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]

    assert cached(client) == [0, 99]
    launched = llama_cpp.launch(
        slots=1, context_tokens=512, cache_prompt=False, log_path=tmp_path / "log"
    )
    with (
        launched as plain,
        httpx.Client(base_url=plain.url, trust_env=False, timeout=60) as connection,
    ):
        assert cached(connection) == [0, 0]
    assert gone(plain.pid)


@pytest.mark.process
def test_kill_9_of_the_program_that_launched_it_ends_the_server(
    binary: Path, tmp_path: Path
) -> None:
    code = (
        "import sys, time; from pathlib import Path; from loadstone.measure.engines import llama_cpp; "
        "server = llama_cpp.launch(slots=1, log_path=Path(sys.argv[1])); "
        "print(server.pid, flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert not gone(pid)
        owner.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while not gone(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert gone(pid)


@pytest.mark.process
def test_a_file_that_is_no_model_is_one_line(binary: Path, tmp_path: Path) -> None:
    model = tmp_path / "broken.gguf"
    model.write_bytes(b"not a model")
    with pytest.raises(TargetError) as caught:
        llama_cpp.launch(model, log_path=tmp_path / "log")
    assert "ended with exit code 1" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_server_on_path_comes_before_the_cached_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert llama_cpp.find() is None
    cached = tmp_path / "loadstone" / "llama.cpp" / "llama-server"
    cached.parent.mkdir(parents=True)
    cached.touch()
    assert llama_cpp.find() == cached
    on_path = tmp_path / "bin" / "llama-server"
    on_path.parent.mkdir()
    on_path.touch(mode=0o755)
    assert llama_cpp.find() == on_path


def test_without_apt_the_error_says_how_to_get_the_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda _name: None)
    with pytest.raises(InputError, match=r"brew install llama\.cpp") as caught:
        llama_cpp.launch(log_path=tmp_path / "log")
    assert "\n" not in str(caught.value)


@pytest.mark.process
def test_apts_last_error_is_in_the_line_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, script in {
        "apt-get": 'case "$*" in *update*) printf "W: slow\\nE: no network\\nbye\\n" >&2; exit 100;; esac',
        "apt-config": "",
        "dpkg": "",
    }.items():
        (tools / name).write_text(f"#!/bin/sh\n{script or 'exit 0'}\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with pytest.raises(InputError, match=r"no package source|keyring"):
        llama_cpp.fetch()
    with pytest.raises(InputError, match='apt-get says "E: no network"'):
        llama_cpp.fetch(lambda folder: (folder.mkdir(), dict(os.environ))[1])
    assert list((tmp_path / "cache" / "loadstone").iterdir()) == []
