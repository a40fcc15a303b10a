"""Graded answers of whole runs: of a server that answers what it is asked, and of a small real
model."""

import itertools
import json
import re
import subprocess
import threading
import time
from pathlib import Path

import pytest

from conftest import (
    LAST_CHUNK,
    SSE,
    Ask,
    Json,
    Loadstone,
    ScriptedServer,
    Send,
    answer,
    chunk,
    event,
    usage,
)
from loadstone.core.errors import InputError
from loadstone.core.run_folder import read_answers
from loadstone.measure.engines import llama_cpp

QUALITY = Path(__file__).resolve().parents[3] / "shared" / "data" / "quality"
LOAD = ("--input", 40, "--output", 8, "--check-share", "50%", "--json")


def solve(prompt: str) -> str:
    """The right answer to a generated question."""
    if found := re.search(r"say nothing else: (\S+)", prompt):
        return found[1]
    if found := re.search(r"What is (\d+) \+ (\d+)\?", prompt):
        return str(int(found[1]) + int(found[2]))
    wanted = re.search(r"What is the number of ([a-z0-9 ]+)\?", prompt)
    assert wanted is not None
    number = re.search(rf"The number of {wanted[1]} is (\d+)\.", prompt)
    assert number is not None
    return number[1]


class Solver:
    """Answers questions; `garbles`: spoils one answer in twenty while others are under way."""

    def __init__(self, *, garbles: bool = False, key: str = "") -> None:
        self.garbles, self.key = garbles, key
        self.asked: list[Json] = []
        self._under_way, self._lock = 0, threading.Lock()
        self._numbers = itertools.count()

    def __call__(self, ask: Ask, send: Send) -> None:
        prompt = ask.json.get("prompt") if ask.line.startswith("POST /v1/completions") else None
        if not isinstance(prompt, str) or (
            "Answer with" not in prompt and "Repeat this" not in prompt
        ):
            answer(ask, send)
            return
        self.asked.append(ask.json)
        with self._lock:
            self._under_way += 1
            several, number = self._under_way > 1, next(self._numbers)
        time.sleep(0.01)
        text = solve(prompt) + self.key
        if self.garbles and several and number % 20 == 0:
            text = "\u001b[2J\ufffd#" + text[::-1]
        send(SSE)
        for piece in (text[:3], text[3:]):
            send(chunk(event({"choices": [{"index": 0, "text": piece, "finish_reason": None}]})))
        send(chunk(event({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})))
        send(chunk(usage(ask)) + chunk(event("[DONE]")) + LAST_CHUNK)
        with self._lock:
            self._under_way -= 1


def run(loadstone: Loadstone, server: Solver, *more: object) -> Json:
    with ScriptedServer(server) as scripted:
        outcome = loadstone("bench", scripted.url, *LOAD, *more)
    assert outcome.code == 0, outcome
    return outcome.document


def test_right_answers_are_counted_apart_from_the_load(loadstone: Loadstone) -> None:
    server = Solver()
    document = run(loadstone, server, "--check", "generated:60", "--concurrency", "1,4")
    assert all(
        body["temperature"] == 0 and "ignore_eos" not in body and "min_tokens" not in body
        for body in server.asked
    )
    for cell in document["cells"]:
        graded = cell["graded"]
        assert (graded["accuracy"], graded["questions"], graded["cut"], graded["failed"]) == (
            1.0,
            60,
            0,
            0,
        )
        assert (graded["temperature"], graded["undecided"]) == (0.0, None)
        assert graded["share"] == 60 / (60 + cell["requests"]["sent"]) <= 0.5
        assert graded["part"]["requests"]["ok"] == 60
        assert {task["task"] for task in graded["tasks"]} == {"copy", "add", "look-up"}
        assert not {"answers_wrong", "answers_undecided"} & {
            each["kind"] for each in cell["verdict"]["findings"]
        }
    folder = Path(document["run_dir"])
    assert all(each.text is None for each in read_answers(folder))
    assert (
        solve(server.asked[0]["prompt"]).encode() not in (folder / "answers.parquet").read_bytes()
    )


def test_a_server_that_garbles_answers_under_load_is_caught(loadstone: Loadstone) -> None:
    document = run(
        loadstone,
        Solver(garbles=True),
        "--check",
        "generated:300",
        "--concurrency",
        "1,8",
        "--keep-answers",
    )
    alone, loaded = document["cells"]
    assert alone["graded"]["accuracy"] == 1.0
    assert loaded["graded"]["accuracy"] < 0.98
    found = {each["kind"]: each for each in loaded["verdict"]["findings"]}
    assert found["answers_wrong"]["severity"] == "error"
    assert "lightest load" in found["answers_wrong"]["evidence"]
    assert "answers_wrong" not in {each["kind"] for each in alone["verdict"]["findings"]}
    told = loadstone("report", document["run_dir"], "-o", "-").out
    assert re.search(
        r"^Neither faster with as many right answers nor the reverse: .*concurrency 1", told, re.M
    )
    texts = [each.text for each in read_answers(Path(document["run_dir"]), 1)]
    assert any("\x1b" in (text or "") for text in texts)
    assert "\x1b" not in loadstone("show", document["run_dir"]).out


