"""Sends single small requests to a server, sent and read just as in a run: which fields it takes,
and how to write prompts of exact length for it, as token ids or as words of one token each.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from loadstone.core.errors import InputError
from loadstone.core.extras import require
from loadstone.core.record import STOP_REASONS, Target
from loadstone.core.text import excerpt
from loadstone.measure.engines.server import Server
from loadstone.measure.wire.structured import has_shape
from loadstone.measure.wire.wire import find_wire
from loadstone.workload.prompts import MARK_END, MARK_TOKENS, Vocabulary
from loadstone.workload.request import USAGES, RequestSpec, Sampling, Structured
from loadstone.workload.word_list import WORDS

_SHAPED_TOKENS = 24
"""Enough to tell a constrained answer from another."""
_MIN_PIECES = 64
"""A vocabulary smaller than this would make prompts that share prefixes by chance."""
_GROUP_WORDS = 64
_ID_PROBE = 32
_OVERHEAD_WORDS = 16
_QUERY_WORDS = 16
_OVERHEAD_TRIES = 4
_FEWEST_TRIES, _MOST_TRIES = 64, 400
"""Requests to find words by: the fewest where none is found, the most where some are."""


Encode = Callable[[str], list[int]]
"""Makes token ids of a text."""


class Requirements(msgspec.Struct, kw_only=True, frozen=True):
    """Says what a run needs of its server.

    model, endpoint   None: what the server offers
    tokenizer         the path of a tokenizer.json, by which prompts are made in place of the
                      server's counts
    extra             the user's own fields of every request
    exact             lengths of answers are demanded, as far as the server can be told so
    stored            later turns of sessions name answers that the server stores
    text_only         prompts must be text (conversations): chat is preferred, and token ids are not
                      used
    """

    model: str | None = None
    endpoint: str | None = None
    tokenizer: str | None = None
    sampling: Sampling = Sampling()
    structured: Structured | None = None
    extra: dict[str, Any] = {}
    stream: bool = True
    exact: bool = True
    stored: bool = False
    text_only: bool = False


# --- which fields it takes ------------------------------------------------------------------------


def negotiate(
    server: Server, target: Target, spec: RequestSpec, needs: Requirements
) -> RequestSpec:
    """Return the request of a run: with token counts, lengths that are exact as far as the server
    can be told so, and the sampling and shape that are needed.

    Raises InputError, which names the flag, where the server does not take one of these.
    """
    wire, sampling = find_wire(spec.endpoint), needs.sampling
    wishes = list(_list_wishes(sampling))
    for flag, name, _ in wishes:
        if wire.has_input(spec, name) is False:
            raise InputError(f"{flag}: the model {spec.model} has no input for it; leave it out")
    if needs.structured is not None and wire.has_input(spec, "structured") is False:
        assert wire.input_name is not None  # noqa: S101
        name = wire.input_name(spec, "structured")
        raise InputError(f"--structured: the model {spec.model} has no input {name}; leave it out")
    spec = _with_optional(server, target, spec, exact=needs.exact)
    for flag, name, value in wishes:
        wish = msgspec.structs.replace(spec, sampling=Sampling(**{name: value}))
        error = server.send_once(wish).error
        if error is not None:
            raise InputError(f"{flag}: the server does not take it ({error}); leave it out")
    spec = msgspec.structs.replace(spec, sampling=sampling)
    if needs.stored:
        spec = _with_stored(server, spec)
    return spec if needs.structured is None else _with_shape(server, spec, needs.structured)


def _with_optional(
    server: Server, target: Target, spec: RequestSpec, *, exact: bool
) -> RequestSpec:
    """Ask for token counts, and with `exact` for answers of exact length, as far as the server
    takes the fields.

    Each is tried alone, on a short answer; `target.accepts` says what came of it. And
    `target.choices`, how many answers a request has by the user's own fields.
    """
    wire = find_wire(spec.endpoint)
    if spec.extra:
        target.choices = server.send_once(spec).answer.choices
    usages = []
    for name, change in wire.optional(spec).items():
        accepted = wire.has_input(spec, name)
        if accepted is None:
            accepted = server.send_once(msgspec.structs.replace(spec, **change)).error is None
        target.accepts[name] = accepted
        if accepted and "usage" in change:
            usages.append(change["usage"])
    return msgspec.structs.replace(
        spec,
        usage=max(usages, key=USAGES.index, default="none"),
        ignore_eos=exact and target.accepts.get("ignore_eos", False),
        min_tokens=exact and target.accepts.get("min_tokens", False),
    )


def _with_stored(server: Server, spec: RequestSpec) -> RequestSpec:
    """Have answers stored, and name them in later turns. Raises InputError where the API has no
    name for them, or the server does not know it afterwards."""
    if not find_wire(spec.endpoint).stores:
        raise InputError(
            f"--history stored: no answer of {spec.endpoint} can be named later; write --endpoint"
            " responses, or leave it out"
        )
    stored = msgspec.structs.replace(spec, stored=True)
    answer, error, _ = server.send_once(stored)
    if error is None:
        error = server.send_once(stored, previous=answer.stored_id or "none").error
    if error is not None:
        raise InputError(
            f"--history stored: the server stores no answers ({error}); start it with its store"
            " (vLLM: VLLM_ENABLE_RESPONSES_API_STORE=1, SGLang: --enable-response-store), or leave"
            " it out"
        )
    return stored


def _list_wishes(sampling: Sampling) -> Iterator[tuple[str, str, Any]]:
    """Yield each wish: its flag, as it is shown, its field and value."""
    flags = {
        "temperature": "--temperature",
        "top_p": "--top-p",
        "seed": "--sampling-seed",
        "stop": "--stop",
    }
    for name, flag in flags.items():
        value = getattr(sampling, name)
        if value is not None and value != ():
            yield f"{flag} {excerpt(str(value), 40)}", name, value


def _with_shape(server: Server, spec: RequestSpec, structured: Structured) -> RequestSpec:
    """Ask for answers of a shape, in the first of the known spellings that the server takes and
    does not ignore.

    Raises InputError, which names the flag, where there is none.
    """
    # Greedy, and free to end: then an answer that differs from the free one differs for the wish's
    # sake.
    calm = msgspec.structs.replace(
        spec, sampling=Sampling(temperature=0.0), ignore_eos=False, min_tokens=False
    )
    free: str | None = None
    tried = []
    for spelling in find_wire(spec.endpoint).spellings.get(structured.kind, ()):
        shape = {"structured": structured, "spelling": spelling}
        answer, error, _ = server.send_once(
            msgspec.structs.replace(calm, **shape), tokens=_SHAPED_TOKENS, keep_text=True
        )
        if error is None:
            obeys = has_shape(structured, answer.text, ended=answer.finish_reason in STOP_REASONS)
            if obeys is None and answer.text:
                if free is None:
                    free = server.send_once(calm, tokens=_SHAPED_TOKENS, keep_text=True).answer.text
                obeys = answer.text != free
            if obeys is not False:
                # Such an answer ends where its shape does.
                return msgspec.structs.replace(spec, **shape, ignore_eos=False, min_tokens=False)
        tried.append(f"{spelling}: {error or 'ignored'}")
    raise InputError(
        f"--structured: the server takes no {structured.kind.replace('_', ' ')} in any form known "
        f"({excerpt('; '.join(tried), 400)}); leave it out, or give it with --extra-body"
    )


# --- how to write prompts of exact length ---------------------------------------------------------


def find_vocabulary(
    server: Server, target: Target, spec: RequestSpec, needs: Requirements
) -> Vocabulary:
    """Return the best vocabulary that the server takes: token ids, else words. Raises
    InputError."""
    encode = None if needs.tokenizer is None else load_tokenizer(needs.tokenizer)
    if find_wire(spec.endpoint).prompts == "text or ids" and not needs.text_only:
        vocabulary = _ids(server, target, spec, encode)
        if vocabulary is not None:
            return vocabulary

    def by_usage(words: Sequence[str]) -> int | None:
        return _prompt_tokens(server, spec, " ".join(words))

    def by_tokenize(words: Sequence[str]) -> int | None:
        return server.count_tokens(target.model, "".join(f" {word}" for word in words))

    return find_words(encode, by_usage, by_tokenize)


def find_words(
    encode: Encode | None,
    by_usage: Callable[[Sequence[str]], int | None],
    by_tokenize: Callable[[Sequence[str]], int | None] = lambda words: None,
) -> Vocabulary:
    """Return words of one token each, found by counting: with a tokenizer where there is one, else
    as the server counts.

    by_usage      tokens of a prompt of these words, whatever the server adds to it; None: it does
                  not say
    by_tokenize   tokens of these words alone, each after a space
    """
    if encode is not None:
        words = [
            word for word in WORDS if len(encode(f" {word} {word}")) - len(encode(f" {word}")) == 1
        ]
    else:
        words = _single_token_words(by_usage if by_tokenize(["time"]) is None else by_tokenize)
    if len(words) < _MIN_PIECES:
        # No count to go by, or a tokenizer that knows few English words: lengths are then checked
        # after the run.
        words = list(WORDS)
    return Vocabulary(
        "text", words=tuple(words), overhead_tokens=_overhead(by_usage, words[0]) or 0
    )


def token_counter(
    server: Server, target: Target, tokenizer: str | None
) -> Callable[[str], int | None]:
    """Return what counts the tokens of a text alone, by a tokenizer or by the server; its None:
    nothing can.

    Raises InputError where the tokenizer cannot be read.
    """
    if tokenizer is not None:
        encode = load_tokenizer(tokenizer)
        return lambda text: len(encode(text))
    if server.tokenize(target.model, "time") is None:
        return lambda text: None
    return partial(server.count_tokens, target.model)


def prompt_counter(
    server: Server, target: Target, spec: RequestSpec, words: Sequence[str], tokenizer: str | None
) -> Callable[[str], int]:
    """Return what counts the tokens of a whole prompt of real text, behind a mark of `words`.
    Raises InputError where nothing counts tokens.

    By the tokenizer, or the server's /tokenize; what the server's usage says beyond that of one
    prompt is in all.
    """
    count = token_counter(server, target, tokenizer)
    mark = " ".join(words[:MARK_TOKENS]) + MARK_END
    sample = f'{mark}"A line, of 27 words"\n\tand (another): it\'s over.'
    added = target.overhead_tokens
    counted, alone = _prompt_tokens(server, spec, sample), count(f" {sample}")
    if alone is not None and counted is not None:
        added = counted - alone

    def whole(text: str) -> int:
        tokens = count(f" {mark}{text}")
        if tokens is None:
            raise InputError(
                "--text: the server counts no tokens of a text (/tokenize); give its tokenizer.json"
                " with --tokenizer"
            )
        return tokens + added

    return whole


def counts_pairs(server: Server, spec: RequestSpec, words: Sequence[str]) -> bool | None:
    """Return whether the server counts a query again for each document, as a cross encoder reads
    it; None where it counts nothing."""
    query, counts = " ".join(words[:_QUERY_WORDS]), []
    for documents in (1, 2):
        texts = [query, *[words[0]] * documents]
        counts.append(server.send_once(spec, texts).answer.input_tokens)
    single, double = counts
    return None if single is None or double is None else double - single > _QUERY_WORDS // 2


def _prompt_tokens(server: Server, spec: RequestSpec, prompt: str | Sequence[int]) -> int | None:
    """Return what the server counts for a prompt; None where it refuses it or gives no count."""
    # In one piece, where usage needs no asking.
    if find_wire(spec.endpoint).counts_whole:
        # vLLM refuses options of a stream where there is none.
        extra = {name: value for name, value in spec.extra.items() if name != "stream_options"}
        spec = msgspec.structs.replace(spec, stream=False, extra=extra)
    return server.send_once(spec, prompt).answer.input_tokens


def _ids(
    server: Server, target: Target, spec: RequestSpec, encode: Encode | None
) -> Vocabulary | None:
    """Return token ids of ordinary words, if prompts of ids are taken and counted as they are."""
    text = "".join(f" {word}" for word in WORDS)
    if encode is not None:
        ids = encode(text)
    else:
        ids = server.tokenize(target.model, text) or list(range(1000, 3000))
    ids = sorted(set(ids))
    if len(ids) < _MIN_PIECES:
        return None
    shorter, longer = (
        _prompt_tokens(server, spec, ids[:count]) for count in (_ID_PROBE, 2 * _ID_PROBE)
    )
    if shorter is None or longer is None or longer - shorter != _ID_PROBE:
        return None
    return Vocabulary("token ids", ids=tuple(ids), overhead_tokens=shorter - _ID_PROBE)


def _overhead(count: Callable[[Sequence[str]], int | None], word: str) -> int | None:
    """Return tokens of a prompt of this word again and again that are no words: what is added to
    every prompt, and what the word costs more at its beginning. None where nothing is counted, or
    where one more word is not one more token.
    """
    shorter = count([word] * _OVERHEAD_WORDS)
    longer = count([word] * 2 * _OVERHEAD_WORDS) if shorter is not None else None
    if shorter is None or longer is None or longer - shorter != _OVERHEAD_WORDS:
        return None
    return max(0, shorter - _OVERHEAD_WORDS)


def _single_token_words(count: Callable[[Sequence[str]], int | None]) -> list[str]:
    """Return words that cost one token each, by counting groups and halving those that cost
    more."""
    # SentencePiece begins a text by a token of its own, even where nothing is asked to be added.
    overheads = ((word, _overhead(count, word)) for word in WORDS[:_OVERHEAD_TRIES])
    first, overhead = next((pair for pair in overheads if pair[1] is not None), ("", None))
    good: list[str] = []
    groups = [list(WORDS[i : i + _GROUP_WORDS]) for i in range(0, len(WORDS), _GROUP_WORDS)]
    tries = 0
    while (
        overhead is not None and groups and tries < min(_MOST_TRIES, _FEWEST_TRIES + 8 * len(good))
    ):
        group = groups.pop()
        tries += 1
        cost = count(
            [first, *group]
        )  # a group's own first word may cost another number without a space before it
        if cost is None:
            return good
        if cost - overhead - 1 == len(group):
            good += group
        elif len(group) > 1:
            middle = len(group) // 2
            groups += [group[:middle], group[middle:]]
    return good


def load_tokenizer(path: str) -> Encode:
    """Return an encoder from a tokenizer.json, or a folder that holds one. Raises InputError, one
    line."""
    require("tokenizers", "tokenizers", "--tokenizer")
    from pathlib import Path

    from tokenizers import Tokenizer

    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise InputError(
            f"--tokenizer {path}: cannot be read ({error}); give a tokenizer.json or its folder"
        ) from error

    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids
