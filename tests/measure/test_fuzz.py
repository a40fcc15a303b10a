"""Hostile answers: recorded streams, mutated and cut anywhere. Nothing raises, and every fact stays
within bounds."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from loadstone.measure.simulated_server.answer import CompletionAnswer, GenerateAnswer
from loadstone.measure.simulated_server.body import GenerateBody, OpenAIBody
from loadstone.measure.simulated_server.settings import Settings, Usage
from loadstone.measure.wire.wire import find_wire, list_wires
from test_template import HEADER, agree, chunk
from wires import check_storable

FUZZ_S = 600.0
"""Seconds of the long run; LOADSTONE_FUZZ_S overrides."""

EXAMPLES = 1500
MAX_SEED_BYTES = 6_000
FOLDERS = (
    Path(__file__).resolve().parent / "wire" / "sglang",
    Path(__file__).resolve().parents[3] / "shared" / "data" / "wire",
)

# --- seeds ----------------------------------------------------------------------------------------

HAND_MADE = [
    b'data: {"text_output":" a","num_input_tokens":3,"num_output_tokens":1}\n\n' * 4,
    b'data: {"text_output":[" a"],"num_output_tokens":[1],"num_input_tokens":[[3]]}\n\n' * 3,
    b'data: {"error":"failed to schedule"}\n\n',
    b'{"text_output":" a b c","num_input_tokens":3,"num_output_tokens":3}',
    b'data: {"text":"a","meta_info":{"completion_tokens":1,"finish_reason":{"type":"abort","message":"x"}}}\n\n',
    b'{"choices":[{"message":{"content":"a","tool_calls":[{"function":{"name":"f"}}]},"finish_reason":"stop"}]}',
    b'data: {"choices":[{"text":"a","finish_reason":{"type":"length"}}],"timings":{"prompt_ms":1.5}}\n\n',
    b'data: {"choices":null,"error":{"message":"out of memory","code":500}}\n\n',
    b"\xef\xbb\xbf: ping\r\n\r\nevent: message\r\ndata: {}\r\ndata:\r\rid: 7\n\n",
    b"",
]


def simulated() -> Iterable[bytes]:
    """What the timing server writes: chunked HTTP bodies."""
    usages: tuple[Usage, ...] = ("none", "final", "running", "unasked")
    for stream in (True, False):
        ask = OpenAIBody(prompt="one two", messages=[], max_tokens=9, stream=stream)
        for usage in usages:
            for tokens_per_event in (1, 4):
                options = Settings(
                    tokens_per_event=tokens_per_event, usage=usage, max_model_len=4096
                )
                answer = CompletionAnswer(ask, options, (2, 9), name=b"n", truth=False)
                yield http(answer, tokens_per_event)
        text = GenerateBody(text="one two", stream=stream)
        yield http(GenerateAnswer(text, options, (2, 9), name=b"n", truth=False), tokens_per_event)


def http(answer: CompletionAnswer | GenerateAnswer, tokens_per_event: int) -> bytes:
    if not answer.is_stream:
        return answer.whole()
    begin, parts = 0, [answer.role()]
    for end in [*range(1, answer.output_tokens, tokens_per_event), answer.output_tokens]:
        parts.append(answer.piece(begin, end))
        begin = end
    # Of the HTTP chunks what they hold: their sizes and ends stand alone on lines.
    return re.sub(rb"(?:\A|\r\n)[0-9a-f]+\r\n", b"", b"".join(parts)).removesuffix(b"\r\n")


def seeds() -> list[bytes]:
    recorded = [
        path.read_bytes()[:MAX_SEED_BYTES]
        for folder in FOLDERS
        for path in sorted([*folder.glob("*.sse"), *folder.glob("*.json")])
    ]
    return [*HAND_MADE, *simulated(), *recorded]


SEEDS = seeds()

# --- mutations ------------------------------------------------------------------------------------

NUMBERS = [
    b"-1", b"0", b"00", b"1.0", b"1e9", b"1e308", b"1e999", b"-1e999", b"NaN", b"Infinity", b"null", b"true", b'"7"',
    b"2147483647", b"2147483648", b"9223372036854775808", b"9" * 400, b"9" * 5000, b"0.1e-400", b"[3]", b"{}", b"[]",
]  # fmt: skip
WORDS = [
    b"\n\n", b"\r\n\r\n", b"\r", b"\n", b"data: ", b"data:", b": x\n\n", b"[DONE]", b"\xef\xbb\xbf", b'"', b"\\",
    b"{", b"}", b"[", b"]", b"\x00", b"\x1b[2J", b"\x7f", b"\xff", b"\xe2\x82", b"\xed\xa0\x80", b"\\ud83d",
    b"\\u0000", b"\\ud83d\\ude00", b'"error":"bad",', b'"error":"  ",', b'"message":{"error":7},', b'"usage":{},',
    b'"choices":[],', "\u2028\u202e".encode(), b'"finish_reason":"' + b"long " * 50 + b'",',
]  # fmt: skip
FIELDS = (
    "text", "content", "delta", "message", "error", "choices", "usage", "finish_reason", "meta_info", "output_ids",
    "completion_tokens", "prompt_tokens", "cached_tokens", "text_output", "num_output_tokens", "num_input_tokens",
    "timings", "prompt_ms", "tool_calls", "prompt_tokens_details", "type",
)  # fmt: skip
_NUMBER = re.compile(rb"-?[0-9][0-9.eE+-]*")
_VALUE = re.compile(rb'"(?:%b)": ?("[^"]*"|[0-9.]+|null)' % "|".join(FIELDS).encode())


def nested(rng: random.Random) -> bytes:
    """Deep; now and then as deep as Python's own recursion just bears, or just does not."""
    depth = rng.choice([3, 60, 400, rng.randint(880, sys.getrecursionlimit()), 5_000, 60_000])
    before, after = rng.choice(
        [(b"[", b"]"), (b'{"a":', b"}"), (b'{"error":', b"}"), (b'{"message":[', b"]}")]
    )
    return before * depth + b"1" + after * (depth if rng.random() < 0.8 else 0)


