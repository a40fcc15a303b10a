from __future__ import annotations

import json

import pytest

from conftest import Ask, Loadstone, ScriptedServer, Send, answer, whole
from tiers import further

pytestmark = pytest.mark.process

LOAD = (
    "--concurrency",
    "1,2",
    "--requests",
    "2",
    "--warmup",
    "0",
    "--input",
    "4",
    "--output",
    "2",
    "--json",
)


def flushes(path: str, asks: list[Ask]) -> list[int]:
    """After how many measured requests the cache was emptied, each time."""
    return [
        sum(a.measured for a in asks[:i])
        for i, ask in enumerate(asks)
        if ask.line.startswith(f"POST {path} ")
    ]


EMPTIED = [
    (("--salt", "none"), [0, 2]),
    (("--salt", "mine", "--no-flush-cache"), []),
    (("--flush-cache",), [0, 2]),
    ((), []),
]


@pytest.mark.parametrize(
    ("path", "flags", "times"),
    [
        ("/flush_cache", *EMPTIED[0]),
        *(("/reset_prefix_cache", *case) for case in EMPTIED),
        *further(*(("/flush_cache", *case) for case in EMPTIED[1:]), values=3),
    ],
)
def test_a_cache_is_emptied_before_each_cell_where_prompts_are_not_new(
    loadstone: Loadstone, path: str, flags: tuple[str, ...], times: list[int]
) -> None:
    def offers(ask: Ask, send: Send) -> None:
        send(whole("200 OK", b"{}")) if ask.path == path else answer(ask, send)

    with ScriptedServer(offers, meets=True) as server:
        outcome = loadstone("bench", server.url, *LOAD, *flags)
        assert flushes(path, server.asks) == times
    said = json.loads((outcome.folder / "run.json").read_text())["settings"]["prefix_cache"]
    if times:
        assert said == f"emptied before each load, POST {path}"
    else:
        assert said == ("left as it was" if flags else "prompts are new")


def test_a_server_that_cannot_empty_its_cache_is_measured_all_the_same(
    loadstone: Loadstone,
) -> None:
    with ScriptedServer() as server:
        outcome = loadstone("bench", server.url, *LOAD, "--salt", "none")
    assert [cell["requests"]["ok"] for cell in outcome.document["cells"]] == [2, 2]
    said = json.loads((outcome.folder / "run.json").read_text())["settings"]["prefix_cache"]
    assert said == "not emptied: the server offers no way"
