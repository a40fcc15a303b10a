"""Words of one token each, found by counting: against tokenizers that do what real ones do."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import pytest

from loadstone.core.plan import PlannedRequest
from loadstone.measure.engines.probe import find_words
from loadstone.workload.prompts import PromptWriter, Vocabulary
from loadstone.workload.word_list import WORDS

TEMPLATE_TOKENS = 13


def odd(word: str) -> bool:
    """Half of the words: those that cost two tokens."""
    return zlib.crc32(word.encode()) % 2 == 0


def bytewise(text: str) -> list[int]:
    """A BPE as GPT-2's: a word is known after a space; at the very beginning it costs one more."""
    words = text.split(" ")
    first = [0] * (2 if words[0] else 0)
    return first + [0] * sum(2 if odd(word) else 1 for word in words[1:])


def sentencepiece(text: str) -> list[int]:
    """As Llama 2's: a space is put in front of every text, and two in a row are a token of their
    own."""
    words = text.removeprefix(" ").split(" ")
    return [0] * (text.startswith(" ") + sum(2 if odd(word) else 1 for word in words))


def all_known(text: str) -> list[int]:
    return [0] * (text.startswith(" ") + len(text.split()))


Tokenizer = Callable[[str], list[int]]
TOKENIZERS = pytest.mark.parametrize("encode", [bytewise, sentencepiece, all_known])


class Server:
    """Counts prompts by its tokenizer, within a chat template."""

    def __init__(self, encode: Tokenizer) -> None:
        self.encode = encode
        self.asked = 0

    def by_usage(self, words: Sequence[str]) -> int:
        self.asked += 1
        return len(self.encode(" ".join(words))) + TEMPLATE_TOKENS

    def by_tokenize(self, words: Sequence[str]) -> int:
        self.asked += 1
        return len(self.encode("".join(f" {word}" for word in words)))

    def off(self, found: Vocabulary) -> set[int]:
        """By how many tokens prompts of 50, 51, … tokens miss their length."""
        writer = PromptWriter(found, seed=0, salt="s", chat=False)
        asked = [
            PlannedRequest(
                cell=0,
                index=size,
                phase="measure",
                intended_s=None,
                input_tokens=size,
                output_tokens=1,
                prefix_group=None,
                prefix_tokens=0,
                prompt=None,
            )
            for size in range(50, 80)
        ]
        texts = [(request.input_tokens, writer.write(request).decode()[1:-1]) for request in asked]
        return {len(self.encode(text)) + TEMPLATE_TOKENS - size for size, text in texts}


@TOKENIZERS
def test_prompts_are_exact_by_the_servers_own_usage(encode: Tokenizer) -> None:
    server = Server(encode)
    found = find_words(None, server.by_usage)
    assert server.off(found) == {0}
    assert server.asked < 450


@TOKENIZERS
def test_prompts_are_exact_by_the_servers_tokenize(encode: Tokenizer) -> None:
    server = Server(encode)
    assert server.off(find_words(None, server.by_usage, server.by_tokenize)) == {0}


@TOKENIZERS
def test_prompts_are_exact_by_a_tokenizer_at_hand(
    encode: Tokenizer,
) -> None:
    server = Server(encode)
    found = find_words(encode, server.by_usage)
    assert server.off(found) == {0}
    assert set(found.words) == {word for word in WORDS if encode is all_known or not odd(word)}


def test_a_server_whose_words_are_all_long_is_not_asked_for_ever() -> None:
    server = Server(lambda text: [0] * len(text))
    found = find_words(None, server.by_usage)
    assert found.words == WORDS
    assert server.asked < 100
    silent: list[int] = []
    assert find_words(None, lambda words: silent.append(1)).words == WORDS  # it counts nothing
    assert len(silent) < 10