def mutated(rng: random.Random, data: bytes) -> bytes:
    at = rng.randint(0, len(data))
    end = min(len(data), at + rng.choice([1, 2, 8, 60, 900]))
    match rng.randint(0, 8):
        case 0:
            flipped = bytearray(data)
            for _ in range(rng.choice([1, 1, 4, 20]) if data else 0):
                flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            return bytes(flipped)
        case 1:
            return data[:at] + data[end:]
        case 2:
            return data[:end] + data[at:end] * rng.choice([1, 1, 3]) + data[end:]
        case 3:
            other = rng.choice(SEEDS)
            start = rng.randint(0, len(other))
            return data[:at] + other[start : start + rng.choice([20, 300, 3000])] + data[end:]
        case 4:
            return data[:at] + rng.choice(WORDS) + data[at:]
        case 5:
            return put(rng, data, _NUMBER, 0, rng.choice(NUMBERS))
        case 6:
            return put(rng, data, _VALUE, 1, rng.choice(NUMBERS + WORDS))
        case 7:
            return put(rng, data, _VALUE, 1, nested(rng))
        case _:
            return data[:at] + rng.randbytes(rng.choice([1, 3, 30])) + data[at:]


def put(
    rng: random.Random, data: bytes, where: re.Pattern[bytes], group: int, value: bytes
) -> bytes:
    """`value` in one of the places that `where` finds."""
    found = list(where.finditer(data))
    if not found:
        return value + data
    place = rng.choice(found)
    return data[: place.start(group)] + value + data[place.end(group) :]


def cut(rng: random.Random, data: bytes) -> list[bytes]:
    """The same bytes in pieces: whole, by events, or anywhere."""
    kind = rng.random()
    if kind < 0.2:
        return [data]
    if kind < 0.5:
        return [event + b"\n\n" for event in data.split(b"\n\n")]
    places = sorted(rng.randint(0, len(data)) for _ in range(rng.choice([1, 2, 10, 60])))
    return [data[a:b] for a, b in pairwise([0, *places, len(data)])]


# --- what must hold -------------------------------------------------------------------------------


class Case(NamedTuple):
    """One answer as it is heard."""

    endpoint: str
    stream: bool
    keep_text: bool
    pieces: list[bytes]


def hear(case: Case) -> None:
    """Feed all of it, in the manner of a client that also tries to learn and take plain events."""
    answer = find_wire(case.endpoint).answer(stream=case.stream, keep_text=case.keep_text)
    for piece in case.pieces:
        events = answer.events
        assert answer.feed(piece) == answer.events - events >= 0
        check_storable(answer)
        template = answer.template(piece)
        if template is not None:
            plain, counts = template.run([chunk(piece)] * 3)
            assert plain == 3
            assert len(counts) in (0, 3)
            answer.take_plain(plain, counts)
            assert answer.events == events + 4
            check_storable(answer)
    events = answer.events
    assert answer.finish() == answer.events - events
    check_storable(answer)
    if not case.stream:
        assert answer.events <= 1
    assert case.keep_text or not answer.text


