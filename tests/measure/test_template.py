"""The template path against full parsing: whatever an engine sends, both must hear the same."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadstone.measure.wire.sse import SseDecoder
from loadstone.measure.wire.template import Template, learn
from loadstone.measure.wire.tolerant import MAX_COUNT
from loadstone.measure.wires.openai import OpenAIAnswer as Answer
from wires import state

WIRE = Path(__file__).resolve().parents[3] / "shared" / "data" / "wire"
RECORDED = sorted(WIRE.glob("*.sse"))

HEADER = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
WINDOW_READS = 64
RETRY_READS = 8


class Reader:
    """Reads chunked HTTP in full: the part of a connection that this test needs."""

    def __init__(self) -> None:
        self.answer = Answer()
        self.bodies: list[bytes] = []
        self.on_body = self.bodies.append
        self.complete = False
        self.broken = False
        self._parser = httptools.HttpResponseParser(self)

    def on_message_complete(self) -> None:
        self.complete = True

    def parse(self, data: bytes) -> int:
        """Output events of one read. The bodies stay for who wants to learn from them."""
        self.bodies.clear()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.broken = True
            return 0
        return sum(self.answer.feed(body) for body in self.bodies)

    @property
    def over(self) -> bool:
        return self.complete or self.broken


def in_full(reads: Sequence[bytes]) -> tuple[dict[str, Any], list[int], bool]:
    """The answer's facts, output events per read, and whether HTTP broke: everything parsed."""
    reader = Reader()
    per_read = []
    for data in reads:
        per_read.append(reader.parse(data))
        if reader.over:
            break
    if not reader.broken:
        reader.answer.finish()
    return state(reader.answer), per_read, reader.broken


def by_template(
    reads: Sequence[bytes], sweeps: Sequence[int] = ()
) -> tuple[dict[str, Any], list[int], bool, int]:
    """The same in the manner of client/connection.py (`decode`, `_parse`, `_learn`); and reads a
    template took.

    `sweeps`: how many reads each call of `decode` finds; the last call finds the rest.
    """
    reader = Reader()
    answer = reader.answer
    per_read: list[int] = []
    template: Template | None = None
    learnings, taken, start = 4, 0, 0
    for size in (*sweeps, len(reads)):
        held = reads[start : start + size]
        start += size
        at = retry_at = 0
        while at < len(held) and not reader.over:
            if template is not None and at >= retry_at:
                window = held[at : at + WINDOW_READS]
                plain, counts = template.run(window)
                if plain:
                    answer.take_plain(plain, counts)
                    learnings += plain
                    taken += plain
                    per_read += [1] * plain
                    at += plain
                else:
                    retry_at = at + RETRY_READS
                if plain == len(window):
                    continue
            data = held[at]
            per_read.append(reader.parse(data))
            at += 1
            if reader.over:
                break
            bodies = reader.bodies
            if not bodies or data != b"".join(
                [b"%x\r\n%b\r\n" % (len(body), body) for body in bodies]
            ):
                template = None
            elif learnings > 0:
                learnings -= 1
                template = answer.template(bodies[-1]) or template
    if not reader.broken:
        answer.finish()
    return state(answer), per_read, reader.broken, taken


def agree(reads: Sequence[bytes], sweeps: Sequence[int] = ()) -> int:
    """Both paths hear the same. How many reads the templates took."""
    facts_full, events_full, broken_full = in_full(reads)
    facts_template, events_template, broken_template, taken = by_template(reads, sweeps)
    assert facts_template == facts_full
    assert events_template == events_full
    assert broken_template == broken_full
    return taken


def chunk(body: bytes, size: bytes | None = None) -> bytes:
    return b"%b\r\n%b\r\n" % (b"%x" % len(body) if size is None else size, body)


# --- a dialect: what one engine's plain event looks like ------------------------------------------


