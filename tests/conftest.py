"""What the tests share: a server that says what a test wants, byte by byte, and runs of the command
line."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import itertools
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
from hypothesis import settings

import tiers
from loadstone import commands
from loadstone.core.errors import InputError
from loadstone.measure.client.packets import check_packets
from loadstone.measure.simulated_server import FixedLatency, TimingServer, start
from preloaded import Preloader

# A shell that starts this in the background has SIGINT ignored, which every process that a test
# starts would inherit.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "any machine", deadline=None
)  # how long an example takes says nothing of the code
settings.load_profile("any machine")

Json = dict[str, Any]
MODEL = "scripted"
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
FAST = FixedLatency(ttft_s=0.01, itl_s=0.002)
PIXTRAL = {
    "model_type": "llava",
    "text_config": {
        "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "vocab_size": 512,
        "num_attention_heads": 4, "intermediate_size": 512, "max_position_embeddings": 16384,
    },
    "vision_config": {
        "model_type": "pixtral", "hidden_size": 64, "intermediate_size": 128, "patch_size": 16,
        "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 1024,
    },
}  # fmt: skip
"""The config.json of the tiny model that sees pictures."""
QUICK = ("--input", "8", "--output", "4", "--warmup", "0")
"""Flags of runs that are about something else than their length."""


class Ask(NamedTuple):
    """One HTTP request. `measured`: of the run, not of the meeting before it; `number` counts those
    from 0."""

    line: str
    headers: dict[str, str]
    body: bytes
    measured: bool
    number: int
    connection: int

    @property
    def path(self) -> str:
        return self.line.split()[1]

    @property
    def json(self) -> Json:
        fields: Json = json.loads(self.body)
        return fields

    @property
    def prompt_tokens(self) -> int:
        prompt = self.json.get("prompt") or self.json["messages"][-1]["content"]
        return len(prompt.split()) if isinstance(prompt, str) else len(prompt)

    @property
    def output_tokens(self) -> int:
        return int(self.json.get("max_tokens", 16))


Send = Callable[[bytes], None]
Reply = Callable[[Ask, Send], None]
"""Answers one request; afterwards the connection is kept. `Hangup` closes it, `Reset` with a
RST."""


class Hangup(Exception):
    """Close the connection."""


class Reset(Exception):
    """Close the connection without a farewell."""


class ScriptedServer:
    """An HTTP server in threads of this process. What `reply` is asked: all measured requests; with
    `meets` all. A body of a megabyte or more is read `reads_late_s` after its head."""

    def __init__(
        self,
        reply: Reply | None = None,
        *,
        meets: bool = False,
        tls: ssl.SSLContext | None = None,
        reads_late_s: float = 0.0,
    ) -> None:
        self.asks: list[Ask] = []
        self._reply = reply or answer
        self._meets = meets
        self._reads_late_s = reads_late_s
        self._tls = tls
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._open: set[socket.socket] = set()
        self._ended = self._deaf = False
        host = "localhost" if tls is not None else "127.0.0.1"
        self.url = (
            f"http{'s' if tls is not None else ''}://{host}:{self._listener.getsockname()[1]}"
        )
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def measured(self) -> list[Ask]:
        return [ask for ask in self.asks if ask.measured]

    def stop(self) -> None:
        """As if killed: the port and all connections go."""
        with self._lock:
            self._ended = True
            connections = list(self._open)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            if self._deaf:
                connection.close()

    def stop_accepting(self) -> None:
        """From now on a connection is neither made nor refused: the queue of those not yet accepted
        is full."""
        self._deaf = True
        self._listener.listen(0)
        for _ in range(8):
            waiting = socket.socket()
            waiting.setblocking(False)
            waiting.connect_ex(self._listener.getsockname())
            self._open.add(waiting)
            time.sleep(0.01)

    def _accept(self) -> None:
        for number in itertools.count():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if self._deaf:
                self._open.add(connection)
                return
            threading.Thread(target=self._serve, args=(connection, number), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            with self._lock:
                self._open.add(connection)
            try:
                while not self._ended and (ask := self._read(connection, number)) is not None:
                    (self._reply if ask.measured or self._meets else answer)(
                        ask, connection.sendall
                    )
            except Hangup:
                pass
            except Reset:
                # Linger for no time: close() sends a RST.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        with self._lock:
            self._open.discard(connection)
        connection.close()

    def _read(self, connection: socket.socket, number: int) -> Ask | None:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = connection.recv(65536)
            if not piece:
                return None
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        line, *rest = head.decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value for name, _, value in (text.partition(": ") for text in rest)
        }
        content, length = bytearray(body), int(headers.get("content-length", "0"))
        if length >= 1 << 20:
            time.sleep(self._reads_late_s)
        while len(content) < length:
            piece = connection.recv(1 << 18)
            if not piece:
                return None
            content += piece
        with self._lock:
            measured = "x-request-id" in headers
            ask = Ask(
                line, headers, bytes(content), measured, sum(a.measured for a in self.asks), number
            )
            self.asks.append(ask)
        return ask


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(fields: Json | str) -> bytes:
    text = fields if isinstance(fields, str) else json.dumps(fields)
    return f"data: {text}\n\n".encode()


def token(text: str = " time", finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "text": text, "finish_reason": finish}]})


def usage(ask: Ask) -> bytes:
    counts = {"prompt_tokens": ask.prompt_tokens, "completion_tokens": ask.output_tokens}
    return event(
        {"choices": [], "usage": {**counts, "prompt_tokens_details": {"cached_tokens": 0}}}
    )


def events(ask: Ask) -> list[bytes]:
    """A whole answer: its tokens, its usage, its end."""
    tokens = [token() for _ in range(ask.output_tokens - 1)]
    return [*tokens, token(finish="length"), usage(ask), event("[DONE]")]


def whole(status: str, body: bytes, content_type: str = "application/json") -> bytes:
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )


def answer(ask: Ask, send: Send) -> None:
    """What a good server says."""
    if ask.path == "/v1/models":
        send(whole("200 OK", json.dumps({"data": [{"id": MODEL}]}).encode()))
    elif not ask.line.startswith("POST /v1/completions"):
        send(whole("404 Not Found", b"{}"))
    elif not ask.json.get("stream"):
        counts = {"prompt_tokens": ask.prompt_tokens, "completion_tokens": ask.output_tokens}
        choice = {"text": " time", "finish_reason": "length"}
        send(whole("200 OK", json.dumps({"choices": [choice], "usage": counts}).encode()))
    else:
        send(SSE)
        for event in events(ask):
            send(chunk(event))
            time.sleep(0.0005)  # a stream, not a bunch
        send(LAST_CHUNK)


BUSY_MACHINE = {
    "sends_late", "client_read_late", "tpot_understated", "ttft_overstated", "server_writes_late", "ends_late",
    "arrivals_bunched", "images_late",
}  # fmt: skip
"""Findings that others who use the processors make true: of the client's sends and reads that came
late, and of a server that wrote its tokens together when it got its turn.
"""
BY_LATENESS = {"rate_not_reached", "not_stationary", "wide_interval"}
"""Findings that follow, where sends, reads or writes were late in a part of the run."""


class Outcome(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Json:
        document: Json = json.loads(self.out)
        return document

    @property
    def folder(self) -> Path:
        return Path(self.document["run_dir"])

    @property
    def cell(self) -> Json:
        (cell,) = self.document["cells"]
        return dict(cell)

    @property
    def records(self) -> list[Json]:
        return read_records(self.folder)

    @property
    def findings(self) -> set[str]:
        return {
            finding["kind"]
            for cell in self.document["cells"]
            for finding in cell["verdict"]["findings"]
        }

    @property
    def trusted(self) -> bool:
        return all(cell["verdict"]["trusted"] for cell in self.document["cells"])

    @property
    def spoilt_by(self) -> set[str]:
        """Findings that spoil a cell, but for those that a busy test machine makes true."""
        findings = [
            finding for cell in self.document["cells"] for finding in cell["verdict"]["findings"]
        ]
        spoiling = [
            f
            for f in findings
            if f["severity"] != "info" and "for the client to read" not in f["evidence"]
        ]
        kinds = {finding["kind"] for finding in spoiling}
        late = self.findings & {"sends_late", "client_read_late", "server_writes_late"}
        return kinds - BUSY_MACHINE - (BY_LATENESS if late else set())

    def line(self) -> str:
        """The one line of an error, without the program's name."""
        assert self.code == 2, self
        assert self.out == ""
        assert self.err.count("\n") == 1, self.err
        assert self.err.startswith("loadstone: ")
        return self.err.removeprefix("loadstone: ").strip()


