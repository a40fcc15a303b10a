"""Which pictures of prompts a step encodes, and how long their embeddings are kept (vLLM's
EncoderCacheManager)."""

from collections import OrderedDict
from collections.abc import Container, Hashable

from loadstone.predict.scheduler.policy import EnginePolicy
from loadstone.predict.scheduler.sequence import Sequence
from loadstone.predict.step_time.pictures import Picture


class EncoderCache:
    """The cache of embeddings of an engine. `encoded`: the pictures that the step encodes which was
    scheduled; `is_used`: it encodes any, or somebody reads some."""

    def __init__(self, policy: EnginePolicy) -> None:
        self.encoded: list[Picture] = []
        self.is_used = False
        self._tokens = policy.encoder_tokens or 1 << 62
        self._kept_tokens = policy.encoder_kept
        self._whole = policy.whole_pictures and policy.chunked
        self._budget = policy.max_batched_tokens
        self._read: dict[Hashable, list[tuple[Sequence, Picture]]] = {}  # by the picture's name
        self._kept: OrderedDict[Hashable, int] = OrderedDict()  # that nobody reads, oldest first

    def cut(self, sequence: Sequence, new: int) -> int:
        """Return how many of the next tokens of a prompt the step computes: up to a picture that
        its tower, or the cache of embeddings, has no room for (vLLM's
        Scheduler._try_schedule_encoder_inputs)."""
        start, end = sequence.computed, sequence.computed + new
        if self._whole:
            for picture in sequence.pictures:
                if picture.start < end < picture.end and picture.end - picture.start < self._budget:
                    end = max(start, picture.start)
        made, held = sum(picture.embeddings for picture in self.encoded), self._held
        for picture in self._unencoded(sequence, end - start):
            made, held = made + picture.embeddings, held + picture.embeddings
            if max(made, held) > self._tokens:
                return max(0, picture.start - start)
        return end - start

    def encode(self, sequence: Sequence, new: int) -> None:
        """Have the step encode the pictures among the next tokens of a prompt, as far as their
        embeddings are not there."""
        self.encoded += self._unencoded(sequence, new)
        for picture in _pictures_among(sequence, new):
            self._kept.pop(picture.name, None)
            self._read.setdefault(picture.name, []).append((sequence, picture))
        self._shrink()

    def release(self, running: Container[Sequence]) -> None:
        """Give back the embeddings that the steps so far have read."""
        self.encoded = []
        for name, readers in list(self._read.items()):
            left = [
                (sequence, picture)
                for sequence, picture in readers
                if sequence in running and sequence.computed < picture.end
            ]
            self._read[name] = left
            if not left:
                del self._read[name]
                self._kept[name] = readers[0][1].embeddings
        self._shrink()

    @property
    def _held(self) -> int:
        """Count the embeddings that somebody reads."""
        return sum(readers[0][1].embeddings for readers in self._read.values())

    def _unencoded(self, sequence: Sequence, new: int) -> list[Picture]:
        """List the pictures among the next tokens of a prompt whose embeddings are not there."""
        return [
            picture
            for picture in _pictures_among(sequence, new)
            if picture.name not in self._read and picture.name not in self._kept
        ]

    def _shrink(self) -> None:
        """Drop embeddings that nobody reads, the oldest first, where there is no room for them."""
        room = min(self._kept_tokens, self._tokens - self._held)
        while self._kept and sum(self._kept.values()) > room:
            self._kept.popitem(last=False)
        self.is_used = bool(self.encoded or self._read)


def _pictures_among(sequence: Sequence, new: int) -> list[Picture]:
    """List the pictures among the next tokens of a prompt."""
    start, end = sequence.computed, sequence.computed + new
    return [picture for picture in sequence.pictures if picture.start < end and picture.end > start]