class Dialect:
    """Writes events in one engine's manner; `text` and `extra` go in as they are, raw JSON."""

    def __init__(
        self, *, chat: bool, counted: bool, spaces: bool, field: str, usage_first: bool = False
    ) -> None:
        self.chat = chat
        self.counted = counted
        self.usage_first = usage_first
        self.field = field if chat else "text"
        self.colon, self.comma = (b": ", b", ") if spaces else (b":", b",")

    def object(self, *members: tuple[str, bytes]) -> bytes:
        return (
            b"{"
            + self.comma.join([b'"%b"%b%b' % (k.encode(), self.colon, v) for k, v in members])
            + b"}"
        )

    def choice(self, text: bytes, finish: bytes = b"null", index: int = 0) -> bytes:
        said = (self.field, b'"%b"' % text)
        middle = ("delta", self.object(said)) if self.chat else said
        return self.object(
            ("index", b"%d" % index), middle, ("logprobs", b"null"), ("finish_reason", finish)
        )

    def usage(self, count: bytes, prompt: bytes = b"5", *more: tuple[str, bytes]) -> bytes:
        """A total that is not the count, before it as vLLM has it, or after it as llama.cpp has
        it."""
        total = b"%d" % (int(count) + 5) if count.isdigit() and len(count) < 10 else count
        keys = [("prompt_tokens", prompt), ("total_tokens", total), ("completion_tokens", count)]
        if self.chat:
            keys.reverse()
        return self.object(*keys, *more)

    def event(
        self, choices: Sequence[bytes], usage: bytes | None, *more: tuple[str, bytes], name: bytes = b'"cmpl-1"',
        created: int = 1795174201,
    ) -> bytes:  # fmt: skip
        members = [
            ("id", name),
            ("created", b"%d" % created),
            ("choices", b"[" + self.comma.join(choices) + b"]"),
        ]
        if usage is not None:
            members.insert(1 if self.usage_first else 3, ("usage", usage))
        return b"data: " + self.object(*members, *more) + b"\n\n"

    def plain(self, text: bytes, count: bytes) -> bytes:
        return self.event([self.choice(text)], self.usage(count) if self.counted else None)


DIALECTS = st.builds(
    Dialect,
    chat=st.booleans(),
    counted=st.booleans(),
    spaces=st.booleans(),
    field=st.sampled_from(["content", "reasoning_content", "reasoning"]),
    usage_first=st.sampled_from([False, False, False, True]),
)
TEXTS = st.sampled_from(
    [
        b" Found",
        b"a",
        b"12",
        b"0",
        "日本".encode(),
        "😀".encode(),
        b"}",
        b"{",
        b"[DONE]",
        b"data: x",
        b":",
        b"/",
        b"<think>",
        b"</",
        b"think>",
        b"</think>",
        b" ",
    ]
)
SOME_ODD_TEXTS = [
    b"",
    b'\\"',
    b"\\\\",
    b"\\n",
    b"\\r\\n",
    b"\\u00e9",
    b"\\ud83d\\ude00",
    b"\\ud83d",
    b"\\/",
    b"\\u0000",
    b"\\",
    b"a\\",
    b"\\x41",
    b"\\u12",
    b"\\u12g4",
    b"\\N",
    b'"',
    b'a"b',
    b"\x00",
    b"\t",
    b"\x1b[0m",
    b"\x1f",
    b"\x7f",
    b"\n",
    b"a\n\nb",
    b"\r",
    b"\r\n",
    b"\xff",
    b"\xe2\x82",
    b'","finish_reason":"stop',
    b'"}]}\n\ndata: {"choices":[{"text":"b',
    b'\\"}]}',
    b"x" * 300,
]
SOME_ODD_COUNTS = [
    b"0",
    b"007",
    b"-1",
    b"1.0",
    b"1.5",
    b"2e1",
    b"null",
    b'"3"',
    b"",
    b"NaN",
    b"9" * 12,
    b"9" * 5000,
] + [b"%d" % (MAX_COUNT + more) for more in (0, 1)]
ODD_TEXTS, ODD_COUNTS = st.sampled_from(SOME_ODD_TEXTS), st.sampled_from(SOME_ODD_COUNTS)


