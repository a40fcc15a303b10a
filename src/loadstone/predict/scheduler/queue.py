"""The queue of a scheduler: which requests that arrive it takes, in which order they wait, and whom
it turns away."""

from bisect import bisect_right
from collections.abc import Collection
from operator import attrgetter
from typing import NamedTuple

from loadstone.core.errors import InputError
from loadstone.predict.scheduler.policy import EnginePolicy
from loadstone.predict.scheduler.running import Pool, Running
from loadstone.predict.scheduler.sequence import Sequence

_order_of = attrgetter("order")
_QUEUE_FULL = "The request queue is full."
_HIGHER_CAME = "The request is aborted by a higher priority request."
_TOO_MANY = "busy: max_num_queued_reqs is reached"
_TOO_LONG = "busy: max_num_queued_tokens is reached"


class Refusal(NamedTuple):
    """A request that was turned away: by an HTTP status, or (`status` of an answer that has begun)
    by an event in the stream."""

    sequence: Sequence
    status: int
    reason: str


class Queue(Running):
    """Keeps what waits in a scheduler; Scheduler has the meaning of the public ones."""

    def __init__(self, policy: EnginePolicy, pool: Pool, *, shared: bool, seed: int) -> None:
        super().__init__(policy, pool, shared=shared, seed=seed)
        self.refused: list[Refusal] = []
        self.peers: Collection[Queue] = [self]
        self._by_priority = policy.priorities
        self._turns_away = policy.turns_away
        self._arrived = 0
        # KV tokens beyond prompt and answer: guesses, less the last token.
        self._beyond = policy.decode_tokens - 2
        self._poll = policy.poll_steps
        self._unseen = 0  # of those waiting the last, for whom the engine has not looked yet
        # Of a static batch those that ended, whose slots stay taken.
        self._padding: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        """A request arrives. Raises InputError where it would never fit."""
        tokens = sequence.prompt_tokens + sequence.output_tokens + self._beyond
        if self.policy.reserved_tokens is not None:
            tokens = max(tokens, self.policy.reserved_tokens)
        sequence.most_blocks = blocks = -(-tokens // self._block)
        if blocks > self._blocks:
            raise InputError(
                f"a request of {sequence.prompt_tokens} + {sequence.output_tokens} tokens does not"
                f" fit into the KV cache, which holds {self.policy.kv_tokens}; ask for less, or"
                " deploy on more memory"
            )
        self._arrived += 1
        sequence.order = (-sequence.priority, self._arrived)
        if self._turns_away and not self._is_admitted(sequence):
            return
        self._enqueue(sequence)
        if self._poll:
            self._unseen += 1

    def abort(self, sequence: Sequence) -> None:
        """Its client has gone. Between steps only."""
        if sequence not in self.running:
            if sequence in list(self.waiting)[len(self.waiting) - self._unseen :]:
                self._unseen -= 1
            self.waiting.remove(sequence)
            if sequence.fetched:
                self._drop(sequence)
        elif sequence not in self._padding:
            self._stop_early(sequence)
            self._leave(sequence)

    def _is_admitted(self, sequence: Sequence) -> bool:
        """Tell whether the server takes a request that comes; if not, or if another has to go for
        it, `refused` has who was turned away."""
        policy, refused = self.policy, self.refused
        queues = {id(peer.waiting): peer.waiting for peer in self.peers}.values()
        if policy.max_under_way is not None:
            under_way = sum(map(len, queues)) + sum(len(peer.running) for peer in self.peers)
            if under_way >= policy.max_under_way:
                refused.append(Refusal(sequence, 503, _TOO_MANY))
                return False
        if policy.max_queued_tokens is not None:
            unbegun = [
                request.prompt_tokens
                for among in (*queues, *(peer.running for peer in self.peers))
                for request in among
                if not request.emitted and not request.end_tick
            ]
            if sum(unbegun) >= policy.max_queued_tokens:
                refused.append(Refusal(sequence, 503, _TOO_LONG))
                return False
        return self._has_queue_room(sequence)

    def _has_queue_room(self, sequence: Sequence) -> bool:
        """Tell whether the queue takes one more, the last of a lower priority leaving it where it
        is full (SGLang: Scheduler._abort_on_queued_limit)."""
        limit, waiting = self.policy.max_waiting, self.waiting
        if limit is None or len(waiting) < limit:
            return True
        last = waiting[-1]
        if not self._by_priority or sequence.priority <= last.priority:
            self.refused.append(Refusal(sequence, 200, _QUEUE_FULL))
            return False
        self.abort(last)
        self.refused.append(Refusal(last, 200, _HIGHER_CAME))
        return True

    def _enqueue(self, sequence: Sequence, *, first: bool = False) -> None:
        """Have a request wait: by its order where there are priorities, else behind all others, or
        `first`."""
        waiting = self.waiting
        if self._by_priority:
            waiting.insert(bisect_right(waiting, sequence.order, key=_order_of), sequence)
        elif first:
            waiting.appendleft(sequence)
        else:
            waiting.append(sequence)

    def _drop(self, sequence: Sequence) -> None:
        assert self.tiers is not None  # noqa: S101
        self._give_back(sequence, False)
        self.tiers.forget(sequence)
        sequence.fetched, sequence.computed = False, 0
