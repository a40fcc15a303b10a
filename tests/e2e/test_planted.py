"""Measurement errors planted on purpose, each of which its own finding must flag; and clean runs,
where none may.

benchmarks/results/planted.md has the same list for readers: each plant below is a line of its
table.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from conftest import (
    BUSY_MACHINE,
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
    lines,
    needs_packets,
    processes_about,
    state_of,
    token,
    usage,
    whole,
)
from engines import launch
from loadstone.core.errors import InputError
from loadstone.measure.engines import llama_cpp
from loadstone.measure.simulated_server import FixedLatency, TimingServer, start
from replies import DONE, counted, say, sends, tokens

ROOT = Path(__file__).resolve().parents[2]
TRUST = ROOT / "benchmarks" / "results" / "planted.md"
CLOSED = "--input 64 --output 8 --warmup 0 --concurrency 2 --requests 24"
LONGER = f"{CLOSED} --requests 80"
SHORT = "--input 64 --output 4 --warmup 0"
TRACE = [{"timestamp": 8 * i, "input_length": 64, "output_length": 4} for i in range(120)]
PROMPTS = [{"prompt": f"what is {i}", "max_tokens": 30} for i in range(12)]
"""With lengths of their own, which are caps."""


class Plant(NamedTuple):
    error: str
    """As benchmarks/results/planted.md has it."""
    kind: str
    reply: Reply
    flags: str
    meets: bool


PLANTED: list[Plant] = []


def plant(
    error: str, kind: str, reply: Reply, flags: str = CLOSED, *, of: int = 0, meets: bool = False
) -> None:
    """Plant an error by how a server replies: to the fourth `of` so many requests, or to all."""

    def sometimes(ask: Ask, send: Send) -> None:
        (reply if ask.number % of == 3 else answer)(ask, send)

    PLANTED.append(Plant(error, kind, sometimes if of else reply, flags, meets))


def planted(error: str, kind: str, flags: str = CLOSED, *, of: int = 0) -> Callable[[Reply], Reply]:
    def keep(reply: Reply) -> Reply:
        plant(error, kind, reply, flags, of=of)
        return reply

    return keep


def measure(loadstone: Loadstone, reply: Reply, flags: str = CLOSED) -> Outcome:
    with ScriptedServer(reply) as server:
        return loadstone("bench", server.url, *flags.split(), "--json")


def saying(said: Callable[[Ask], list[bytes]]) -> Reply:
    return lambda ask, send: say(send, said(ask))


# --- was all of it measured? ----------------------------------------------------------------------

FAILURE = event({"error": {"message": "CUDA out of memory", "code": 500}})
RESENT = "requests dropped with their kept connections, which the client sends again"
plant(
    "HTTP 500 for some requests", "request_errors", sends(whole("500 Oh", b"out of memory")), of=8
)
plant(
    "an error object in the stream, after HTTP 200", "request_errors",
    saying(lambda ask: [token(), FAILURE, DONE]), of=8,
)  # fmt: skip
plant(
    "streams cut off half-way",
    "request_errors",
    sends(SSE, chunk(token()) * 2, then=Hangup, pause_s=0),
    of=8,
)
plant(RESENT, "requests_resent", sends(then=Hangup), LONGER, of=8)
plant(
    "answers that never begin",
    "request_errors",
    sends(then=1.0),
    f"{CLOSED} --timeout-first 500ms",
    of=1000,
)


@planted("a client worker killed during the cell", "interrupted", f"{CLOSED} --requests 120")
def worker_killed(ask: Ask, send: Send) -> None:
    if ask.number == 60:
        signal_worker(signal.SIGKILL)
    say(send, events(ask), 0.002)


def with_metrics(page: Callable[[int], dict[str, float]]) -> Reply:
    """Reply with these counters (or gauges, of a start time) after so many measured requests."""

    def reply(ask: Ask, send: Send) -> None:
        if ask.path != "/metrics":
            answer(ask, send)
            return
        lines = [
            f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}\n{name} {value}\n"
            for name, value in page(ask.number).items()
        ]
        send(whole("200 OK", "".join(lines).encode(), "text/plain"))

    return reply


def moved_start(asked: int) -> dict[str, float]:
    return {"process_start_time_seconds": 1.7e9 if asked < 12 else 1.7e9 + 60}


def new_counters(asked: int) -> dict[str, float]:
    since = 1000 + asked if asked < 12 else asked - 12
    return {
        "vllm:prompt_tokens_total": since,
        "vllm:generation_tokens_total": since,
        "vllm:num_preemptions_total": 0,
    }


plant(
    "the engine restarts: its start time moves",
    "engine_restarted",
    with_metrics(moved_start),
    meets=True,
)
plant(
    "the engine restarts: its counters begin anew",
    "engine_restarted",
    with_metrics(new_counters),
    meets=True,
)


# --- was the load the one that was planned? -------------------------------------------------------


def workers() -> list[int]:
    """Return the processes of the client that this process has started."""
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
    """Leave the client without a processor for so long."""
    signal_worker(signal.SIGSTOP)
    time.sleep(seconds)
    signal_worker(signal.SIGCONT)


def frozen(seconds: float) -> Reply:
    def reply(ask: Ask, send: Send) -> None:
        if ask.number == 20:
            threading.Thread(target=freeze_for, args=(seconds,)).start()
        answer(ask, send)

    return reply


OPEN = "--input 64 --output 8 --warmup 0 --rate 80 --requests 60"
EVEN = f"{OPEN} --burstiness inf"
plant("the client gets no processor for a moment, in an open loop", "sends_late", frozen(0.2), EVEN)
plant("the client falls behind its rate", "rate_not_reached", frozen(1.0), EVEN)


@planted(
    "`--max-concurrency` makes an open loop a closed one",
    "cap_held_back",
    f"{OPEN} --max-concurrency 1",
)
def capped(ask: Ask, send: Send) -> None:
    say(send, events(ask), 0.002)


COMPILED = threading.Event()


@planted(
    "the first requests wait for an engine that compiles, and warm-up with them", "warmup_leaked",
    "--input 64 --output 4 --warmup 30 --rate 30 --requests 30 --burstiness inf",
)  # fmt: skip
def compiles(ask: Ask, send: Send) -> None:
    if ask.number == 0:
        threading.Timer(1.2, COMPILED.set).start()
    COMPILED.wait()
    answer(ask, send)


# --- did the server show one state? ---------------------------------------------------------------

ONE_AT_A_TIME = threading.Lock()


def one_by_one(ask: Ask, send: Send) -> None:
    """Answer one request after another, at most 66 a second."""
    with ONE_AT_A_TIME:
        time.sleep(0.015)
        answer(ask, send)


plant(
    "a rate beyond the server's capacity",
    "overload",
    one_by_one,
    f"{SHORT} --rate 120 --requests 80",
)


@planted(
    "the same, where first tokens come at once and decoding is shared by all", "queue_grows",
    f"{SHORT} --rate 120 --requests 120",
)  # fmt: skip
def decoding_shared(ask: Ask, send: Send) -> None:
    first, *rest = events(ask)
    send(SSE + chunk(first))
    for one in rest:
        with ONE_AT_A_TIME:
            time.sleep(0.01)
        send(chunk(one))
    send(LAST_CHUNK)


plant("a trace beyond the server's capacity", "overload", one_by_one, "--trace {trace} --warmup 0")
plant("a ramp that ends at a peak beyond it", "overload", one_by_one, f"{SHORT} --ramp 5:150:1.5s")


@planted("prefill grows slower during the cell", "not_stationary", LONGER)
def slower_prefill(ask: Ask, send: Send) -> None:
    time.sleep(0.005 + 0.0004 * ask.number)
    answer(ask, send)


@planted("decoding grows slower during the cell", "not_stationary", LONGER)
def slower_decoding(ask: Ask, send: Send) -> None:
    say(send, events(ask), 0.001 + 0.0003 * ask.number)  # to more than a busy machine's time slices


@planted("the server slows down at once, half-way through", "not_stationary", LONGER)
def slower_at_once(ask: Ask, send: Send) -> None:
    time.sleep(0.01 if ask.number < 40 else 0.04)
    answer(ask, send)


@planted("warm-up requests that are refused", "warmup_failed", f"{CLOSED} --warmup 4")
def not_ready(ask: Ask, send: Send) -> None:
    send(whole("503 No", b"loading")) if ask.number < 3 else answer(ask, send)


@planted("answers that end long after their last token", "ends_late")
def ends_late(ask: Ask, send: Send) -> None:
    *said, counts, done = events(ask)
    send(SSE + b"".join(map(chunk, said)))
    time.sleep(0.1)
    send(chunk(counts) + chunk(done) + LAST_CHUNK)


# --- did the client see it as it was? -------------------------------------------------------------


@planted("a proxy that sends answers on when they are whole", "arrivals_bunched")
def buffered(ask: Ask, send: Send) -> None:
    time.sleep(0.02)
    send(SSE + b"".join(map(chunk, events(ask))) + LAST_CHUNK)


@planted("a server that writes only every 50 ms", "tpot_understated")
def written_in_batches(ask: Ask, send: Send) -> None:
    said = events(ask)
    time.sleep(0.05)
    send(SSE + b"".join(map(chunk, said[:4])))
    time.sleep(0.05)
    send(b"".join(map(chunk, said[4:])) + LAST_CHUNK)


@planted(
    "the client gets no processor while tokens arrive",
    "client_read_late",
    f"{CLOSED} --concurrency 1 --requests 12",
)
def reads_late(ask: Ask, send: Send) -> None:
    said = events(ask)
    send(SSE + chunk(said[0]))
    time.sleep(0.01)
    signal_worker(signal.SIGSTOP)
    for one in said[1:]:
        send(chunk(one))
        time.sleep(0.001)
    time.sleep(0.02)
    signal_worker(signal.SIGCONT)
    # Data that is read together carries the stamp of the newest: the end may not overtake the
    # reader.
    assert eventually(lambda: all(state_of(pid) == "S" for pid in workers()))
    send(LAST_CHUNK)


# --- are the answers what was asked for? ----------------------------------------------------------


def tells(
    more_output: int = 0, more_input: int = 0, cached: int = 0, streamed: int | None = None
) -> Reply:
    """Reply with tokens and counts that differ by so much from those that were asked for."""

    def said(ask: Ask) -> list[bytes]:
        count = ask.output_tokens + more_output
        counts = counted(
            ask.prompt_tokens + more_input,
            count,
            max(0, ask.prompt_tokens - cached) if cached else 0,
        )
        return [*tokens(streamed or count), counts, DONE]

    return saying(said)


def named(ask: Ask, send: Send) -> None:
    model = b'data: {"model": "%b", ' % (b"small" if ask.number % 6 == 3 else b"large")
    say(send, (one.replace(b"data: {", model) for one in events(ask)))


def stops(ask: Ask) -> list[bytes]:
    return [*tokens(ask.output_tokens, "stop"), usage(ask), DONE]


plant(
    "the engine ignores `ignore_eos` and stops early", "short_outputs",
    saying(lambda ask: [*tokens(3, "stop"), counted(ask.prompt_tokens, 3), DONE]), of=6,
)  # fmt: skip
plant("the engine ignores `max_tokens` and goes on", "output_length", tells(more_output=4))
plant("the engine reads more prompt tokens than were sent", "input_length", tells(more_input=3))
plant("another model answers some requests, as a router's fallback does", "other_model", named)
plant(
    "answers without any text that count as complete", "empty_answers",
    saying(lambda ask: [token("", "length"), usage(ask), DONE]), of=6,
)  # fmt: skip
plant(
    "answers that end after one token", "empty_answers",
    saying(lambda ask: [token(finish="stop"), counted(ask.prompt_tokens, 1), DONE]),
    "--dataset {prompts} --warmup 0 --concurrency 2 --requests 12",
)  # fmt: skip
plant(
    "some answers stop by themselves, though lengths are exact",
    "finish_reasons",
    saying(stops),
    of=6,
)


# --- can the tokens be counted on? ----------------------------------------------------------------


def cache_counters(asked: int) -> dict[str, float]:
    return {
        "vllm:prefix_cache_hits_total": 48 * asked,
        "vllm:prefix_cache_queries_total": 64 * asked,
    }


def cached(ask: Ask, send: Send) -> None:
    if not ask.measured:
        with_metrics(cache_counters)(ask, send)
    else:
        counts = {"prompt_tokens": ask.prompt_tokens, "completion_tokens": ask.output_tokens}
        say(send, [*tokens(ask.output_tokens), event({"choices": [], "usage": counts}), DONE])


no_usage = saying(lambda ask: [*tokens(ask.output_tokens), DONE])
plant("no usage in any answer", "no_usage", no_usage)
plant("no usage in some answers", "no_usage", no_usage, of=6)
plant(
    "hidden reasoning: tokens that are counted and not streamed", "tokens_not_streamed",
    tells(streamed=4), f"{CLOSED} --output 400",
)  # fmt: skip
plant("tokens that are streamed and not counted", "fewer_tokens_than_events", tells(streamed=16))
plant(
    "prompts found in the prefix cache, by the answers' usage",
    "prefix_cache_helped",
    tells(cached=16),
)
plant(
    "prompts found in the prefix cache, by the server's counters",
    "prefix_cache_helped",
    cached,
    meets=True,
)


def made_counters(asked: int) -> dict[str, float]:
    """Half of the tokens that the answers state."""
    return {"vllm:generation_tokens_total": 4 * asked}


def overcharged(ask: Ask, send: Send) -> None:
    (answer if ask.measured else with_metrics(made_counters))(ask, send)


plant(
    "answers that state twice the tokens that the engine counts",
    "counters_differ",
    overcharged,
    meets=True,
)


@planted("a gateway's own words before the model's", "first_events_alike")
def greets(ask: Ask, send: Send) -> None:
    said = [token(" Sure"), token(f" {ask.number}"), *tokens(ask.output_tokens - 2)]
    say(send, [*said, usage(ask), DONE], 0.02)


@planted("answers billed by another tokenizer", "tokens_not_streamed", f"{CLOSED} --output 96")
def billed(ask: Ask, send: Send) -> None:
    say(send, [*tokens(69), usage(ask), DONE])


@planted(
    "answers replayed at paces of their own", "paces_apart", f"{CLOSED} --output 32 --requests 48"
)
def replayed(ask: Ask, send: Send) -> None:
    time.sleep(0.05)
    say(send, events(ask), 0.002 * 1.35 ** (ask.number * 5 % 9))


ATTEMPTS = 3
"""Runs, where a machine that others keep busy hides what was planted, or makes a real engine
uneven."""
DRIFTS = {"not_stationary", "queue_grows"}
"""Planted by less than a busy machine makes everything wait."""


# --- what became of pictures, and of texts that vectors are asked for -----------------------------

PICTURED = (
    "--endpoint chat --images 1 --image-size 256x256 --image-format png --input 64 --output 4"
    " --warmup 0 --concurrency 2 --requests 24 --deployment qwen3-vl-8b@1xh200"
)
LARGE = "--image-content noise --image-size"
SEEN = 64
"""Tokens of a picture of 256x256, by the rule of Qwen3-VL."""


def seeing(visual: int, cached: int = 0) -> Reply:
    """Answer chats: each picture is so many tokens, and so many of a prompt were cached."""

    def reply(ask: Ask, send: Send) -> None:
        if ask.path != "/v1/chat/completions":
            answer(ask, send)
            return
        content = ask.json["messages"][-1]["content"]
        parts = [{"text": content}] if isinstance(content, str) else content
        text = "".join(part.get("text", "") for part in parts)
        pictures = sum("image_url" in part for part in parts)
        counts = {
            "prompt_tokens": len(text.split()) + visual * pictures,
            "completion_tokens": ask.output_tokens,
            "prompt_tokens_details": {"cached_tokens": cached * pictures},
        }
        if not ask.json.get("stream"):
            message = {"message": {"content": " time"}, "finish_reason": "length"}
            document = {"choices": [message], "usage": counts}
            send(whole("200 OK", json.dumps(document).encode()))
            return
        send(SSE)
        for place in range(ask.output_tokens):
            finish = "length" if place == ask.output_tokens - 1 else None
            choice = {"index": 0, "delta": {"content": " time"}, "finish_reason": finish}
            send(chunk(event({"choices": [choice]})))
            time.sleep(0.0005)
        for last in (event({"choices": [], "usage": counts}), DONE):
            send(chunk(last))
        send(LAST_CHUNK)

    return reply


def refuse_pictures(ask: Ask, send: Send) -> None:
    """Take texts alone."""
    if ask.path == "/v1/chat/completions" and b"image_url" in ask.body:
        said = {"error": {"message": "At most 0 image(s) may be provided in one prompt."}}
        send(whole("400 Bad Request", json.dumps(said).encode()))
    else:
        seeing(SEEN)(ask, send)


for error, kind, reply, flags in (
    ("pictures are dropped, and the text alone is answered", "images_dropped", seeing(0), ""),
    (
        "pictures become other tokens than the stated model's rule makes of them",
        "visual_tokens_differ", seeing(2 * SEEN), "",
    ),
    ("requests are refused for their pictures", "images_refused", refuse_pictures, ""),
    (
        "new pictures found in a cache, by the answers' usage",
        "image_cache_helped", seeing(SEEN, 2 * SEEN - 8), "",
    ),
    (
        "pictures that take longer to make than the load leaves time",
        "images_late", seeing(SEEN), f"{LARGE} 1000x1000 --rate 500 --requests 12",
    ),
    (
        "pictures that take longer to leave than the server to answer",
        "upload_dominates", seeing(SEEN), f"{LARGE} 1500x1500 --requests 6",
    ),
):  # fmt: skip
    load = PICTURED.replace("--concurrency 2", "") if "--rate" in flags else PICTURED
    plant(error, kind, reply, f"{load} {flags}", meets=True)

POOLED = "--endpoint embeddings --inputs 2 --input 32 --warmup 0 --concurrency 2 --requests 24"


def distinct(text: str) -> list[float]:
    return [zlib.crc32(text.encode()) / 2**32, 0.5]


def embedding(vector: Callable[[str], list[float]] = distinct, most: int = 1000) -> Reply:
    """Give a vector for each text, of which so many tokens are read."""

    def reply(ask: Ask, send: Send) -> None:
        if ask.path != "/v1/embeddings":
            answer(ask, send)
            return
        asked = ask.json["input"]
        several = isinstance(asked, list) and not isinstance(asked[0], int)
        texts = asked if several else [asked]
        read = [min(most, len(text.split() if isinstance(text, str) else text)) for text in texts]
        entries = [
            {"index": place, "embedding": vector(str(text))} for place, text in enumerate(texts)
        ]
        document = {"data": entries, "usage": {"prompt_tokens": sum(read)}}
        send(whole("200 OK", json.dumps(document).encode()))

    return reply


for error, kind, reply, flags in (
    ("texts are cut before they become vectors", "inputs_truncated", embedding(most=16), ""),
    (
        "vectors of another length than `dimensions` asks",
        "dimensions_ignored", embedding(), "--extra-body {{\"dimensions\":64}}",
    ),
    ("vectors with numbers that are none", "vectors_odd", embedding(lambda _: [1.0, math.nan]), ""),
    (
        "vectors of several lengths, as of two models",
        "vectors_odd", embedding(lambda text: distinct(text)[: 1 + zlib.crc32(text.encode()) % 2]), "",
    ),
    ("one vector for all texts", "vectors_alike", embedding(lambda _: [0.5, 0.5]), ""),
):  # fmt: skip
    plant(error, kind, reply, f"{POOLED} {flags}", meets=True)


@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(each, id=each.error, marks=[pytest.mark.quiet] if each.kind in DRIFTS else [])
        for each in PLANTED
    ],
)
def test_a_planted_error_is_flagged(plant: Plant, loadstone: Loadstone, tmp_path: Path) -> None:
    files = {"trace": TRACE, "prompts": PROMPTS}
    for name, rows in files.items():
        (tmp_path / name).with_suffix(".jsonl").write_text(lines(*rows))
    flags = plant.flags.format_map({name: tmp_path / f"{name}.jsonl" for name in files})
    for _ in range(ATTEMPTS):
        with ScriptedServer(plant.reply, meets=plant.meets, reads_late_s=0.4) as server:
            outcome = loadstone("bench", server.url, *flags.split(), "--json")
        findings = [
            finding for cell in outcome.document["cells"] for finding in cell["verdict"]["findings"]
        ]
        spoiling = {each["kind"] for each in findings if each["severity"] in ("warning", "error")}
        if plant.kind in spoiling or not spoiling & BUSY_MACHINE:
            break
    assert plant.kind in spoiling, outcome.document["cells"]
    assert not any(cell["verdict"]["trusted"] for cell in outcome.document["cells"])


@needs_packets
def test_packets_keep_their_times_where_the_client_reads_late(loadstone: Loadstone) -> None:
    flags = f"{CLOSED} --concurrency 1 --requests 4 --clock packets"
    outcome = measure(loadstone, reads_late, flags)
    assert outcome.cell["client"]["clock"] == "packets"
    assert not {"client_read_late", "packets_missed", "user_clock"} & {
        each["kind"] for each in outcome.cell["verdict"]["findings"]
    }
    for record in outcome.records:
        assert len(set(record["arrival_s"])) == len(record["arrival_s"]) == 8


def test_strict_runs_fail_where_an_error_is_planted(loadstone: Loadstone) -> None:
    assert measure(loadstone, no_usage, f"{CLOSED} --strict").code == 1
    assert measure(loadstone, no_usage).code == 0


@pytest.mark.parametrize("how", ["", "--no-stream"])
@pytest.mark.parametrize("texts", [1, 16, 60])
def test_different_prompts_with_the_same_text_are_told(
    texts: int, how: str, loadstone: Loadstone
) -> None:
    """Nothing in their timing tells of it. Engines with weights at random do so too: it spoils
    nothing."""

    def reply(ask: Ask, send: Send) -> None:
        first = f" {ask.number % texts}"
        if not ask.json.get("stream"):
            choice = {
                "index": 0,
                "text": first + " and" * (ask.output_tokens - 1),
                "finish_reason": "length",
            }
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


# --- clean runs -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def steady() -> Iterator[TimingServer]:
    """Slower than the noise of a test machine."""
    with start(FixedLatency(ttft_s=0.03, itl_s=0.004)) as server:
        yield server


def clean(outcome: Outcome, requests: int | None = None) -> None:
    """All was measured, and nothing is in doubt."""
    assert outcome.code == 0, outcome
    for cell in outcome.document["cells"]:
        assert (
            cell["requests"]["ok"]
            == cell["requests"]["sent"]
            == (requests or cell["requests"]["sent"])
            > 0
        )
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
    "drawn lengths": (
        "--input uniform:32:128 --output uniform:4:12 --concurrency 4 --requests 60",
        60,
    ),
    "chat": ("--endpoint chat --concurrency 4 --requests 24", 24),
    "in one piece": ("--no-stream --concurrency 4 --requests 24", 24),
}


@pytest.mark.parametrize("load", LOADS)
def test_a_clean_run_is_trusted(load: str, loadstone: Loadstone, steady: TimingServer) -> None:
    flags, requests = LOADS[load]
    given = [] if "--input" in flags else ["--input", 64, "--output", 8]
    clean(loadstone("bench", steady.url, *given, *flags.split(), "--json"), requests)


def test_a_clean_trace_is_trusted(
    loadstone: Loadstone, steady: TimingServer, tmp_path: Path
) -> None:
    rows: list[Json] = [
        {
            "timestamp": 50 * i,
            "input_length": 600,
            "output_length": 8,
            "hash_ids": [i // 4, 100 + i],
        }
        for i in range(24)
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text(lines(*rows))
    clean(loadstone("bench", steady.url, "--trace", trace, "--json"))


def test_a_clean_dataset_is_trusted(
    loadstone: Loadstone, steady: TimingServer, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(lines(*({"prompt": f"what is {i} times {i}"} for i in range(12))))
    flags = ("--dataset", prompts, "--output", 8, "--concurrency", 4, "--requests", 24, "--json")
    clean(loadstone("bench", steady.url, *flags), 24)


def test_a_clean_fleet_is_trusted(loadstone: Loadstone, steady: TimingServer) -> None:
    with start(FixedLatency(ttft_s=0.03, itl_s=0.004)) as other:
        flags = [
            "--input",
            "64",
            "--output",
            "8",
            "--concurrency",
            "4",
            "--requests",
            "24",
            "--json",
        ]
        clean(loadstone("bench", steady.url, other.url, *flags), 24)


ENGINE_LOADS = {
    "closed": ("--concurrency 2 --requests 24", 24),
    "open": ("--rate 12 --requests 24", 24),
    "sessions": ("--turns 3 --concurrency 2 --requests 24", 24),
    "drawn lengths": (
        "--input uniform:32:96 --output uniform:8:24 --concurrency 2 --requests 24",
        24,
    ),
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
def test_a_clean_run_of_llama_server_is_trusted(
    load: str, loadstone: Loadstone, llama_server: str
) -> None:
    clean_on(llama_server, load, loadstone)


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """On one core: on all of them its processes starve the client, and every run says so,
    rightly."""
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
    for _ in range(ATTEMPTS):
        outcome = loadstone("bench", url, *given, *flags.split(), "--json")
        if not outcome.spoilt_by:
            break
    clean(outcome, requests)
