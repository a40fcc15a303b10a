"""Engines that are started here: ready, ended, and why they did not start, by real processes and
real logs."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import httpx
import pytest

from loadstone.core.errors import TargetError
from loadstone.engines.launch import Launch, RankCommand
from loadstone.measure.engines import llama_cpp
from loadstone.measure.engines.launch import LaunchError, RunningEngine, cause_of, first_error
from loadstone.measure.engines.process import free_port

SERVE = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *words): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
WAIT = "import time; print('waiting', flush=True); time.sleep(60)"


def python(*words: str) -> RankCommand:
    return RankCommand("127.0.0.1", (sys.executable, "-c", *words), {})


def launch(*ranks: RankCommand, port: int = 0, engine: str = "vllm") -> Launch:
    return Launch(
        engine=engine, ranks=ranks, url=f"http://127.0.0.1:{port}", container=None, notes=()
    )


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.process
def test_ranks_start_and_end_together(tmp_path: Path) -> None:
    port = free_port()
    with RunningEngine(
        launch(python(SERVE, str(port)), python(WAIT), port=port), tmp_path
    ) as engine:
        engine.wait_ready(20)
        pids = engine.processes
        assert all(map(is_alive, pids))
        engine.check()
    assert not any(map(is_alive, pids))


@pytest.mark.process
def test_a_rank_that_ends_ends_the_wait_and_is_named(tmp_path: Path) -> None:
    ranks = python(WAIT), python("raise ValueError('no such GPU')")
    with RunningEngine(launch(*ranks, port=free_port()), tmp_path) as engine:
        pid = engine.processes[0]
        with pytest.raises(
            LaunchError, match="rank 1 of vllm ended with exit code 1: ValueError: no such GPU"
        ):
            engine.wait_ready(20)
    assert not is_alive(pid)


@pytest.mark.process
def test_a_rank_that_is_killed_is_told_from_one_that_failed(tmp_path: Path) -> None:
    ranks = (python("import os; os.kill(os.getpid(), 9)"),)
    with (
        RunningEngine(launch(*ranks, port=free_port()), tmp_path) as engine,
        pytest.raises(LaunchError, match="ended by signal 9: it was killed"),
    ):
        engine.wait_ready(20)


@pytest.mark.process
@pytest.mark.parametrize(
    ("timeout_s", "silent_s", "words"), [(0.6, 9, "not ready"), (9, 0.6, "without a word")]
)
def test_waiting_has_an_end(tmp_path: Path, timeout_s: float, silent_s: float, words: str) -> None:
    with (
        RunningEngine(launch(python(WAIT), port=free_port()), tmp_path) as engine,
        pytest.raises(LaunchError, match=words),
    ):
        engine.wait_ready(timeout_s, silent_s)


def test_a_program_that_is_not_there_is_told_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="no program no-such-program here; install the engine"):
        RunningEngine(launch(RankCommand("a", ("no-such-program",), {})), tmp_path)


@pytest.mark.process
def test_no_rank_is_left_where_another_cannot_be_started(tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    first = python(
        f"import os, time; open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    )
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    with pytest.raises(TargetError, match="broken"):
        RunningEngine(launch(first, RankCommand("a", (str(broken),), {})), tmp_path)
    deadline = time.monotonic() + 5
    while marker.exists() and marker.read_text() and is_alive(int(marker.read_text())):
        assert time.monotonic() < deadline


@pytest.mark.process
def test_files_lie_where_the_command_finds_them(tmp_path: Path) -> None:
    command = python("import sys; print(open(sys.argv[1]).read())", "settings.yaml")
    made = Launch(
        engine="x",
        ranks=(command,),
        url="",
        container=None,
        notes=(),
        files={"settings.yaml": "a: 1"},
    )
    with RunningEngine(made, tmp_path) as engine:
        deadline = time.monotonic() + 10
        while engine.ranks[0].exit_code() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert engine.ranks[0].log_path.read_text().strip() == "a: 1"


@pytest.mark.process
def test_the_environment_reaches_the_rank(tmp_path: Path) -> None:
    command = RankCommand(
        "x", (sys.executable, "-c", "import os; print(os.environ['MINE'])"), {"MINE": "yes"}
    )
    with RunningEngine(launch(command), tmp_path) as engine:
        while engine.ranks[0].exit_code() is None:
            time.sleep(0.05)
        assert engine.ranks[0].log_path.read_text().strip() == "yes"
    assert "MINE" not in os.environ


@pytest.mark.parametrize(
    ("engine", "line", "cause"),
    [
        ("vllm", "OSError: [Errno 98] Address already in use", "the port is in use"),
        ("vllm", "vllm: error: unrecognized arguments: --tensor-paralel-size 8", "the engine knows no flag --tensor"),
        ("tensorrt-llm", "Error: No such option: --tp", "the engine knows no flag --tp"),
        (
            "vllm",
            "(EngineCore pid=1) ERROR 11-20 10:00:00 [core.py:1] ValueError: Free memory on device cuda:0 "
            "(12.5/79.2 GiB) on startup is less than desired GPU memory utilization (0.92, 72.9 GiB).",
            "only 12.5 of 79.2 GiB of the GPU are free",
        ),
        (
            "vllm",
            "ValueError: To serve at least one request with the model's max seq len (131072), (16.0 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (7.5 GiB). Based on the available memory, "
            "the estimated maximum model length is 61440.",
            "one request of 131072 tokens does not fit the KV cache, which holds 61440",
        ),
        ("sglang", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "no room"),
        ("sglang", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "the GPU's memory is full"),
        (
            "vllm",
            "ValueError: Total number of attention heads (32) must be divisible by tensor parallel size (3).",
            "32 attention heads cannot be cut 3 ways",
        ),
        (
            "vllm",
            "ValueError: World size (8) is larger than the number of available GPUs (4) in this node.",
            "8 GPUs are needed, and this node has 4",
        ),
        # The reason stands on the line after the first.
        (
            "vllm",
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n  Value error, "
            "User-specified max_model_len (9999) is greater than the derived max_model_len "
            "(max_position_embeddings=4096 or model_max_length=None in model's config.json).",
            "a context of 9999 tokens is longer than the model's 4096",
        ),
        ("vllm", "pydantic.ValidationError: 1 validation error for VllmConfig\n  Value error, x", "its settings (V"),
        ("vllm", "ValueError: No available memory for the cache blocks. Try increas", "leave no room for a KV"),
        ("vllm", "ValueError: Invalid repository ID or local directory specified: 'x/y'.", "neither a folder"),
        ("vllm", "x.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot", "neither a folder"),
        ("vllm", "ValueError: Bfloat16 is only supported on GPUs with compute capability of at", "has no bfloat16"),
        ("vllm", "ValueError: torch.bfloat16 is not supported for quantization method awq.", "awq does not go with"),
        ("vllm", "vllm: error: argument --moe-backend: invalid choice: 'x' (choose from aiter)", "the value 'x'"),
        ("sglang", "Exception: Capture cuda graph failed: CUDA out of memory.", "CUDA graphs do not fit"),
        ("sglang", "ValueError: Port at 30000 is not available in 30 seconds. ", "the port is in use"),
        (
            "sglang",
            "ValueError: Warning: User-specified context_length (200000) is greater than the derived context_length "
            "(131072).",
            "a context of 200000 tokens is longer than the model's 131072",
        ),
        ("sglang", "RuntimeError: CUDA error: invalid device ordinal", "fewer GPUs here"),
        ("sglang", "Initialization failed. warmup error: Traceback (most recent", "warms it up"),
        ("sglang", "error: ambiguous option: --pp could match --pp-size, --pp-max", "--pp is cut short"),
        ("tensorrt-llm", "Executor creation failed due to insufficient GPU memory.", "memory does not hold weights"),
        ("tensorrt-llm", "RuntimeError: Failed to bind socket to localhost:8000: [Errno 98]", "the port is in use"),
        ("tensorrt-llm", "RuntimeError: No GPU devices found on the node", "fewer GPUs here"),
        ("tensorrt-llm", "There are not enough slots available in the system to satisfy the 16", "fewer slots"),
        ("tensorrt-llm", "error: creating server: Internal - failed to stat file /no", "no model repository at /no"),
        ("tensorrt-llm", "Error: failed to start HTTP: Socket '127.0.0.1:8' already in use ", "the port is in use"),
        ("transformers", "ERROR: [Errno 98] error while attempting to bind on address", "the port is in use"),
        ("mlx-lm", "huggingface_hub.errors.HFValidationError: Repo id must be in the form", "neither a folder"),
        ("transformers", "OSError: Incorrect path_or_model_id: '/no/x'. Please provide", "there is no /no/x where"),
        ("vllm", "HFValidationError: Repo id must be in the form 'a/b': '/no/y'. Use", "there is no /no/y where"),
        ("tensorrt-llm", "Error: No such option '--bogus'.", "the engine knows no flag --bogus"),
        ("tensorrt-llm", "Error: Invalid value for '--tp_size': 'x' is not a valid integer.", "--tp_size: 'x' is"),
        ("tensorrt-llm", "Error: Missing argument 'MODEL'.", "refuses its command line: Missing argument 'MODEL'"),
        ("llama.cpp", "gguf_init_from_file: failed to open GGUF file '/no/z.gguf'", "there is no file /no/z.gguf"),
        ("llama.cpp", "llama: error loading model: unknown model architecture: 'q9'", "the architecture q9"),
        ("llama.cpp", "ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory", "is full"),
        ("llama.cpp", 'error while handling argument "--ctx-size": stoi', "not take this of --ctx-size: stoi"),
        ("transformers", "OSError: x is not a local folder and is not a valid model identifier", "neither a folder"),
    ],
)  # fmt: skip
def test_causes_are_recognised(engine: str, line: str, cause: str) -> None:
    log = f"INFO starting\nTraceback (most recent call last):\n  File x\n{line}\nRuntimeError: Engine core failed.\n"
    known = cause_of(log, engine)
    assert known is not None
    assert cause in known.cause
    assert known.remedy


def test_the_first_traceback_tells(tmp_path: Path) -> None:
    log = (
        "(Worker pid=7) Traceback (most recent call last):\n(Worker pid=7)   File x\n"
        "(Worker pid=7) KeyError: 'rope'\n"
        "Traceback (most recent call last):\n  File y\nRuntimeError: Engine core initialization failed.\n"
    )
    assert first_error(log) == "KeyError: 'rope'"
    assert first_error("one\ntwo\n") == "one | two"
    assert first_error("") == "it wrote nothing"


@pytest.mark.process
def test_a_port_that_is_taken_is_not_mistaken_for_the_engine(tmp_path: Path) -> None:
    program = llama_cpp.find() or llama_cpp.fetch()
    with llama_cpp.launch(log_path=tmp_path / "first.log") as first:
        port = httpx.URL(first.url).port or 0
        second = RankCommand(
            "x", (str(program), "--model", "no-such.gguf", "--port", str(port)), {}
        )
        with pytest.raises(LaunchError, match="the port is in use"):
            RunningEngine(launch(second, port=port, engine="llama.cpp"), tmp_path)


@pytest.mark.process
def test_llama_cpp_says_why_it_does_not_start(tmp_path: Path) -> None:
    program, port = llama_cpp.find() or llama_cpp.fetch(), free_port()
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    command = RankCommand(
        "x", (str(program), "--model", str(tmp_path / "broken.gguf"), "--port", str(port)), {}
    )
    with (
        RunningEngine(launch(command, port=port, engine="llama.cpp"), tmp_path) as engine,
        pytest.raises(LaunchError, match="model's file cannot be loaded"),
    ):
        engine.wait_ready(30)


ANSWER = """
import socket, sys, zlib
head = b"HTTP/1.1 200 OK\\r\\n"
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
    while True:
        client, _ = listener.accept()
        client.recv(65536)
        try:
            if sys.argv[2] == "gzip":
                client.sendall(head + b"Content-Encoding: gzip\\r\\nContent-Length: 5\\r\\n\\r\\nhello")
            elif sys.argv[2] == "interim":
                while True:
                    client.sendall(b"HTTP/1.1 103 Early Hints\\r\\n\\r\\n")
            else:
                client.sendall(head + b"\\r\\n")
                while True:
                    client.sendall(bytes(65536))
        except OSError:
            client.close()
