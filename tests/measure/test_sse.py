import tracemalloc
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadstone.measure.wire import sse
from loadstone.measure.wire.sse import SseDecoder, SseError

WIRE = Path(__file__).resolve().parents[3] / "shared" / "data" / "wire"
RECORDED = sorted(WIRE.glob("*.sse"))
UNHURRIED = settings(deadline=None)


def events(pieces: Iterable[bytes]) -> list[bytes]:
    """What the pieces say, with the end of the stream after them."""
    decoder = SseDecoder()
    payloads = []
    for piece in pieces:
        payloads += decoder.feed(piece)
    return payloads + decoder.finish()


def cut(stream: bytes, places: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(stream) + 1) for place in places}), len(stream)]
    return [stream[a:b] for a, b in pairwise(edges)]


# --- lines and events, by hand --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a \n\n", [b" a "]),
        (b"data: a\r\n\r\ndata: b\r\rdata: c\n\n", [b"a", b"b", b"c"]),
        (b"data: a\r\ndata: b\r\n\r\n", [b"a\nb"]),
        (b"data: a\ndata: b\ndata:\n\n", [b"a\nb\n"]),
        (b"data\n\ndata\ndata\n\ndata:", [b"", b"\n", b""]),
        (b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n", [b"a"]),
        (b"\xef\xbb\xbfdata: a", [b"a"]),
        (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [b"a"]),
        (b": comment\n\n:\n\ndata: a\n: between\ndata: b\n\n", [b"a\nb"]),
        (b"event: message\nid: 7\nretry: 10\ndata: a\nodd: x\nline\n\n", [b"a"]),
        (b"Data: a\n data: b\ndatas: c\n\n", []),
        (b"data: a: b\n\n", [b"a: b"]),
        (b"data: a\n", [b"a"]),
        (b"data: a", [b"a"]),
        (b"dat", []),
        (b"\n\n\r\n\r", []),
        (b"", []),
        (b"data: \xe2\x82\xac\xff\n\n", [b"\xe2\x82\xac\xff"]),
    ],
)
def test_a_stream_gives_its_events_wherever_it_is_cut_once(
    stream: bytes, expected: list[bytes]
) -> None:
    assert events([stream]) == expected
    assert events(bytes([byte]) for byte in stream) == expected
    for place in range(len(stream) + 1):
        assert events([stream[:place], stream[place:]]) == expected


def test_an_event_is_given_by_the_piece_that_brings_its_blank_line() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: a\n") == []
    assert decoder.feed(b"\ndata: b\n\ndata: ") == [b"a", b"b"]
    assert decoder.feed(b"c\r") == []
    assert decoder.feed(b"\n") == []
    assert decoder.feed(b"\r") == [b"c"]
    assert decoder.feed(b"\ndata: d\n\n") == [b"d"]
    # A piece of nothing is nothing, also between \r and \n.
    assert decoder.feed(b"data: e\r") == decoder.feed(b"") == []
    assert decoder.feed(b"\ndata: f\n\n") == [b"e\nf"]


def test_a_decoder_is_at_rest_only_between_events() -> None:
    decoder = SseDecoder()
    states = []
    for piece in (
        b"data: a\n\n",
        b"d",
        b"ata: b\n",
        b"\n",
        b"data: c\r\n\r",
        b"\n",
        b": ping\n\n",
        b"data: e\n\n:",
    ):
        decoder.feed(piece)
        states.append(decoder.at_rest)
    assert states == [True, False, False, True, False, True, True, False]


def test_finishing_twice_gives_the_last_event_once() -> None:
    decoder = SseDecoder()
    decoder.feed(b"data: a")
    assert decoder.finish() == [b"a"]
    assert decoder.finish() == []


# --- streams cut anywhere -------------------------------------------------------------------------

LINE_ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])
VALUES = st.text(
    st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=8
).map(str.encode)
LINES = st.one_of(
    st.builds(lambda colon, value: b"data" + colon + value, st.sampled_from([b":", b": "]), VALUES),
    st.builds(
        lambda name, value: name + b": " + value,
        st.sampled_from([b"id", b"event", b"retry", b""]),
        VALUES,
    ),
    st.just(b"data"),
    st.just(b""),
    st.just(b""),
)
STREAMS = st.builds(
    lambda bom, lines, last: (
        (b"\xef\xbb\xbf" if bom else b"") + b"".join(a + b for a, b in lines) + last
    ),
    st.booleans(),
    st.lists(st.tuples(LINES, LINE_ENDS), max_size=20),
    st.one_of(st.just(b""), LINES),
)