def test_too_few_right_answers_and_answers_of_another_request(loadstone: Loadstone) -> None:

    first: list[str] = []

    def solved_as_the_first(ask: Ask, send: Send) -> None:
        fields = ask.json if ask.body else {}
        prompt = fields.get("prompt")
        if isinstance(prompt, str) and "What is the number" in prompt:
            first.append(prompt)
            fields["prompt"] = first[0]
            ask = ask._replace(body=json.dumps(fields).encode())
        server(ask, send)

    server = Solver()
    with ScriptedServer(solved_as_the_first) as scripted:
        outcome = loadstone(
            "bench",
            scripted.url,
            *LOAD,
            "--check",
            "generated:60",
            "--concurrency",
            2,
            "--check-min",
            "90%",
        )
    [cell] = outcome.document["cells"]
    assert cell["graded"]["crossed"] == 19
    evidence = [
        each["evidence"] for each in cell["verdict"]["findings"] if each["kind"] == "answers_wrong"
    ]
    assert any("19 of 60 answers have the number" in each for each in evidence)
    assert any("at least 90.0% should be; lowest look-up" in each for each in evidence)


def test_keys_stay_out_of_kept_answers(loadstone: Loadstone) -> None:
    document = run(
        loadstone, Solver(key=" sk-0123456789abcdef"), "--check", "generated:9", "--concurrency", 1, "--keep-answers",
        "-H", "Authorization: Bearer sk-0123456789abcdef",
    )  # fmt: skip
    for file in Path(document["run_dir"]).iterdir():
        assert b"sk-0123456789abcdef" not in file.read_bytes(), file


def test_a_simulated_run_has_no_answers_and_says_so(loadstone: Loadstone) -> None:
    asked = (
        "simulate",
        "llama-3.1-8b@1xh200/engine=vllm",
        "--concurrency",
        2,
        "--requests",
        40,
        "--check",
        "generated:4",
    )
    document = loadstone(*asked, "--json").document
    assert [each["kind"] for each in document["findings"]] == ["answers_simulated"]
    assert document["cells"][0]["requests"]["sent"] == 40
    assert "graded" not in document["cells"][0]
    assert "answers_simulated: graded prompts take their time here" in loadstone(*asked).out


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The small model in several precisions."""
    if not QUALITY.is_dir():
        pytest.skip("the small model is not here")
    try:
        server = llama_cpp.find() or llama_cpp.fetch()
    except InputError as error:
        pytest.skip(str(error))
    quantise = server.parent / "root" / "usr" / "bin" / "llama-quantize"
    if not quantise.is_file():
        pytest.skip("llama-quantize is not beside llama-server")
    libraries = server.parent / "root" / "usr" / "lib" / "x86_64-linux-gnu"
    path = f"{libraries}:{libraries}/ggml:{libraries}/llama"
    loader = [str(libraries / "ld-linux-x86-64.so.2"), "--library-path", path, str(quantise)]
    folder = tmp_path_factory.mktemp("models")
    found = {"f32": QUALITY / "tasks-f32.gguf"}
    for kind in ("f16", "q8_0", "q4_0"):
        found[kind] = folder / f"tasks-{kind}.gguf"
        subprocess.run(
            [*loader, str(found["f32"]), str(found[kind]), kind], check=True, capture_output=True
        )
    return found


def measure(loadstone: Loadstone, model: Path, log: Path) -> str:
    with llama_cpp.launch(
        model, slots=16, context_tokens=512, connections=32, log_path=log, cache_prompt=False
    ) as server:
        outcome = loadstone(
            "bench", server.url, "--endpoint", "chat", "--input", 32, "--output", 8, "--concurrency", "1,16",
            "--check", f"{QUALITY / 'test.jsonl'}:1200", "--check-share", "90%", "--json",
        )  # fmt: skip
    assert outcome.code == 0, outcome
    return str(outcome.document["run_dir"])


@pytest.mark.slow
def test_a_precision_that_loses_answers_is_found_and_others_are_not(
    loadstone: Loadstone, models: dict[str, Path], tmp_path: Path
) -> None:
    runs = {
        kind: measure(loadstone, model, tmp_path / f"{kind}.log") for kind, model in models.items()
    }
    runs["f32 again"] = measure(loadstone, models["f32"], tmp_path / "again.log")
    for kind in ("f16", "q8_0", "q4_0", "f32 again"):
        document = json.loads(loadstone("compare", runs["f32"], runs[kind], "--json").out)
        wrong = [each for each in document["findings"] if each["kind"] == "answers_wrong"]
        assert len(wrong) == (2 if kind == "q4_0" else 0), (kind, document["findings"])
        for cell in document["cells"]:
            answers = cell["answers"]
            assert (answers["questions"], answers["undecided"]) == (1200, None)
            assert answers["differs"] == (kind == "q4_0")
            assert [task["task"] for task in answers["tasks"] if task["differs"]] == ["json"] * (
                kind == "q4_0"
            )