def example(rng: random.Random) -> None:
    data = rng.choice(SEEDS)
    for _ in range(rng.choice([0, 1, 1, 2, 3, 6])):
        data = mutated(rng, data)
    pieces = cut(rng, data)
    for endpoint in list_wires():
        for stream in (True, False):
            case = Case(endpoint, stream, rng.random() < 0.5, pieces)
            try:
                hear(case)
            except BaseException:
                print(case)
                raise
    events = [event + b"\n\n" for event in data.split(b"\n\n") if event]
    if rng.random() < 0.5:
        # A long plain stretch with what was mutated in its midst, which is what templates are for.
        around = [event + b"\n\n" for event in rng.choice(SEEDS).split(b"\n\n")[:4] if event]
        events = around * 3 + rng.sample(events, min(3, len(events))) + around
    reads = [HEADER, *map(chunk, events), b"0\r\n\r\n"]
    if rng.random() < 0.3:
        broken = rng.randint(1, len(reads) - 1)
        reads[broken] = mutated(rng, reads[broken])
    try:
        agree(reads, [rng.randint(0, 20) for _ in range(3)])
    except BaseException:
        print(f"{reads=}")
        raise


def fuzz(seed: int, *, examples: int | None = None, seconds: float | None = None) -> int:
    """Example after example, each of a seed of its own. How many there were."""
    until = None if seconds is None else time.monotonic() + seconds
    number = 0
    while (examples is None or number < examples) and (until is None or time.monotonic() < until):
        try:
            example(random.Random(seed + number))
        except BaseException:
            print(f"to see it again: example(random.Random({seed + number}))")
            raise
        number += 1
    return number


# --- the tests ------------------------------------------------------------------------------------


def test_there_are_seeds_of_every_dialect() -> None:
    joined = b"".join(SEEDS)
    for mark in (b'"choices"', b'"delta"', b'"meta_info"', b'"text_output"', b"w0008", b"[DONE]"):
        assert mark in joined
    # Unharmed, they are read: a fuzzer of garbage alone would test nothing.
    read = 0
    for data in SEEDS:
        answer = find_wire("sglang" if b"meta_info" in data else "completions").answer()
        answer.feed(data)
        answer.finish()
        read += answer.events > 3 and answer.error is None
    assert read >= 15


def test_mutated_answers_are_read_without_harm() -> None:
    assert fuzz(0, examples=EXAMPLES) == EXAMPLES


@pytest.mark.parametrize("endpoint", list_wires())
@pytest.mark.parametrize("stream", [True, False])
def test_json_of_any_depth_is_read_without_harm(
    endpoint: str, stream: bool, thorough: bool
) -> None:
    """What just decodes need not just encode again: all depths about Python's limit are tried."""
    limit = sys.getrecursionlimit()
    for depth in (*range(limit - 120, limit + 8, 1 if thorough else 5), 100_000):
        for before, after in ((b"[", b"]"), (b'{"a":', b"}")):
            deep = before * depth + b"1" + after * depth
            for text in (
                b'{"error":%b}' % deep,
                b'{"error":%b,"text":"\xff","text_output":"\xff","choices":3}' % deep,
                b'{"message":%b,"text":7,"choices":3,"num_output_tokens":"x"}' % deep,
                b'{"choices":[{"text":%b,"delta":{"tool_calls":%b}}]}' % (deep, deep),
                b'{"text":%b,"text_output":%b,"meta_info":{"completion_tokens":"x"}}'
                % (deep, deep),
                b'{"meta_info":{"completion_tokens":1,"finish_reason":%b}}' % deep,
                b'{"meta_info":{"completion_tokens":1,"finish_reason":{"type":"abort","message":%b}}}'
                % deep,
                b'{"meta_info":{"completion_tokens":"x","finish_reason":%b}}' % deep,
            ):
                hear(Case(endpoint, stream, True, [b"data: %b\n\n" % text if stream else text]))


@pytest.mark.parametrize("endpoint", list_wires())
@pytest.mark.parametrize("said", [" ", "\n\t", "\u2028", "\x00", {"message": " "}])
def test_an_error_always_has_a_word(endpoint: str, said: object) -> None:
    hear(Case(endpoint, True, False, [b"data: %b\n\n" % json.dumps({"error": said}).encode()]))


@pytest.mark.slow
def test_mutated_answers_are_read_without_harm_for_long() -> None:
    seconds = float(os.environ.get("LOADSTONE_FUZZ_S", FUZZ_S))
    signal.alarm(int(seconds) + 60)
    seed = time.time_ns()
    print(f"{seed=}")
    assert fuzz(seed, seconds=seconds) > 0