"""


@pytest.mark.process
@pytest.mark.parametrize("kind", ["gzip", "endless", "interim"])
def test_of_what_answers_there_nothing_but_the_status_is_read(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadstone.measure.engines.launch.ANSWER_TIMEOUT_S", 0.5)
    port = free_port()
    with RunningEngine(launch(python(ANSWER, str(port), kind), port=port), tmp_path) as engine:
        begun = time.monotonic()
        if kind == "interim":
            with pytest.raises(LaunchError, match="not ready after"):
                engine.wait_ready(1)
        else:
            engine.wait_ready(20)
        assert time.monotonic() - begun < 15


@pytest.mark.process
@pytest.mark.parametrize("what", ["gone", "pipe", "link"])
def test_a_log_that_is_none_any_more_is_told(tmp_path: Path, what: str) -> None:
    log = tmp_path / "rank-0.log"
    instead = {
        "gone": "pass",
        "pipe": f"os.mkfifo({str(log)!r})",
        "link": f"os.symlink('/dev/zero', {str(log)!r})",
    }
    code = f"import os; os.unlink({str(log)!r}); {instead[what]}; raise SystemExit(1)"
    for words, cause in (
        (code, "its log cannot be read"),
        ("print('written here')", "written here"),
    ):
        with (
            RunningEngine(launch(python(words), port=free_port()), tmp_path) as engine,
            pytest.raises(LaunchError, match=cause),
        ):
            engine.wait_ready(20)


@pytest.mark.process
def test_the_cause_may_stand_at_the_end_of_a_long_log(tmp_path: Path) -> None:
    code = "print('INFO\\n' * 2_000_000); raise SystemExit('torch.OutOfMemoryError: CUDA out of memory. Tried')"
    with (
        RunningEngine(launch(python(code), port=free_port()), tmp_path) as engine,
        pytest.raises(LaunchError, match="memory is full"),
    ):
        engine.wait_ready(20)
