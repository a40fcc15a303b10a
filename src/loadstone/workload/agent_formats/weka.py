"""Reads Weka's traces."""

from __future__ import annotations

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
    Reader,
    Seconds,
    Tokens,
    make_blocks,
    read_as,
)
from loadstone.workload.trace import BadLine


class _WekaCall(Struct):
    t: Seconds
    type: str = "n"
    tokens: Tokens = msgspec.field(default=0, name="in")
    out: Tokens = 0
    hash_ids: list[Id] = []
    api_time: Seconds | None = None
    agent_id: str | None = None
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
    out: int


class WekaReader(Reader):
    """Reads Weka traces: a document is a session."""

    def add(self, line: int, value: bytes) -> Iterator[RawSession]:
        item = read_as(_WekaSession, value)
        timed: list[_Timed] = []
        agents = _flatten(item.requests, item.block_size, (0, None), 0.0, 1, timed)
        if not timed:
            raise BadLine("no calls", "a session without requests", "leave it out")
        timed.sort(key=lambda each: each.start)
        links = link_agents(timed, agents)
        calls = [
            RawCall(*link, max(1, each.tokens), max(1, each.out), each.blocks)
            for each, link in zip(timed, links, strict=True)
        ]
        yield RawSession(calls, item.block_size, is_local=item.hash_id_scope != "global")


def _flatten(
    requests: Sequence[_WekaCall],
    block: int,
    whose: tuple[int, int | None],
    begin_s: float,
    agents: int,
    into: list[_Timed],
) -> int:
    """List the calls of an agent and of its sub-agents, in absolute times; return how many agents
    there are now. `whose`: the agent and its parent.
    """
    for each in requests:
        # Within a sub-agent times are absolute, or count from its beginning.
        start = each.t + begin_s if each.t < begin_s else each.t
        if each.type == "subagent" or each.requests:
            agents = _flatten(each.requests, block, (agents, whose[0]), start, agents + 1, into)
            continue
        blocks = make_blocks(each.hash_ids, each.tokens, block)
        into.append(
            _Timed(start, start + (each.api_time or 0.0), *whose, blocks, each.tokens, each.out)
        )
    return agents


_Link = tuple[tuple[int, ...], bool, float]
"""After which places, whether after their sending, and how long after."""


def link_agents(calls: Sequence[_Timed], agents: int) -> list[_Link]:
    """Find what each call waited for, in order of their starts: see the head of agents.py."""
    chains = _chains(calls, agents)
    chain_of = {place: number for number, chain in enumerate(chains) for place in chain}
    spawner: dict[int, int] = {}
    after: list[list[int]] = [[] for _ in calls]
    sent = [False] * len(calls)
    for place, call in enumerate(calls[1:], 1):
        chain = chains[chain_of[place]]
        at = chain.index(place) if chain[0] != place else 0
        if at:
            after[place] = [chain[at - 1]]
            continue
        # A sub-agent of an agent, or a part of the same agent's work that goes on beside the rest
        # of it.
        home = (
            call.agent
            if call.parent is None or _has_begun(calls, place, call.agent)
            else call.parent
        )
        near = [each for each in range(place) if calls[each].agent == home] or list(range(place))
        over = [each for each in near if calls[each].end <= call.start]
        sent[place] = not over
        after[place] = [max(over, key=lambda each: calls[each].end) if over else near[-1]]
        spawner[chain_of[place]] = chain_of[after[place][0]]
    for number, home_chain in spawner.items():
        last = chains[number][-1]
        joins = (
            each
            for each in chains[home_chain]
            if calls[each].start >= calls[last].end and each > last
        )
        join = next(joins, None)
        if join is not None and not sent[join] and last not in after[join]:
            after[join].append(last)
    links: list[_Link] = []
    for place, call in enumerate(calls):
        parents = after[place]
        begun = max(
            (calls[each].start if sent[place] else calls[each].end for each in parents),
            default=call.start,
        )
        links.append((tuple(parents), sent[place], max(0.0, call.start - begun)))
    return links


def _has_begun(calls: Sequence[_Timed], place: int, agent: int) -> bool:
    return any(each.agent == agent for each in calls[:place])


def _chains(calls: Sequence[_Timed], agents: int) -> list[list[int]]:
    """Divide calls, in order of their starts, into chains of one after another: an agent's, and of
    an agent that did several things at once, those whose prompts go on from one another.
    """
    chains: list[list[int]] = []
    of_agent: list[list[int]] = [[] for _ in range(agents)]
    for place, call in enumerate(calls):
        free = [
            number for number in of_agent[call.agent] if calls[chains[number][-1]].end <= call.start
        ]
        if free:
            best = free[0]
            if len(of_agent[call.agent]) > 1:
                best = max(
                    free,
                    key=lambda number: _share_kept(calls[chains[number][-1]].blocks, call.blocks),
                )
            chains[best].append(place)
        else:
            of_agent[call.agent].append(len(chains))
            chains.append([place])
    return chains


def _share_kept(before: NDArray[np.uint64], blocks: NDArray[np.uint64]) -> float:
    """Return the share of an earlier prompt with which one begins."""
    short = min(len(before), len(blocks))
    apart = np.flatnonzero(before[:short] != blocks[:short])
    return float(apart[0] if len(apart) else short) / max(1, len(before))
