"""Answers that tests of the client give: streams of events, wrong ones, and what becomes of a run
of six requests."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator

from conftest import (
    LAST_CHUNK,
    QUICK,
    SSE,
    Ask,
    Json,
    Loadstone,
    Outcome,
    Reply,
    ScriptedServer,
    Send,
    chunk,
    event,
    token,
)

PLANNED = 6
RUN = (*QUICK, "--concurrency", "2", "--requests", PLANNED, "--json")
DONE = event("[DONE]")


def measure(loadstone: Loadstone, reply: Reply, *more: object) -> tuple[Outcome, list[Json]]:
    """Run six requests against `reply`, and check that every one of them is in the records,
    whatever happens."""
    with ScriptedServer(reply) as server:
        outcome = loadstone("bench", server.url, *RUN, *more)
    assert outcome.code == 0, outcome
    records = outcome.records
    assert sorted(record["request_id"] for record in records) == [f"0-{n}" for n in range(PLANNED)]
    assert outcome.cell["requests"]["sent"] == PLANNED
    return outcome, records


def statuses(records: list[Json]) -> dict[str, int]:
    return dict(Counter(record["status"] for record in records))


def all_well(outcome: Outcome, records: list[Json]) -> None:
    assert statuses(records) == {"ok": PLANNED}
    for record in records:
        is_well(record)


def is_well(record: Json) -> None:
    assert record["status"] == "ok", record["error"]
    assert (record["input_tokens"], record["output_tokens"], record["tokens"]) == (
        8,
        4,
        [1, 2, 3, 4],
    )
    assert record["arrival_s"] == sorted(record["arrival_s"])
    assert record["sent_s"] < record["arrival_s"][0] <= record["arrival_s"][-1] <= record["end_s"]
    assert record["finish_reason"] == "length"


def sends(
    *pieces: bytes, then: type[Exception] | float | None = None, pause_s: float = 0.05
) -> Reply:
    """Answer with these bytes; then end the connection so after a pause, or wait so many
    seconds."""

    def reply(ask: Ask, send: Send) -> None:
        if pieces:
            send(b"".join(pieces))
        if isinstance(then, float):
            time.sleep(then)
        elif then is not None:
            time.sleep(pause_s if pieces else 0)
            raise then

    return reply


def streams(*said: bytes) -> Reply:
    """Answer with these events at once."""
    return sends(SSE, *map(chunk, said), LAST_CHUNK)


def repeats(head: bytes, piece: bytes, pause_s: float = 0) -> Reply:
    """Answer with `head`, and with the same piece for ever."""

    def reply(ask: Ask, send: Send) -> None:
        if head:
            send(head)
        while True:
            send(piece)
            time.sleep(pause_s)

    return reply


def say(send: Send, said: Iterable[bytes], pause_s: float = 0.0005) -> None:
    """Stream these events, one after the other."""
    send(SSE)
    for one in said:
        send(chunk(one))
        time.sleep(pause_s)
    send(LAST_CHUNK)


def tokens(count: int, finish: str | None = "length") -> list[bytes]:
    return [*[token()] * (count - 1), token(finish=finish)]


def counted(prompt_tokens: int, output_tokens: int, cached_tokens: int = 0) -> bytes:
    """Return the usage of an answer, as the server would have it."""
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens}
    return event(
        {
            "choices": [],
            "usage": {**counts, "prompt_tokens_details": {"cached_tokens": cached_tokens}},
        }
    )


def findings(outcome: Outcome, kind: str) -> Iterator[Json]:
    """Yield the findings of that kind of a run of one cell."""
    yield from (each for each in outcome.cell["verdict"]["findings"] if each["kind"] == kind)