@st.composite
def odd_bodies(draw: st.DrawFn, dialect: Dialect, count: bytes) -> bytes:
    """An event that is not plain, or only nearly."""
    text = draw(TEXTS)
    choice, usage = dialect.choice(text), dialect.usage(count) if dialect.counted else None
    kind = draw(st.integers(0, 21))
    match kind:
        case 0 | 1 | 2:
            return dialect.plain(draw(ODD_TEXTS), count)
        case 3:
            return dialect.plain(text, draw(ODD_COUNTS))
        case 4:
            return dialect.event([dialect.choice(draw(TEXTS | st.just(b"")), b'"stop"')], usage)
        case 5:
            return dialect.event([choice, dialect.choice(draw(TEXTS), index=1)], usage)
        case 6:
            return dialect.event([choice], usage, created=draw(st.integers(1, 3)))
        case 7:
            return dialect.event(
                [choice],
                usage,
                name=draw(st.sampled_from([b'"2"', b'"\xff"', b'"\\n"', b'"\x01"'])),
            )
        case 8:
            return dialect.event(
                [choice], dialect.usage(count, draw(st.sampled_from([b"6", b"null", b"1e9"])))
            )
        case 9:
            cached = ("prompt_tokens_details", b'{"cached_tokens":%d}' % draw(st.integers(0, 3)))
            return dialect.event([choice], dialect.usage(count, b"5", cached))
        case 10:
            thinking = (
                "completion_tokens_details",
                b'{"reasoning_tokens":%d}' % draw(st.integers(0, 3)),
            )
            return dialect.event([choice], dialect.usage(count, b"5", thinking))
        case 11:
            return dialect.event(
                [choice],
                draw(st.sampled_from([None, b"null", b"{}", b'{"prompt_tokens":8}', b"3"])),
            )
        case 12:
            return dialect.event([], dialect.usage(count))
        case 13:
            return dialect.event(
                [choice], usage, ("error", draw(st.sampled_from([b'"bad"', b"null", b'{"a":1}'])))
            )
        case 14:
            return dialect.event(
                [choice], usage, ("timings", b'{"prompt_ms":1}'), ("message", b'"m"')
            )
        case 15:
            more = draw(
                st.sampled_from(
                    [b'{"completion_tokens":7}', b'{"completion_tokens": 7}', b'{"text":"a"}']
                )
            )
            return dialect.event([choice], usage, ("metrics", more))
        case 16:
            return dialect.event([choice], usage, ("text", b'"%b"' % draw(TEXTS)))
        case 17:
            return draw(
                st.sampled_from(
                    [b"data: [DONE]\n\n", b": ping\n\n", b"data: {\n\n", b"data:\n\n", b"\n"]
                )
            )
        case 18:
            return dialect.plain(text, count).replace(
                b"\n\n", draw(st.sampled_from([b"\r\n\r\n", b"\r\r", b"\n"]))
            )
        case 19:
            return dialect.plain(text, count)[:-1]
        case 20:
            return dialect.plain(text, count) + draw(
                st.sampled_from([b"d", b"data: ", b": x\n\n", b"\n"])
            )
        case _:
            return dialect.plain(text, count) + dialect.plain(draw(TEXTS), count)


