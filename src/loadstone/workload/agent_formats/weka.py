"""Reads Weka's traces."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from loadstone.workload.agent_formats.session import (
    Id,
    RawCall,
    RawSession,
    Seconds,
    Tokens,
    make_blocks,
)
from loadstone.workload.block_tree import count_alike
from loadstone.workload.files import BadLine, RequestFile, decode


class _WekaCall(Struct):
    t: Seconds
    type: str = "n"
    tokens: Tokens = msgspec.field(default=0, name="in")
    output_tokens: Tokens = msgspec.field(default=0, name="out")
    hash_ids: list[Id] = []
    api_time: Seconds | None = None
    requests: list[_WekaCall] = []


class _WekaSession(Struct):
    block_size: Annotated[int, Meta(ge=1, le=1 << 20)]
    requests: list[_WekaCall]
    hash_id_scope: str = "local"


class _Timed(NamedTuple):
    """A call with its times, in seconds, and the agent that made it; `parent`: that agent's, None:
    there is none."""

    start: float
    end: float
    agent: int
    parent: int | None
    blocks: NDArray[np.uint64]
    tokens: int
    output_tokens: int


def read_weka(file: RequestFile, dropped: Counter[str]) -> Iterator[RawSession]:
    """Read Weka traces: a document is a session."""
    for _, session in file.read(_read_session):
        yield session


def _read_session(data: bytes) -> RawSession:
    item: _WekaSession = decode(data, _WekaSession)
    numbers = itertools.count(1)
    timed = list(_flatten(item.requests, item.block_size, 0, None, 0.0, numbers))
    if not timed:
        raise BadLine("no calls", "a session without requests", "leave it out")
    timed.sort(key=lambda call: call.start)
    calls = [
        RawCall(*link, max(1, call.tokens), max(1, call.output_tokens), call.blocks)
        for call, link in zip(timed, link_agents(timed), strict=True)
    ]
    return RawSession(calls, item.block_size, is_local=item.hash_id_scope != "global")


def _flatten(
    requests: Sequence[_WekaCall],
    block: int,
    agent: int,
    parent: int | None,
    begin_s: float,
    numbers: Iterator[int],
) -> Iterator[_Timed]:
    """Yield the calls of an agent and of its sub-agents, in absolute times. `numbers`: of agents to
    come."""
    for request in requests:
        # Within a sub-agent times are absolute, or count from its beginning.
        start = request.t + begin_s if request.t < begin_s else request.t
        if request.type == "subagent" or request.requests:
            yield from _flatten(request.requests, block, next(numbers), agent, start, numbers)
            continue
        blocks = make_blocks(request.hash_ids, request.tokens, block)
        end = start + (request.api_time or 0.0)
        yield _Timed(start, end, agent, parent, blocks, request.tokens, request.output_tokens)


_Link = tuple[tuple[int, ...], bool, float]
"""After which places, whether after their sending, and how long after."""


def link_agents(calls: Sequence[_Timed]) -> list[_Link]:
    """Find what each call waited for, in order of their starts: see the head of agents.py."""
    chains = _chains(calls)
    chain_of = {place: number for number, chain in enumerate(chains) for place in chain}
    spawner: dict[int, int] = {}
    parents: list[list[int]] = [[] for _ in calls]
    sent = [False] * len(calls)
    for place, call in enumerate(calls[1:], 1):
        chain = chains[chain_of[place]]
        if chain[0] != place:
            parents[place] = [chain[chain.index(place) - 1]]
            continue
        # A sub-agent of an agent, or a part of the same agent's work that goes on beside the rest
        # of it.
        home = call.agent
        if call.parent is not None and all(past.agent != home for past in calls[:place]):
            home = call.parent
        near = [past for past in range(place) if calls[past].agent == home] or list(range(place))
        ended = [past for past in near if calls[past].end <= call.start]
        sent[place] = not ended
        parents[place] = [max(ended, key=lambda past: calls[past].end) if ended else near[-1]]
        spawner[chain_of[place]] = chain_of[parents[place][0]]
    for number, home_chain in spawner.items():
        last = chains[number][-1]
        for place in chains[home_chain]:
            if calls[place].start >= calls[last].end and place > last:
                if not sent[place] and last not in parents[place]:
                    parents[place].append(last)
                break
    links: list[_Link] = []
    for place, call in enumerate(calls):
        begun = call.start
        if parents[place]:
            begun = max(
                calls[parent].start if sent[place] else calls[parent].end
                for parent in parents[place]
            )
        links.append((tuple(parents[place]), sent[place], max(0.0, call.start - begun)))
    return links


def _chains(calls: Sequence[_Timed]) -> list[list[int]]:
    """Divide calls, in order of their starts, into chains of one after another: an agent's, and of
    an agent that did several things at once, those whose prompts go on from one another.
    """
    chains: list[list[int]] = []
    of_agent: dict[int, list[list[int]]] = {}
    for place, call in enumerate(calls):
        begun = of_agent.setdefault(call.agent, [])
        free = [chain for chain in begun if calls[chain[-1]].end <= call.start]
        if not free:
            begun.append([place])
            chains.append(begun[-1])
            continue
        best = free[0]
        if len(begun) > 1:
            best = max(free, key=lambda chain: _share_kept(calls[chain[-1]].blocks, call.blocks))
        best.append(place)
    return chains


def _share_kept(past: NDArray[np.uint64], blocks: NDArray[np.uint64]) -> float:
    """Return the share of an earlier prompt with which one begins."""
    return count_alike(past, blocks) / max(1, len(past))
