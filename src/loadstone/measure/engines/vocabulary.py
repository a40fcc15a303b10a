"""How to write prompts of exact length for a server: token ids, or words of one token each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from loadstone.core import Target
from loadstone.core.errors import InputError
from loadstone.measure.engines.probe import ask_once
from loadstone.measure.engines.server import Server
from loadstone.workload.prompts import Vocabulary
from loadstone.workload.request import Ask
from loadstone.workload.word_list import WORDS

_MIN_PIECES = 64
"""A vocabulary smaller than this would make prompts that share prefixes by chance."""
_GROUP_WORDS = 64
_ID_PROBE = 32
_OVERHEAD_WORDS = 16
_OVERHEAD_TRIES = 4
_FEWEST_TRIES, _MOST_TRIES = 64, 400
"""Requests to find words by: the fewest where none is found, the most where some are."""


def find_vocabulary(
    server: Server, target: Target, ask: Ask, tokenizer: str | None, *, text_only: bool
) -> Vocabulary:
    """The best vocabulary that the server takes. Raises InputError."""
    vocabulary = None
    if ask.endpoint in ("completions", "sglang") and not text_only:
        vocabulary = _ids(server, target, ask, tokenizer)
    if vocabulary is None:

        def by_usage(words: Sequence[str]) -> int | None:
            return _prompt_tokens(server, ask, " ".join(words))

        def by_tokenize(words: Sequence[str]) -> int | None:
            tokens = _server_tokens(server, target, "".join(f" {word}" for word in words))
            return None if tokens is None else len(tokens)

        known = tokenizer is None and by_tokenize(["time"]) is not None
        vocabulary = find_words(tokenizer, by_usage, by_tokenize if known else None)
    return vocabulary


def find_words(
    tokenizer: str | None,
    by_usage: Callable[[Sequence[str]], int | None],
    by_tokenize: Callable[[Sequence[str]], int | None] | None = None,
) -> Vocabulary:
    """Words of one token each, found by counting: with a tokenizer where there is one, else as the server counts.

    by_usage      tokens of a prompt of these words, whatever the server adds to it; None: it does not say
    by_tokenize   tokens of these words alone, each after a space
    Raises InputError where the tokenizer cannot be read.
    """
    if tokenizer is not None:
        encode = _local_tokenizer(tokenizer)
        words = [word for word in WORDS if len(encode(f" {word} {word}")) - len(encode(f" {word}")) == 1]
    else:
        words = _single_token_words(by_tokenize or by_usage)
    if len(words) < _MIN_PIECES:
        # No count to go by, or a tokenizer that knows few English words: lengths are then checked after the run.
        words = list(WORDS)
    return Vocabulary("text", words=tuple(words), overhead_tokens=_overhead(by_usage, words[0]) or 0)


def token_counter(server: Server | None, target: Target, tokenizer: str | None) -> Callable[[str], int | None]:
    """What counts the tokens of a text alone, by a tokenizer or by the server's /tokenize; None: nobody can.

    Raises InputError where the tokenizer cannot be read.
    """
    if tokenizer is not None:
        encode = _local_tokenizer(tokenizer)
        return lambda text: len(encode(text))
    if server is None or _server_tokens(server, target, "time") is None:
        return lambda text: None

    def by_server(text: str) -> int | None:
        tokens = _server_tokens(server, target, text)
        return None if tokens is None else len(tokens)

    return by_server


def _prompt_tokens(server: Server, ask: Ask, prompt: str | Sequence[int]) -> int | None:
    """What the server counts for a prompt; None where it refuses it or gives no count."""
    # In one piece, where usage needs no asking; Triton's models may be unable to answer so.
    if ask.endpoint != "triton":
        # vLLM refuses options of a stream where there is none.
        extra = {name: value for name, value in ask.extra.items() if name != "stream_options"}
        ask = msgspec.structs.replace(ask, stream=False, extra=extra)
    heard = ask_once(server, ask, prompt)
    return heard.answer.input_tokens if heard.response.status_code == 200 else None


def _ids(server: Server, target: Target, ask: Ask, tokenizer: str | None) -> Vocabulary | None:
    """Token ids of ordinary words, if prompts of ids are taken and counted as they are."""
    text = "".join(f" {word}" for word in WORDS)
    if tokenizer is not None:
        ids = _local_tokenizer(tokenizer)(text)
    else:
        ids = _server_tokens(server, target, text) or list(range(1000, 3000))
    ids = sorted(set(ids))
    if len(ids) < _MIN_PIECES:
        return None
    few, more = (_prompt_tokens(server, ask, ids[:count]) for count in (_ID_PROBE, 2 * _ID_PROBE))
    if few is None or more is None or more - few != _ID_PROBE:
        return None
    return Vocabulary("token ids", ids=tuple(ids), overhead_tokens=few - _ID_PROBE)


def _server_tokens(server: Server, target: Target, text: str) -> list[int] | None:
    """Token ids of `text` by the server's own /tokenize: vLLM's and SGLang's form, or llama.cpp's."""
    fields = {"model": target.model, "prompt": text, "content": text, "add_special_tokens": False}
    answer = server.post_json("/tokenize", fields)
    tokens = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(tokens, list) or not all(isinstance(token, int) and token >= 0 for token in tokens):
        return None
    return tokens


def _overhead(count: Callable[[Sequence[str]], int | None], word: str) -> int | None:
    """Tokens of a prompt of this word again and again that are no words: what is added to every prompt, and what the
    word costs more at its beginning. None where nothing is counted, or where one more word is not one more token.
    """
    few = count([word] * _OVERHEAD_WORDS)
    more = count([word] * 2 * _OVERHEAD_WORDS) if few is not None else None
    if few is None or more is None or more - few != _OVERHEAD_WORDS:
        return None
    return max(0, few - _OVERHEAD_WORDS)


def _single_token_words(count: Callable[[Sequence[str]], int | None]) -> list[str]:
    """Words that cost one token each, by counting groups and halving those that cost more."""
    # SentencePiece begins a text by a token of its own, even where nothing is asked to be added.
    overheads = ((word, _overhead(count, word)) for word in WORDS[:_OVERHEAD_TRIES])
    first, overhead = next((found for found in overheads if found[1] is not None), ("", None))
    good: list[str] = []
    groups = [list(WORDS[i : i + _GROUP_WORDS]) for i in range(0, len(WORDS), _GROUP_WORDS)]
    tries = 0
    while overhead is not None and groups and tries < min(_MOST_TRIES, _FEWEST_TRIES + 8 * len(good)):
        group = groups.pop()
        tries += 1
        cost = count([first, *group])  # a group's own first word may cost another number without a space before it
        if cost is None:
            return good
        if cost - overhead - 1 == len(group):
            good += group
        elif len(group) > 1:
            middle = len(group) // 2
            groups += [group[:middle], group[middle:]]
    return good


def _local_tokenizer(path: str) -> Callable[[str], list[int]]:
    """Encoder from a tokenizer.json, or a folder that holds one. Raises InputError, one line."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise InputError("--tokenizer needs an extra package: pip install 'loadstone[tokenizers]'") from error
    from pathlib import Path

    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise InputError(
            f"--tokenizer {path}: cannot be read ({error}); give a tokenizer.json or its folder"
        ) from error

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return encode
