"""Measurement errors planted on purpose, each of which its own finding must flag; and clean runs, where none may.

benchmarks/results/planted.md has the same list for readers: each `@planted` below is a line of its table.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from conftest import (
    LAST_CHUNK,
    SSE,
    Ask,
    Hangup,
    Json,
    Loadstone,
    Outcome,
    Reply,
    ScriptedServer,
    Send,
    answer,
    chunk,
    event,
    events,
    eventually,
    processes_about,
    state_of,
    token,
    usage,
    whole,
)
from engines import launch
from loadstone.core.errors import InputError
from loadstone.measure.engines import llama_cpp
from loadstone.measure.simulated_server import Law, TimingServer, start

ROOT = Path(__file__).resolve().parents[2]
TRUST = ROOT / "benchmarks" / "results" / "planted.md"
CLOSED = "--input 64 --output 8 --warmup 0 --concurrency 2 --requests 24"
Plant = Callable[[Loadstone, Path], Outcome]


class Planted(NamedTuple):
    error: str
    """As benchmarks/results/planted.md has it."""
    kind: str
    run: Plant


PLANTED: list[Planted] = []


def planted(error: str, kind: str) -> Callable[[Plant], Plant]:
    def keep(run: Plant) -> Plant:
        PLANTED.append(Planted(error, kind, run))
        return run

    return keep


def spoilt_by(outcome: Outcome) -> set[str]:
    """Kinds of warnings and errors, all of them."""
    findings = [finding for cell in outcome.document["cells"] for finding in cell["verdict"]["findings"]]
    return {finding["kind"] for finding in findings if finding["severity"] in ("warning", "error")}


def measure(loadstone: Loadstone, reply: Reply, flags: str = CLOSED, *, meets: bool = False) -> Outcome:
    with ScriptedServer(reply, meets=meets) as server:
        return loadstone("bench", server.url, *flags.split(), "--json")


def say(send: Send, said: Iterable[bytes], pause_s: float = 0.0005) -> None:
    """A stream of these events, one after the other."""
    send(SSE)
    for one in said:
        send(chunk(one))
        time.sleep(pause_s)
    send(LAST_CHUNK)


def counted(prompt_tokens: int, output_tokens: int, cached_tokens: int = 0) -> bytes:
    """The usage of an answer, as the server would have it."""
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens}
    return event({"choices": [], "usage": {**counts, "prompt_tokens_details": {"cached_tokens": cached_tokens}}})


DONE = event("[DONE]")


def full(count: int, finish: str = "length") -> list[bytes]:
    return [*[token()] * (count - 1), token(finish=finish)]


# --- was all of it measured? ------------------------------------------------------------------------------------


@planted("HTTP 500 for some requests", "request_errors")
def some_refused(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    def reply(ask: Ask, send: Send) -> None:
        send(whole("500 Oh", b"out of memory")) if ask.number % 8 == 3 else answer(ask, send)

    return measure(loadstone, reply)


@planted("an error object in the stream, after HTTP 200", "request_errors")
def errors_after_200(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    def reply(ask: Ask, send: Send) -> None:
        if ask.number % 8 == 3:
            say(send, [token(), event({"error": {"message": "CUDA out of memory", "code": 500}}), DONE])
        else:
            answer(ask, send)

    return measure(loadstone, reply)


@planted("streams cut off half-way", "request_errors")
def cut_off(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    def reply(ask: Ask, send: Send) -> None:
        if ask.number % 8 == 3:
            send(SSE + chunk(token()) + chunk(token()))
            raise Hangup
        answer(ask, send)

    return measure(loadstone, reply)


@planted("requests dropped with their kept connections, which the client sends again", "requests_resent")
def dropped(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    def reply(ask: Ask, send: Send) -> None:
        if ask.number % 8 == 3:
            raise Hangup
        answer(ask, send)

    return measure(loadstone, reply, f"{CLOSED} --requests 80")


@planted("answers that never begin", "request_errors")
def silence(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    def reply(ask: Ask, send: Send) -> None:
        if ask.number == 3:
            time.sleep(1.0)
            raise Hangup
        answer(ask, send)

    return measure(loadstone, reply, f"{CLOSED} --timeout-first 500ms")


@planted("a client worker killed during the cell", "interrupted")
def worker_killed(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    def reply(ask: Ask, send: Send) -> None:
        if ask.number == 60:
            signal_worker(signal.SIGKILL)
        say(send, events(ask), 0.002)

    return measure(loadstone, reply, f"{CLOSED} --requests 120")


@planted("the engine restarts: its start time moves", "engine_restarted")
def restarts(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    def page(asked: int) -> str:
        since = 1.7e9 if asked < 12 else 1.7e9 + 60
        return f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {since}\n"

    return with_metrics(loadstone, page)


@planted("the engine restarts: its counters begin anew", "engine_restarted")
def counters_begin_anew(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    def page(asked: int) -> str:
        since = 1000 + asked if asked < 12 else asked - 12
        names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:num_preemptions_total")
        return "".join(f"# TYPE {name} counter\n{name} {since if 'tokens' in name else 0}\n" for name in names)

    return with_metrics(loadstone, page)


def with_metrics(loadstone: Loadstone, page: Callable[[int], str]) -> Outcome:
    """`page`: what /metrics say after so many measured requests."""
    asked = 0

    def reply(ask: Ask, send: Send) -> None:
        nonlocal asked
        if ask.path == "/metrics":
            send(whole("200 OK", page(asked).encode(), "text/plain"))
            return
        asked += ask.measured
        answer(ask, send)

    return measure(loadstone, reply, meets=True)


# --- was the load the one that was planned? ---------------------------------------------------------------------


def workers() -> list[int]:
    """Processes of the client that this process has started."""
    found = []
    for pid in processes_about("loadstone.measure.client.worker"):
        with contextlib.suppress(OSError):
            parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                found.append(pid)
    return found


def signal_worker(number: signal.Signals) -> None:
    for pid in workers():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def freeze_for(seconds: float) -> None:
    """The client gets no processor for so long."""
    signal_worker(signal.SIGSTOP)
    time.sleep(seconds)
    signal_worker(signal.SIGCONT)


def frozen_in_between(loadstone: Loadstone, seconds: float) -> Outcome:
    def reply(ask: Ask, send: Send) -> None:
        if ask.number == 20:
            threading.Thread(target=freeze_for, args=(seconds,)).start()
        answer(ask, send)

    flags = "--input 64 --output 8 --warmup 0 --rate 80 --burstiness inf --requests 60"
    return measure(loadstone, reply, flags)


@planted("the client gets no processor for a moment, in an open loop", "sends_late")
def client_frozen(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    return frozen_in_between(loadstone, 0.2)


@planted("the client falls behind its rate", "rate_not_reached")
def client_behind(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    return frozen_in_between(loadstone, 1.0)


@planted("`--max-concurrency` makes an open loop a closed one", "cap_held_back")
def capped(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    flags = "--input 64 --output 8 --warmup 0 --rate 80 --requests 40 --max-concurrency 1"
    return measure(loadstone, lambda ask, send: say(send, events(ask), 0.002), flags)


@planted("the first requests wait for an engine that compiles, and warm-up with them", "warmup_leaked")
def compiles(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    ready = threading.Event()

    def reply(ask: Ask, send: Send) -> None:
        if ask.number == 0:
            threading.Timer(1.2, ready.set).start()
        ready.wait()
        answer(ask, send)

    return measure(loadstone, reply, "--input 64 --output 4 --warmup 30 --rate 30 --requests 30 --burstiness inf")


# --- did the server show one state? -----------------------------------------------------------------------------


def slowly(loadstone: Loadstone, flags: str) -> Outcome:
    """Measure a server that answers one request after another, at most 66 a second."""
    one_at_a_time = threading.Lock()

    def reply(ask: Ask, send: Send) -> None:
        with one_at_a_time:
            time.sleep(0.015)
            answer(ask, send)

    return measure(loadstone, reply, flags)


@planted("a rate beyond the server's capacity", "overload")
def beyond_capacity(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    return slowly(loadstone, "--input 64 --output 4 --warmup 0 --rate 120 --requests 80")


@planted("the same, where first tokens come at once and decoding is shared by all", "queue_grows")
def decoding_shared(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    one_at_a_time = threading.Lock()

    def reply(ask: Ask, send: Send) -> None:
        first, *rest = events(ask)
        send(SSE + chunk(first))
        for one in rest:
            with one_at_a_time:
                time.sleep(0.01)
            send(chunk(one))
        send(LAST_CHUNK)

    return measure(loadstone, reply, "--input 64 --output 4 --warmup 0 --rate 120 --requests 120")


@planted("a trace beyond the server's capacity", "overload")
def trace_beyond_capacity(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    rows = [{"timestamp": 8 * i, "input_length": 64, "output_length": 4} for i in range(120)]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return slowly(loadstone, f"--trace {trace} --warmup 0")


@planted("a ramp that ends at a peak beyond it", "overload")
def ramp_beyond_capacity(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    return slowly(loadstone, "--input 64 --output 4 --warmup 0 --ramp 5:150:1.5s")


@planted("prefill grows slower during the cell", "not_stationary")
def slower_prefill(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    def reply(ask: Ask, send: Send) -> None:
        time.sleep(0.005 + 0.0004 * ask.number)
        answer(ask, send)

    return measure(loadstone, reply, f"{CLOSED} --requests 80")


@planted("decoding grows slower during the cell", "not_stationary")
def slower_decoding(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    def reply(ask: Ask, send: Send) -> None:
        say(send, events(ask), 0.001 + 0.0003 * ask.number)  # to more than a busy machine's time slices

    return measure(loadstone, reply, f"{CLOSED} --requests 80")


@planted("the server slows down at once, half-way through", "not_stationary")
def slower_at_once(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    def reply(ask: Ask, send: Send) -> None:
        time.sleep(0.01 if ask.number < 40 else 0.04)
        answer(ask, send)

    return measure(loadstone, reply, f"{CLOSED} --requests 80")


@planted("warm-up requests that are refused", "warmup_failed")
def not_ready(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    def reply(ask: Ask, send: Send) -> None:
        send(whole("503 No", b"loading")) if ask.number < 3 else answer(ask, send)

    return measure(loadstone, reply, f"{CLOSED} --warmup 4")


@planted("answers that end long after their last token", "ends_late")
def ends_late(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    def reply(ask: Ask, send: Send) -> None:
        *said, counts, done = events(ask)
        send(SSE + b"".join(map(chunk, said)))
        time.sleep(0.1)
        send(chunk(counts) + chunk(done) + LAST_CHUNK)

    return measure(loadstone, reply)


# --- did the client see it as it was? ---------------------------------------------------------------------------


@planted("a proxy that sends answers on when they are whole", "arrivals_bunched")
def buffered(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    def reply(ask: Ask, send: Send) -> None:
        time.sleep(0.02)
        send(SSE + b"".join(map(chunk, events(ask))) + LAST_CHUNK)

    return measure(loadstone, reply)


@planted("a server that writes only every 50 ms", "tpot_understated")
def written_in_batches(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    def reply(ask: Ask, send: Send) -> None:
        said = events(ask)
        time.sleep(0.05)
        send(SSE + b"".join(map(chunk, said[:4])))
        time.sleep(0.05)
        send(b"".join(map(chunk, said[4:])) + LAST_CHUNK)

    return measure(loadstone, reply)


@planted("the client gets no processor while tokens arrive", "client_read_late")
def reads_late(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    def reply(ask: Ask, send: Send) -> None:
        said = events(ask)
        send(SSE + chunk(said[0]))
        time.sleep(0.01)
        signal_worker(signal.SIGSTOP)
        for one in said[1:]:
            send(chunk(one))
            time.sleep(0.001)
        time.sleep(0.02)
        signal_worker(signal.SIGCONT)
        # Data that is read together carries the stamp of the newest: the end may not overtake the reader.
        assert eventually(lambda: all(state_of(pid) == "S" for pid in workers()))
        send(LAST_CHUNK)

    return measure(loadstone, reply, f"{CLOSED} --concurrency 1 --requests 12")


# --- are the answers what was asked for? ------------------------------------------------------------------------


@planted("the engine ignores `ignore_eos` and stops early", "short_outputs")
def short(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    def reply(ask: Ask, send: Send) -> None:
        say(send, [*full(3, "stop"), counted(ask.prompt_tokens, 3), DONE]) if ask.number % 6 == 3 else answer(
            ask, send
        )

    return measure(loadstone, reply)


@planted("the engine ignores `max_tokens` and goes on", "output_length")
def long(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    def reply(ask: Ask, send: Send) -> None:
        count = ask.output_tokens + 4
        say(send, [*full(count), counted(ask.prompt_tokens, count), DONE])

    return measure(loadstone, reply)


@planted("the engine reads more prompt tokens than were sent", "input_length")
def longer_prompts(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    def reply(ask: Ask, send: Send) -> None:
        say(send, [*full(ask.output_tokens), counted(ask.prompt_tokens + 3, ask.output_tokens), DONE])

    return measure(loadstone, reply)


@planted("another model answers some requests, as a router's fallback does", "other_model")
def fallback(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    def reply(ask: Ask, send: Send) -> None:
        named = b'data: {"model": "%b", ' % (b"small" if ask.number % 6 == 3 else b"large")
        say(send, (one.replace(b"data: {", named) for one in events(ask)))

    return measure(loadstone, reply)


@planted("answers without any text that count as complete", "empty_answers")
def empty(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    def reply(ask: Ask, send: Send) -> None:
        if ask.number % 6 == 3:
            say(send, [token("", "length"), usage(ask), DONE])
        else:
            answer(ask, send)

    return measure(loadstone, reply)


@planted("answers that end after one token", "empty_answers")
def one_token(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    def reply(ask: Ask, send: Send) -> None:
        say(send, [token(finish="stop"), counted(ask.prompt_tokens, 1), DONE])

    prompts = tmp_path / "prompts.jsonl"  # with lengths of their own, which are caps
    prompts.write_text("".join(json.dumps({"prompt": f"what is {i}", "max_tokens": 30}) + "\n" for i in range(12)))
    return measure(loadstone, reply, f"--dataset {prompts} --warmup 0 --concurrency 2 --requests 12")


@planted("some answers stop by themselves, though lengths are exact", "finish_reasons")
def stops(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    def reply(ask: Ask, send: Send) -> None:
        say(send, [*full(ask.output_tokens, "stop" if ask.number % 6 == 3 else "length"), usage(ask), DONE])

    return measure(loadstone, reply)


# --- can the tokens be counted on? ------------------------------------------------------------------------------


@planted("no usage in any answer", "no_usage")
def without_usage(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    return measure(loadstone, lambda ask, send: say(send, [*full(ask.output_tokens), DONE]))


@planted("no usage in some answers", "no_usage")
def partly_without_usage(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    def reply(ask: Ask, send: Send) -> None:
        answer_without_usage(ask, send) if ask.number % 6 == 3 else answer(ask, send)

    return measure(loadstone, reply)


@planted("hidden reasoning: tokens that are counted and not streamed", "tokens_not_streamed")
def hidden_tokens(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    def reply(ask: Ask, send: Send) -> None:
        say(send, [*full(4), counted(ask.prompt_tokens, ask.output_tokens), DONE])

    return measure(loadstone, reply, f"{CLOSED} --output 400")


@planted("tokens that are streamed and not counted", "fewer_tokens_than_events")
def uncounted_tokens(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    def reply(ask: Ask, send: Send) -> None:
        say(send, [*full(2 * ask.output_tokens), counted(ask.prompt_tokens, ask.output_tokens), DONE])

    return measure(loadstone, reply)


@planted("prompts found in the prefix cache, by the answers' usage", "prefix_cache_helped")
def cached_by_usage(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    def reply(ask: Ask, send: Send) -> None:
        counts = counted(ask.prompt_tokens, ask.output_tokens, ask.prompt_tokens - 16)
        say(send, [*full(ask.output_tokens), counts, DONE])

    return measure(loadstone, reply)


@planted("prompts found in the prefix cache, by the server's counters", "prefix_cache_helped")
def cached_by_counters(loadstone: Loadstone, tmp_path: Path) -> Outcome:
    hits = queries = 0

    def reply(ask: Ask, send: Send) -> None:
        nonlocal hits, queries
        if ask.path == "/metrics":
            counters = {"vllm:prefix_cache_hits_total": hits, "vllm:prefix_cache_queries_total": queries}
            page = "".join(f"# TYPE {name} counter\n{name} {value}\n" for name, value in counters.items())
            send(whole("200 OK", page.encode(), "text/plain"))
        elif not ask.measured:
            answer(ask, send)
        else:
            hits, queries = hits + ask.prompt_tokens - 16, queries + ask.prompt_tokens
            counts = {"prompt_tokens": ask.prompt_tokens, "completion_tokens": ask.output_tokens}
            say(send, [*full(ask.output_tokens), event({"choices": [], "usage": counts}), DONE])

    return measure(loadstone, reply, meets=True)


DRIFTS = {"not_stationary", "queue_grows"}
"""Planted by less than a busy machine makes everything wait."""


@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(plant, id=plant.run.__name__, marks=[pytest.mark.quiet] if plant.kind in DRIFTS else [])
        for plant in PLANTED
    ],
)
def test_a_planted_error_is_flagged(plant: Planted, loadstone: Loadstone, tmp_path: Path) -> None:
    outcome = plant.run(loadstone, tmp_path)
    assert plant.kind in spoilt_by(outcome), outcome.document["cells"]
    assert not any(cell["verdict"]["trusted"] for cell in outcome.document["cells"])


def test_strict_runs_fail_where_an_error_is_planted(loadstone: Loadstone) -> None:
    assert measure(loadstone, answer_without_usage, f"{CLOSED} --strict").code == 1
    assert measure(loadstone, answer_without_usage).code == 0


def answer_without_usage(ask: Ask, send: Send) -> None:
    say(send, [*full(ask.output_tokens), DONE])


@pytest.mark.parametrize("how", ["", "--no-stream"])
@pytest.mark.parametrize("texts", [1, 16, 60])
def test_different_prompts_with_the_same_text_are_told(texts: int, how: str, loadstone: Loadstone) -> None:
    """Nothing in their timing tells of it. Engines with weights at random do so too: it spoils nothing."""

    def reply(ask: Ask, send: Send) -> None:
        first = f" {ask.number % texts}"
        if not ask.json.get("stream"):
            choice = {"index": 0, "text": first + " and" * (ask.output_tokens - 1), "finish_reason": "length"}
            counts = {"prompt_tokens": ask.prompt_tokens, "completion_tokens": ask.output_tokens}
            send(whole("200 OK", json.dumps({"choices": [choice], "usage": counts}).encode()))
            return
        made = [token(first), *[token(" and")] * (ask.output_tokens - 2), token(" and", "length")]
        say(send, [*made, usage(ask), DONE], 0.0005 + 0.00001 * (ask.number % 7))

    flags = f"--input 64 --output 8 --warmup 0 --concurrency 2 --requests 60 {how}"
    with ScriptedServer(reply) as server:
        outcome = loadstone("bench", server.url, *flags.split(), "--workers", 1, "--json")
    found = {each["kind"]: each for each in outcome.document["cells"][0]["verdict"]["findings"]}
    if texts == 60:
        assert "answers_repeated" not in found
    else:
        assert found["answers_repeated"]["severity"] == "info"
        assert found["answers_repeated"]["evidence"] == (
            f"the first 32 different prompts were answered with {texts} different texts"
        )


def test_the_page_has_the_same_list() -> None:
    rows = re.findall(r"^\| (.+) \| `(\w+)` \|$", TRUST.read_text(), re.MULTILINE)
    assert rows == [(plant.error, plant.kind) for plant in PLANTED]


# --- clean runs -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def steady() -> Iterator[TimingServer]:
    """Slower than the noise of a test machine."""
    with start(Law(ttft_s=0.03, itl_s=0.004)) as server:
        yield server


def clean(outcome: Outcome, requests: int | None = None) -> None:
    """All was measured, and nothing is in doubt."""
    assert outcome.code == 0, outcome
    for cell in outcome.document["cells"]:
        assert cell["requests"]["ok"] == cell["requests"]["sent"] == (requests or cell["requests"]["sent"]) > 0
    assert not outcome.spoilt_by, [cell["verdict"] for cell in outcome.document["cells"]]


LOADS = {
    "closed": ("--concurrency 4 --requests 60", 60),
    "open": ("--rate 50 --requests 60", 60),
    "burst": ("--rate inf --requests 24", 24),
    "ramp": ("--ramp 10:40:1s", None),
    "ramp up and down again": ("--ramp 10:40:1s,40:5:1s", None),
    "ramp of the concurrency": ("--ramp concurrency=1:4:1s", None),
    "for a time": ("--concurrency 4 --duration 1s", None),
    "sessions": ("--turns 3 --think-time 10ms --concurrency 4 --requests 24", 24),
    "prefix": ("--input 256 --prefix 192 --prefix-groups 2 --concurrency 4 --requests 24", 24),
    "drawn lengths": ("--input uniform:32:128 --output uniform:4:12 --concurrency 4 --requests 60", 60),
    "chat": ("--endpoint chat --concurrency 4 --requests 24", 24),
    "in one piece": ("--no-stream --concurrency 4 --requests 24", 24),
}


@pytest.mark.parametrize("load", LOADS)
def test_a_clean_run_is_trusted(load: str, loadstone: Loadstone, steady: TimingServer) -> None:
    flags, requests = LOADS[load]
    given = [] if "--input" in flags else ["--input", 64, "--output", 8]
    clean(loadstone("bench", steady.url, *given, *flags.split(), "--json"), requests)


def test_a_clean_trace_is_trusted(loadstone: Loadstone, steady: TimingServer, tmp_path: Path) -> None:
    rows: list[Json] = [
        {"timestamp": 50 * i, "input_length": 600, "output_length": 8, "hash_ids": [i // 4, 100 + i]}
        for i in range(24)
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    clean(loadstone("bench", steady.url, "--trace", trace, "--json"))


def test_a_clean_dataset_is_trusted(loadstone: Loadstone, steady: TimingServer, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"what is {i} times {i}"}) + "\n" for i in range(12)))
    flags = ("--dataset", prompts, "--output", 8, "--concurrency", 4, "--requests", 24, "--json")
    clean(loadstone("bench", steady.url, *flags), 24)


def test_a_clean_fleet_is_trusted(loadstone: Loadstone, steady: TimingServer) -> None:
    with start(Law(ttft_s=0.03, itl_s=0.004)) as other:
        flags = ["--input", "64", "--output", "8", "--concurrency", "4", "--requests", "24", "--json"]
        clean(loadstone("bench", steady.url, other.url, *flags), 24)


ENGINE_LOADS = {
    "closed": ("--concurrency 2 --requests 24", 24),
    "open": ("--rate 12 --requests 24", 24),
    "sessions": ("--turns 3 --concurrency 2 --requests 24", 24),
    "drawn lengths": ("--input uniform:32:96 --output uniform:8:24 --concurrency 2 --requests 24", 24),
}


@pytest.fixture(scope="module")
def llama_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        _ = llama_cpp.find() or llama_cpp.fetch()
    except InputError as error:
        pytest.skip(str(error))
    log = tmp_path_factory.mktemp("llama") / "log"
    with llama_cpp.launch(slots=4, context_tokens=512, log_path=log) as engine:
        yield engine.url


@pytest.mark.quiet
@pytest.mark.parametrize("load", ENGINE_LOADS)
def test_a_clean_run_of_llama_server_is_trusted(load: str, loadstone: Loadstone, llama_server: str) -> None:
    clean_on(llama_server, load, loadstone)


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """On one core: on all of them its processes starve the client, and every run says so, rightly."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # what is started now inherits it
    try:
        with launch.launch("vLLM", tmp_path_factory.mktemp("vllm")) as engine:
            os.sched_setaffinity(0, cores)
            yield engine.url
    except launch.NotInstalled as reason:
        pytest.skip(str(reason))
    finally:
        os.sched_setaffinity(0, cores)


@pytest.mark.slow
@pytest.mark.parametrize("load", ["closed", "open", "drawn lengths"])
def test_a_clean_run_of_vllm_is_trusted(load: str, loadstone: Loadstone, vllm: str) -> None:
    clean_on(vllm, load, loadstone)


def clean_on(url: str, load: str, loadstone: Loadstone) -> None:
    flags, requests = ENGINE_LOADS[load]
    given = [] if "--input" in flags else ["--input", 64, "--output", 16]
    clean(loadstone("bench", url, *given, *flags.split(), "--json"), requests)