@st.composite
def answers(draw: st.DrawFn) -> list[bytes]:
    """The reads of one answer: stretches of plain events, with something else between them."""
    dialect = draw(DIALECTS)
    reads = [HEADER]
    count = 0

    def next_count() -> bytes:
        nonlocal count
        count = max(0, count + draw(st.sampled_from([1, 1, 1, 1, 1, 2, 0, -1, 90])))
        return b"%d" % count

    if draw(st.booleans()):
        role = dialect.object(("role", b'"assistant"'), ("content", b'""'))
        usage = dialect.usage(b"0") if dialect.counted else None
        reads.append(chunk(dialect.event([dialect.object(("delta", role))], usage)))
    for _ in range(draw(st.integers(1, 6))):
        reads += [
            chunk(dialect.plain(draw(TEXTS), next_count()))
            for _ in range(draw(st.sampled_from([0, 1, 2, 3, 20])))
        ]
        body = draw(odd_bodies(dialect, next_count()) | st.just(dialect.plain(b"a", next_count())))
        size = b"%x" % len(body)
        match draw(st.integers(0, 13)):
            case 0:
                reads.append(chunk(body, size.upper()))
            case 1:
                reads.append(chunk(body, b"0" + size))
            case 2:
                reads.append(chunk(body, size + b";x=y"))
            case 3:
                reads.append(
                    chunk(body, b"%x" % (len(body) + draw(st.sampled_from([-2, -1, 1, 2]))))
                )
            case 4:
                reads.append(chunk(body) + chunk(dialect.plain(draw(TEXTS), next_count())))
            case 5 | 6:
                # One chunk in two reads, wherever it is cut.
                data = chunk(body)
                place = draw(st.integers(1, len(data) - 1))
                reads += [data[:place], data[place:]]
            case 7 | 8:
                # One event in two chunks, each a read of its own.
                place = draw(st.integers(1, max(1, len(body) - 1)))
                reads += [chunk(part) for part in (body[:place], body[place:]) if part]
            case 9:
                data = chunk(body) + chunk(dialect.plain(draw(TEXTS), next_count()))
                place = draw(st.integers(1, len(data) - 1))
                reads += [data[:place], data[place:]]
            case _:
                reads.append(chunk(body))
    if draw(st.booleans()):
        reads.append(
            chunk(dialect.event([dialect.choice(b"", b'"length"')], dialect.usage(next_count())))
        )
        reads.append(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    return reads


@settings(max_examples=600)
@given(answers(), st.lists(st.integers(0, 30), max_size=6))
def test_templates_hear_what_full_parsing_hears(reads: list[bytes], sweeps: list[int]) -> None:
    agree(reads, sweeps)


def test_what_may_begin_a_tag_is_read_in_full_after_an_event_that_cannot_be_read() -> None:
    dialect = Dialect(chat=False, counted=False, spaces=False, field="content")
    think, said = chunk(dialect.plain(b"<think>", b"1")), dialect.plain(b" so", b"1")
    broken = chunk(said[:-1]) + chunk(said)  # one event of two lines
    agree([HEADER, think, *[chunk(said)] * 8, think, broken, chunk(said)], [10, 1, 1])
    closed = chunk(dialect.plain(b"</think>", b"1"))
    agree([HEADER, think, *[chunk(said)] * 12, closed, *[chunk(said)] * 12])
    agree([HEADER, think, *[chunk(said)] * 8, think, chunk(b": ping\n\n"), chunk(said)], [10, 1, 1])


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("counted", [False, True])
def test_templates_hear_what_full_parsing_hears_around_each_odd_text_and_count(
    chat: bool, counted: bool
) -> None:
    dialect = Dialect(chat=chat, counted=counted, spaces=False, field="content")
    plain = [chunk(dialect.plain(b"ab", b"%d" % (i + 1))) for i in range(9)]
    odd = [dialect.plain(text, b"6") for text in SOME_ODD_TEXTS]
    odd += [dialect.plain(b"ab", number) for number in SOME_ODD_COUNTS]
    # The total is of no interest, but must be JSON all the same.
    odd += [
        dialect.plain(b"ab", b"6").replace(b'"total_tokens":11', b'"total_tokens":' + n)
        for n in SOME_ODD_COUNTS
    ]
    for body in odd:
        assert agree([HEADER, *plain[:5], chunk(body), *plain[6:]], [4]) >= 3


@settings(max_examples=300)
@given(DIALECTS, st.data())
def test_templates_hear_what_full_parsing_hears_in_text_of_any_bytes(
    dialect: Dialect, data: st.DataObject
) -> None:
    texts = st.binary(max_size=6) | st.text(alphabet='"\\u0aé\n', max_size=6).map(str.encode)
    events = data.draw(st.lists(texts, max_size=8))
    plain = [chunk(dialect.plain(b"ab", b"%d" % (i + 1))) for i in range(3)]
    agree(
        [
            HEADER,
            *plain,
            *(chunk(dialect.plain(text, b"%d" % (i + 4))) for i, text in enumerate(events)),
            *plain,
        ]
    )


@settings(max_examples=300)
@given(DIALECTS, st.data())
def test_templates_hear_what_full_parsing_hears_where_bytes_were_changed(
    dialect: Dialect, data: st.DataObject
) -> None:
    reads = [bytearray(chunk(dialect.plain(b" the", b"%d" % (i + 1)))) for i in range(12)]
    for _ in range(data.draw(st.integers(1, 3))):
        read = reads[data.draw(st.integers(2, 11))]
        at = data.draw(st.integers(0, len(read) - 1))
        if data.draw(st.booleans()):
            read[at] = data.draw(st.sampled_from(b'"\\{}[],: 0123456789eE.-\n\r\tax\xff\x00'))
        else:
            # As many bytes as before, so that the chunk is still as long as it says.
            end = data.draw(st.integers(at, len(read) - 1))
            read[at:end] = bytes(read[at:end])[::-1]
    agree([HEADER, *map(bytes, reads)])


@pytest.mark.skipif(not RECORDED, reason="recorded engine streams (shared/data/wire) are not here")
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_templates_hear_what_full_parsing_hears_of_recorded_engines(path: Path) -> None:
    bodies = [body + b"\n\n" for body in path.read_bytes().split(b"\n\n") if body]
    agree([HEADER, *map(chunk, bodies), b"0\r\n\r\n"])
    agree([HEADER + chunk(bodies[0]), *map(chunk, bodies[1:]), b"0\r\n\r\n"], [3, 3, 3])


# --- what they are for: plain events are taken ----------------------------------------------------

ALL_DIALECTS = [
    Dialect(chat=chat, counted=counted, spaces=spaces, field=field)
    for chat, field in (
        (False, "text"),
        (True, "content"),
        (True, "reasoning_content"),
        (True, "reasoning"),
    )
    for counted in (False, True)
    for spaces in (False, True)
]


@pytest.mark.parametrize(
    "dialect", ALL_DIALECTS, ids=lambda d: f"{d.field} {d.counted=} {d.comma=}"
)
def test_a_template_takes_every_plain_event_after_the_first(dialect: Dialect) -> None:
    texts = [b" the", b"42", "日".encode(), b'\\"', b"\\n", b"\\\\", b"\\u00e9", b"x" * 200] * 20
    reads = [chunk(dialect.plain(text, b"%d" % (i + 1))) for i, text in enumerate(texts)]
    assert agree([HEADER, *reads, b"0\r\n\r\n"]) == len(reads) - 1


def test_a_template_stops_at_the_first_read_that_is_not_plain() -> None:
    dialect = ALL_DIALECTS[0]
    template = learn(dialect.plain(b"a", b""), "a", counted=False, sse=SseDecoder())
    assert template is not None
    plain = [chunk(dialect.plain(b"b" * (i % 70 + 1), b"")) for i in range(100)]
    for odd in (
        b"",
        chunk(dialect.plain(b"", b"")),
        plain[0][:-1],
        plain[0] + b"\r\n",
        HEADER,
        b"\r\n",
        b"0\r\n\r\n",
    ):
        for place in (0, 1, 2, 31, 63, 99):
            assert template.run([*plain[:place], odd, *plain[place:]]) == (place, [])
    assert template.run(plain) == (100, [])
    assert template.run([]) == (0, [])


def test_a_template_reads_the_running_counts() -> None:
    dialect = next(d for d in ALL_DIALECTS if d.counted)
    template = learn(dialect.plain(b"a", b"1"), "a", counted=True, sse=SseDecoder())
    assert template is not None
    counts = [2, 3, 5, 9, 10, 11, 99, 100, 1000, MAX_COUNT]
    reads = [chunk(dialect.plain(b"8", b"%d" % count)) for count in counts]
    assert template.run(reads) == (10, counts)
    assert template.run([*reads, chunk(dialect.plain(b"8", b"%d" % (MAX_COUNT + 1)))]) == (
        10,
        counts,
    )


def test_a_template_takes_nothing_while_an_event_is_unfinished() -> None:
    dialect = ALL_DIALECTS[0]
    answer = Answer()
    body = dialect.plain(b"a", b"")
    answer.feed(body)
    template = answer.template(body)
    assert template is not None
    assert template.run([chunk(body)]) == (1, [])
    answer.feed(b"data: {}\n")
    assert template.run([chunk(body)]) == (0, [])
    answer.feed(b"\n")
    assert template.run([chunk(body)]) == (1, [])


def test_take_plain_keeps_what_full_parsing_keeps() -> None:
    dialect = next(d for d in ALL_DIALECTS if d.counted)
    first, between = dialect.plain(b"a", b"1"), dialect.event([], dialect.usage(b"4", b"9"))
    rest = [dialect.plain(b"b", count) for count in (b"3", b"5", b"2")]
    taught, full = Answer(), Answer()
    taught.feed(first)
    assert taught.template(first) is not None
    taught.feed(between)
    taught.take_plain(3, [3, 5, 2])
    for body in (first, between, *rest):
        full.feed(body)
    assert state(taught) == state(full)
    assert (taught.input_tokens, taught.output_tokens, taught.running_tokens) == (
        5,
        2,
        [1, 4, 5, 5],
    )


# --- what is not learnt from ----------------------------------------------------------------------


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"


CHOICE = {"index": 0, "text": "a", "finish_reason": None}
USAGE = {"prompt_tokens": 5, "completion_tokens": 1}


@pytest.mark.parametrize(
    "body",
    [
        event(choices=[]),
        event(choices=[CHOICE, CHOICE]),
        event(choices=[CHOICE | {"text": ""}]),
        event(choices=[CHOICE | {"text": 'a"b'}]),
        event(choices=[CHOICE | {"finish_reason": "stop"}]),
        event(choices=[CHOICE | {"delta": {"text": "a"}}]),
        event(choices=[CHOICE], timings={"prompt_ms": 1}),
        event(choices=[CHOICE], error="bad"),
        event(choices=[CHOICE], message="bad"),
        event(choices=[CHOICE], usage={"prompt_tokens": 5}),
        event(choices=[CHOICE])[:-1],
        event(choices=[CHOICE]) * 2,
        event(choices=[CHOICE]).replace(b"data: ", b"data:"),
        event(choices=[CHOICE]).replace(b"data: ", b"retry:"),
        event(choices=[CHOICE]).replace(
            b",", b",\r", 1
        ),  # white space to JSON, the end of a line to SSE
        event(choices=[CHOICE]).replace(b"\n\n", b"\r\n\r\n"),
        b": ping\n\n",
        b"data: [DONE]\n\n",
    ],
)
def test_no_template_is_learnt_from_what_is_not_one_plain_event(body: bytes) -> None:
    answer = Answer()
    answer.feed(body)
    assert answer.template(body) is None


@pytest.mark.parametrize(
    "usage",
    [
        b'"usage":{"completion_tokens":1e0}',
        b'"usage":{"completion_tokens":1.0}',
        b'"usage":{"completion_tokens":01}',
        b'"usage":{"completion_tokens":1},"more":{"completion_tokens":1}',
        b'"more":{"completion_tokens":1},"usage":{"completion_tokens": 1}',
        b'"more":{"completion_tokens":1},"usage":{"completion_tokens":  1}',
        b'"usage":{"completion_tokens":"1"}',
        b'"usage":{"completion_tok\\u0065ns":1},"more":{"completion_tokens":1}',
    ],
)
def test_no_template_is_learnt_where_the_count_cannot_be_told_from_its_place(usage: bytes) -> None:
    body = b'data: {"choices":[{"text":"a"}],' + usage + b"}\n\n"
    answer = Answer()
    answer.feed(body)
    assert answer.template(body) is None


def test_no_template_is_learnt_where_counts_change_their_meaning() -> None:
    counted, uncounted = event(choices=[CHOICE], usage=USAGE), event(choices=[CHOICE])
    answer = Answer()
    answer.feed(counted)
    assert answer.template(counted) is not None
    answer.feed(uncounted)
    assert answer.template(uncounted) is not None
    answer.feed(counted)
    assert answer.template(counted) is None


def test_no_template_is_learnt_from_an_event_that_an_unended_one_swallowed() -> None:
    """It says the model's name, which the answer has not read."""
    body = event(model="tiny", choices=[CHOICE], usage=USAGE)
    reads = [b'data: {"id":"torn\n', *[body] * 4, b"data: [DONE]\n\n"]
    assert agree([HEADER, *map(chunk, reads), b"0\r\n\r\n"]) == 2
