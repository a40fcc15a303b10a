"""The simulated engine over real sockets: a deployment's scheduler in real time."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import loadstone
from conftest import eventually
from loadstone.catalogue import parse_deployment, parse_worker
from loadstone.measure.simulated_server import TimingServer, start
from loadstone.measure.simulated_server.engine import RealTimeEngine
from loadstone.measure.simulated_server.stream import Keys
from loadstone.predict.scheduler import EnginePolicy, Scheduler, Sequence
from loadstone.predict.simulator.fleet import Fleet, fleet_of, longest_request, sharing
from loadstone.predict.simulator.run import State
from loadstone.predict.sizing.memory import max_context

DEPLOYMENT = "llama-3.1-8b@1xh100"
MODEL = "Llama-3.1-8B"
Json = dict[str, Any]


@pytest.fixture(scope="module")
def server() -> Iterator[TimingServer]:
    with start(DEPLOYMENT) as running:
        yield running


def stream(
    server: TimingServer, path: str = "/v1/completions", **fields: Any
) -> tuple[list[float], list[Json]]:
    """When each event came, from sending, and the events."""
    body = {"stream": True, "max_tokens": 8, "stream_options": {"include_usage": True}} | fields
    if "messages" not in body:
        body.setdefault("prompt", list(range(100)))
    times, events = [], []
    begun = time.monotonic()
    with httpx.stream("POST", server.url + path, json=body, timeout=30) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                times.append(time.monotonic() - begun)
                events.append(json.loads(line.removeprefix("data: ")))
    return times, events


def metrics(server: TimingServer) -> dict[str, float]:
    text = httpx.get(server.url + "/metrics").text
    return {
        line.partition("{")[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if not line.startswith("#")
    }


@pytest.mark.process
def test_it_answers_under_the_models_name(server: TimingServer) -> None:
    (card,) = httpx.get(server.url + "/v1/models").json()["data"]
    assert card["id"].endswith(MODEL)
    assert card["max_model_len"] == 131_072
    _, events = stream(server, model=card["id"])
    assert {event["model"] for event in events} == {card["id"]}
    refused = httpx.post(server.url + "/v1/completions", json={"model": "timing", "prompt": "a"})
    assert refused.status_code == 404


@pytest.mark.process
@pytest.mark.quiet
def test_tokens_come_at_the_deployments_speed(server: TimingServer) -> None:
    from loadstone.predict.simulator.fleet import fleet_of

    model = fleet_of(parse_deployment(DEPLOYMENT)).model
    base, slope = model.decode_line(1)
    ttft = (
        model.request_s
        + 100 * model.request_token_s
        + model.step_s(0, 0, [(100, 0)])
        + model.stream_s
    )
    last = ttft + 63 * (base + slope * 130)
    # A busy machine makes tokens late, never early.
    for _ in range(5):
        times, events = stream(server, max_tokens=64)
        assert len(events) == 65
        assert times[0] >= 0.98 * ttft
        assert times[63] >= 0.98 * last
        if times[63] <= 1.1 * last + 0.01:
            return
    if os.getloadavg()[0] > (os.cpu_count() or 1):
        pytest.skip("others use this machine's processors, and no token can be on time")
    pytest.fail(f"{times[63]:.3f} s, not {last:.3f}, for the last token")


@pytest.mark.process
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_prompt_seen_before_is_in_the_cache(server: TimingServer, path: str) -> None:
    text = " ".join(f"{path}-{number}" for number in range(200))
    asked: Json = (
        {"messages": [{"role": "user", "content": text}]} if "chat" in path else {"prompt": text}
    )
    cached = []
    for _ in range(2):
        _, events = stream(server, path, **asked)
        cached.append(events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached[0] == 0
    assert 176 <= cached[1] <= 208
    assert cached[1] % 16 == 0


@pytest.mark.process
def test_the_next_turn_finds_what_was_answered(server: TimingServer) -> None:
    messages = [{"role": "user", "content": " ".join(f"turn-{number}" for number in range(40))}]
    _, events = stream(server, "/v1/chat/completions", messages=messages, max_tokens=64)
    answer = "".join(
        event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"]
    )
    messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "and then?"}]
    _, events = stream(server, "/v1/chat/completions", messages=messages)
    # 44 of the first turn in whole blocks; the answer follows after tokens of its own message.
    assert events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] >= 32


@pytest.mark.process
def test_answers_in_one_piece(server: TimingServer) -> None:
    answer = httpx.post(
        server.url + "/v1/completions", json={"prompt": "a b c", "max_tokens": 5}, timeout=30
    ).json()
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.process
def test_what_can_never_fit_is_refused(server: TimingServer) -> None:
    with start(f"{DEPLOYMENT}/gpu_memory_utilization=0.25") as small:
        refused = httpx.post(
            small.url + "/v1/completions", json={"prompt": "a", "max_tokens": 120_000}
        )
        assert refused.status_code == 400
        longest = max_context(parse_worker(f"{DEPLOYMENT}/gpu_memory_utilization=0.25"))
        assert f"maximum context length is {longest} tokens" in refused.json()["error"]["message"]
        assert httpx.get(small.url + "/health").status_code == 200


@pytest.mark.process
def test_metrics_in_vllms_names(server: TimingServer) -> None:
    before = metrics(server)
    for name in (
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "num_preemptions_total",
        "prefix_cache_hits_total",
    ):
        assert f"vllm:{name}" in before
    started = threading.Thread(target=stream, args=(server,), kwargs={"max_tokens": 200})
    started.start()
    assert eventually(
        lambda: (
            (seen := metrics(server))["vllm:num_requests_running"] == 1
            and seen["vllm:kv_cache_usage_perc"] > 0
        )
    )
    started.join()
    after = metrics(server)
    assert after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"] == 200
    assert after["vllm:prompt_tokens_total"] - before["vllm:prompt_tokens_total"] == 100
    assert eventually(lambda: metrics(server)["vllm:num_requests_running"] == 0)


@pytest.mark.process
def test_a_client_that_leaves_leaves_the_batch(server: TimingServer) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps({"prompt": "a b c", "max_tokens": 50_000, "stream": True}).encode()
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        assert eventually(lambda: metrics(server)["vllm:num_requests_running"] == 1)
    assert eventually(lambda: metrics(server)["vllm:num_requests_running"] == 0)
    assert metrics(server)["vllm:kv_cache_usage_perc"] == 0


@pytest.mark.process
@pytest.mark.parametrize(
    ("path", "more", "said"),
    [
        ("/v1/completions", {"prompt": "a", "n": 2}, "n 2"),
        ("/v1/completions", {"prompt": "a", "best_of": 3}, "best_of 3"),
        ("/v1/completions", {"prompt": "a", "use_beam_search": True}, "use_beam_search"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "n": 2}, "n 2"),
        (
            "/generate",
            {"text": "a", "sampling_params": {"max_new_tokens": 2, "n": 2}},
            "sampling_params.n 2",
        ),
    ],
)
def test_more_answers_than_are_simulated_are_refused(
    server: TimingServer, path: str, more: Json, said: str
) -> None:
    refused = httpx.post(server.url + path, json={"max_tokens": 2} | more)
    assert refused.status_code == 400
    assert said in refused.json()["error"]["message"]


@pytest.mark.process
@pytest.mark.parametrize("path", ["/v1/completions", "/generate"])
@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([1, *[{"a": 1}] * 40], "one list of token ids"),
        ([1, *[[2]] * 40], "one list of token ids"),
        ([1, "a", None], "one list of token ids"),
        ([1, -1], "one list of token ids"),
        ([True, False], "one list of token ids"),
        ([[]], "one list of token ids"),
        (["a b", "c"], "2 prompts: one to a request"),
        ([[1, 2], [3], [4]], "3 prompts: one to a request"),
    ],
)
def test_what_is_no_prompt_is_refused(
    server: TimingServer, path: str, prompt: list[Any], said: str
) -> None:
    refused = httpx.post(
        server.url + path, json={"prompt": prompt, "text": prompt, "max_tokens": 2}
    )
    assert refused.status_code == 400
    assert said in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "deployment",
    [
        "llama-3.1-8b@1xrtx-4090/engine=sglang",
        "llama-3.1-8b@2xh200/engine=llama.cpp,dp2,num_speculative_tokens=5",
        "llama-3.1-8b@1xrtx-4090/num_speculative_tokens=3",
    ],
)
@pytest.mark.parametrize("shared", [False, True])
def test_the_longest_request_that_is_announced_is_taken(deployment: str, shared: bool) -> None:
    deployed = parse_deployment(deployment)
    policy = fleet_of(deployed).policy
    longest, _ = longest_request(deployed, policy)
    scheduler = Scheduler(sharing(policy) if shared else policy, shared=shared)
    for prompt_tokens in (1, longest - 1):
        scheduler.add(
            Sequence(0, prompt_tokens, longest - prompt_tokens)
        )  # raises where it does not fit


def test_keys_of_an_answer_are_made_as_they_are_asked_for() -> None:
    asked, answered = ["a", "b", "c"], ["w0000", "w0001", "w0002", "w0003", "w0004"]
    keys = Keys(asked, 10**12, 4)  # all at once would take hours
    assert len(keys) == (10**12 + 3) // 4
    assert keys[:2] == Keys([*asked, *answered], 0, 4)[:]
    assert keys[1] == keys[:2][-1] != keys[0]
    assert keys[:2] != Keys(["x", *asked[1:]], 10, 4)[:2]
    assert keys[1:1] == Keys(asked, 0, 4)[:] == Keys(asked, 10, 0)[:9] == []


@pytest.mark.process
def test_a_later_turn_finds_the_answer_of_the_turn_before(server: TimingServer) -> None:
    history = [{"role": "user", "content": "asked " * 100}]
    for cached in (0, 160):  # 107 + 60 tokens, less the last, in whole sixteens
        body = {"messages": history, "max_tokens": 60}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=30).json()
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
        history += [answer["choices"][0]["message"], {"role": "user", "content": "more"}]


@pytest.mark.process
def test_a_trees_single_tokens_are_all_found() -> None:
    with start(f"{DEPLOYMENT}/engine=sglang") as served:
        for cached in (0, 992):  # of 1,000: in whole sixteens
            _, events = stream(served, prompt=list(range(1000)))
            assert events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == cached


def test_a_client_that_leaves_a_pipeline_leaves_its_batch() -> None:
    """The others' batches are under way when it goes, and have their tokens."""

    async def ran() -> tuple[list[int], list[int], State]:
        policy = EnginePolicy(kv_blocks=1000, max_batched_tokens=16, max_seqs=8, pipeline=3)
        served = RealTimeEngine(asyncio.get_running_loop(), Fleet(policy, Steady()))
        streams = [Silent(output_tokens) for output_tokens in (5000, 60, 5000, 60, 60, 5000)]
        for each in streams:
            served.submit(each, time.monotonic_ns())
        leaving, staying = ([streams[at] for at in places] for places in ((0, 2, 5), (1, 3, 4)))
        await until(lambda: all(each.written for each in streams))
        for each in leaving:
            served.abandon(each)
        await until(lambda: all(each.written == 60 for each in staying))
        await until(lambda: served.states()[0].running == 0)
        (state,) = served.states()
        served.close()
        return [each.written for each in leaving], [each.written for each in staying], state

    async def until(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 15  # less than those that leave would take to their ends
        while not condition() and time.monotonic() < deadline:
            await asyncio.sleep(0.005)

    left, stayed, state = asyncio.run(ran())
    assert stayed == [60, 60, 60]
    assert max(left) < 5000
    assert (state.running, state.waiting, state.used_tokens) == (0, 0, 0)


class Steady:
    """Steps of 4 ms."""

    request_s = request_token_s = stream_s = window_tokens = window_s = 0.0

    def step_s(self, *batch: Any) -> float:
        return 0.004

    def decode_line(self, decodes: int) -> tuple[float, float]:
        return 0.004, 0.0


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["llama-3.1-405b@1xh100", "--port", "0"], "do not fit"),
        ([DEPLOYMENT, "--port", "65536"], "--port 65536"),
        ([DEPLOYMENT, "--port", "-1"], "--port -1"),
        (
            [DEPLOYMENT, "--host", "nowhere.invalid", "--port", "0"],
            "cannot listen on nowhere.invalid",
        ),
        ([DEPLOYMENT, "--acceptance", "2", "--port", "0"], "--acceptance 2"),
        (["ttft=30ms,itl=soon", "--port", "0"], "serve-sim itl"),
        (["tfft=30ms", "--port", "0"], "llama-3.1-70b@8xh200, or fixed times, ttft=50ms"),
        (["ttft=30ms", "--acceptance", "0.5", "--port", "0"], "no --acceptance"),
        (["llama-3.1-8b", "--port", "0"], "not MODEL@GPUS"),
    ],
)
def test_what_cannot_be_served_is_one_line(arguments: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loadstone.commands", "serve-sim", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


@pytest.mark.process
def test_fixed_times_are_served_too() -> None:
    arguments = [
        sys.executable,
        "-m",
        "loadstone.commands",
        "serve-sim",
        "ttft=40ms,itl=2ms",
        "--port",
        "0",
    ]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
        assert process.stdout
        url = json.loads(process.stdout.readline())["url"]
        begun = time.monotonic()
        body = {"prompt": "one two", "max_tokens": 11, "model": "timing"}
        done = httpx.post(f"{url}/v1/completions", json=body).json()
        assert 0.06 <= time.monotonic() - begun < 1
        assert done["usage"]["completion_tokens"] == 11
        process.terminate()
        assert process.wait(timeout=10) == 0


@pytest.mark.process
def test_accepted_drafts_are_those_that_were_set_however_they_are_counted(tmp_path: Path) -> None:
    deployment = "llama-3.1-8b@1xh100/num_speculative_tokens=3"
    arguments = [
        sys.executable,
        "-m",
        "loadstone.commands",
        "serve-sim",
        deployment,
        "--acceptance",
        "0.6",
    ]
    with subprocess.Popen([*arguments, "--port", "0"], stdout=subprocess.PIPE) as process:
        assert process.stdout
        url = json.loads(process.stdout.readline())["url"]
        document = loadstone.bench(
            url, concurrency=[8], requests=[16], warmup=0, input="100", output="300", out=tmp_path
        ).document()  # fmt: skip
        counted = metrics(TimingServer(url, process.pid))
        meta = httpx.post(
            f"{url}/generate", json={"text": "a b", "sampling_params": {"max_new_tokens": 40}}
        ).json()["meta_info"]  # fmt: skip
        process.terminate()
    drafts = document["cells"][0]["drafts"]
    assert (drafts["source"], drafts["by_request"]["n"]) == ("counters", 16)
    # 3,500 guesses or more: three standard deviations are 0.025.
    assert drafts["acceptance"] == pytest.approx(0.6, abs=0.025)
    assert drafts["accepted_length"] == pytest.approx(1 + 0.6 + 0.6**2 + 0.6**3, abs=0.06)
    assert drafts["by_position"] == pytest.approx([0.6, 0.6**2, 0.6**3], abs=0.04)
    assert drafts["by_request"]["p50"] == pytest.approx(drafts["accepted_length"], abs=0.1)
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    assert [counted[f"vllm:spec_decode_{name}_total"] for name in names] == [
        drafts[name] for name in ("steps", "drafted", "accepted")
    ]
    steps, accepted, histogram = (
        meta[f"spec_{name}"]
        for name in ("verify_ct", "num_correct_drafts", "correct_drafts_histogram")
    )
    assert (sum(histogram), meta["spec_num_proposed_drafts"]) == (steps, 3 * steps)
    assert 40 <= 1 + steps + accepted <= 43  # the last step may give more than is asked for


def test_requests_go_round_where_the_engines_router_has_them_go() -> None:
    """As simulate has it: SGLang's replicas take turns, however busy they are; vLLM's least busy
    one is asked."""

    async def busy(engine: str) -> list[int]:
        fleet = fleet_of(parse_deployment(f"llama-3.1-8b@2xh100/tp1,dp2,engine={engine}"))
        served = RealTimeEngine(asyncio.get_running_loop(), fleet)
        for output_tokens in (1000, 1, 1000, 1):
            served.submit(Silent(output_tokens), time.monotonic_ns())
            await asyncio.sleep(0.4)
        served.close()
        return sorted(state.running for state in served.states())

    assert asyncio.run(busy("sglang")) == [0, 2]
    assert asyncio.run(busy("vllm")) == [1, 1]


class Silent:
    """A stream that nobody reads."""

    def __init__(self, output_tokens: int) -> None:
        self.serial, self.input_tokens, self.output_tokens = -1, 8, output_tokens
        self.adapter, self.priority = 0, None
        self.keys: tuple[int, ...] = ()
        self.sequences: list[int] = []
        self.cached_tokens = self.written = 0

    def open(self) -> None:
        pass

    def write(self, written: int) -> bool:
        self.written = written
        return True