def by_the_book(stream: bytes) -> list[bytes]:
    """The standard's algorithm on a whole stream, plus the event that lacks its blank line."""
    text = stream.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    payloads, buffer = [], b""
    for line in [*text.split(b"\n"), b""]:
        if line == b"":
            if buffer:
                payloads.append(buffer[:-1])
            buffer = b""
        elif line == b"data" or line.startswith(b"data:"):
            value = line[5:]
            buffer += (value[1:] if value[:1] == b" " else value) + b"\n"
    return payloads


@UNHURRIED
@given(STREAMS, st.lists(st.integers(0, 10**6), max_size=12))
def test_a_generated_stream_gives_the_standards_events_however_it_is_cut(
    stream: bytes, places: list[int]
) -> None:
    expected = by_the_book(stream)
    assert events([stream]) == expected
    assert events(cut(stream, places)) == expected


@pytest.mark.skipif(not RECORDED, reason="recorded engine streams (shared/data/wire) are not here")
@settings(max_examples=200)
@given(st.data())
def test_a_recorded_stream_gives_the_same_events_however_it_is_cut(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(RECORDED))
    stream = path.read_bytes()
    places = data.draw(st.lists(st.integers(0, len(stream)), max_size=40))
    assert events(cut(stream, places)) == events([stream])


@UNHURRIED
@given(st.lists(st.binary(max_size=40), max_size=10))
def test_bytes_of_any_kind_are_read_without_complaint_and_the_same_in_one_piece(
    pieces: list[bytes],
) -> None:
    assert events(pieces) == events([b"".join(pieces)])


# --- endless events -------------------------------------------------------------------------------


def outcome(pieces: Iterable[bytes]) -> tuple[list[bytes], bool]:
    """The payloads, and whether the stream was found endless."""
    decoder = SseDecoder()
    payloads, endless = [], False
    for piece in pieces:
        try:
            payloads += decoder.feed(piece)
        except SseError:
            endless = True
    try:
        payloads += decoder.finish()
    except SseError:
        endless = True
    return payloads, endless


@pytest.mark.parametrize(
    "rest",
    [
        b"data: " + b"x" * 95,
        b": " + b"x" * 99,
        b"data: aaaaaaaaaaaaaaaaaaaa\n" * 5,
        b"data\n" * 101,
        b"x" * 101,
    ],
    ids=["one data line", "one comment", "many data lines", "many empty data lines", "no field"],
)
def test_an_event_over_the_limit_is_an_error_after_what_came_before_it_wherever_it_is_cut(
    monkeypatch: pytest.MonkeyPatch, rest: bytes
) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    stream = b"data: before\n\n" + rest + b"\n\ndata: after\n\n"
    for place in range(len(stream) + 1):
        assert outcome([stream[:place], stream[place:]]) == ([b"before"], True)
    assert outcome(bytes([byte]) for byte in stream) == ([b"before"], True)
    assert outcome([b"data: before\n\n", rest + b"\n\n", b"data: after\n\n"]) == ([b"before"], True)


@pytest.mark.parametrize(
    "rest", [b"data: " + b"x" * 94, b": " + b"x" * 98, b"data\n" * 99 + b"data"]
)
def test_an_event_of_exactly_the_limit_is_read(
    monkeypatch: pytest.MonkeyPatch, rest: bytes
) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    stream = rest + b"\n\n"
    for place in range(len(stream) + 1):
        assert not outcome([stream[:place], stream[place:]])[1]


def test_a_large_piece_of_many_small_events_is_not_an_endless_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    assert events([b"data: a\n\n" * 1000 + b"data: b"]) == [b"a"] * 1000 + [b"b"]


@pytest.mark.parametrize("piece", [b"ab", b"data\n", b"data:x\n"])
def test_an_endless_event_holds_no_memory_beyond_the_limit(
    monkeypatch: pytest.MonkeyPatch, piece: bytes
) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 20_000)
    decoder = SseDecoder()
    refused = 0
    tracemalloc.start()
    try:
        for _ in range(30_000):
            try:
                assert decoder.feed(piece) == []
            except SseError:
                refused += 1
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused > 9_000
    assert held < 10_000
    assert peak < 100_000
    with pytest.raises(SseError, match="one event exceeds"):
        decoder.finish()