def read_records(folder: Path) -> list[Json]:
    rows: list[Json] = pq.read_table(folder / "records.parquet").to_pylist()
    return rows


Loadstone = Callable[..., Outcome]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick", action="store_true", help="only tests that start no process, with fewer examples"
    )
    parser.addoption(
        "--thorough",
        action="store_true",
        help="all cases, and as many examples of properties as they declare",
    )


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all tests are there, which stay: no collector need look at them
    if config.getoption("--quick"):
        config.pluginmanager.register(tiers.Guard())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what starts a process by its folder, and give slow tests more time."""
    for item in items:
        if "e2e" in item.path.parts:
            item.add_marker("process")
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(600))
    left_out = set() if config.getoption("--thorough") else {"thorough"}
    if config.getoption("--quick"):
        left_out |= {"process", "long", "slow"}
    chosen = [
        item for item in items if left_out.isdisjoint(mark.name for mark in item.iter_markers())
    ]
    if len(chosen) < len(items):
        config.hook.pytest_deselected(items=list(set(items) - set(chosen)))
        items[:] = chosen
    if not config.getoption("--thorough"):
        limit = tiers.QUICK_EXAMPLES if config.getoption("--quick") else tiers.EXAMPLES
        for item in items:
            tiers.limit_examples(item, limit)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture
def thorough(pytestconfig: pytest.Config) -> bool:
    return bool(pytestconfig.getoption("--thorough"))


@pytest.fixture(autouse=True)
def no_selftest(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the developer's own self-test found is none of the tests' business."""
    monkeypatch.setattr("loadstone.runs.bench.load_selftest", lambda: None)


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test says itself how wide its terminal is: pytest-xdist tells its workers of its own."""
    for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOADSTONE_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session", autouse=True)
def preloaded() -> Iterator[None]:
    """Processes of the package that a test starts need not import it: preloaded.py."""
    with Preloader().installed():
        yield


@pytest.fixture
def loadstone(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Loadstone:
    """Runs `loadstone …` in this process. `bench` writes to a folder of the test unless told
    otherwise."""

    def run(*arguments: object) -> Outcome:
        words = command(tmp_path / "runs", arguments)
        monkeypatch.setattr(sys, "argv", ["loadstone", *words])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            commands.main()
        said = capfd.readouterr()
        return Outcome(int(ended.value.code or 0), said.out, said.err)

    return run


def command(out: Path, arguments: Sequence[object]) -> list[str]:
    words = [str(argument) for argument in arguments]
    return words if words[0] != "bench" or "--out" in words else [*words, "--out", str(out)]


@contextlib.contextmanager
def spawn(out: Path, *arguments: object, **more: Any) -> Iterator[subprocess.Popen[str]]:
    """`loadstone …` as a process of its own, killed at the end of the block if it still runs."""
    words = [sys.executable, "-m", "loadstone.commands", *command(out, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, stdout=pipe, stderr=pipe, text=True, start_new_session=True, **more
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="session")
def timing() -> Iterator[TimingServer]:
    with start(FAST) as server:
        yield server


@pytest.fixture(scope="session")
def twin() -> Iterator[TimingServer]:
    """Another server like `timing`, for fleets of two."""
    with start(FAST) as server:
        yield server


Write = Callable[[str | bytes], Path]
"""To a file of the test; returns it."""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(content: str | bytes) -> Path:
        path = tmp_path / "data"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def lines(*items: object) -> str:
    """JSON lines."""
    return "".join(json.dumps(item) + "\n" for item in items)


def script(path: Path) -> ModuleType:
    """A program outside the package, as a module; under a name of its own, for `engines` is a
    folder of tests too."""
    name = f"script_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _refused_packets() -> str:
    try:
        check_packets()
    except InputError as error:
        return str(error)
    return ""


needs_packets = pytest.mark.skipif(bool(_refused_packets()), reason=_refused_packets())


def eventually(condition: Callable[[], object]) -> bool:
    """Whether it comes true within a time that only a broken program needs."""
    deadline = time.monotonic() + 240
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def state_of(pid: int) -> str:
    """As ps has it: R runs or could, S waits, T is stopped, Z has ended and is not collected; X:
    there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return "X"


def gone(pid: int) -> bool:
    """Whether it has ended; what is left of an orphan may wait long for a container's init to
    collect it."""
    return state_of(pid) in "ZX"


def processes_about(text: str) -> list[int]:
    """Processes with `text` on their command line or in their environment's OUT_OF_TEST."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            told = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
            if (
                text.encode() in told
                and int(folder.name) != os.getpid()
                and not gone(int(folder.name))
            ):
                found.append(int(folder.name))
    return found


def kill(*pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
