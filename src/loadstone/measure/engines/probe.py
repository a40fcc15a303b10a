"""Single small requests to a server, sent and read just as in a run: which fields it takes, and how to write prompts
of exact length for it, as token ids or as words of one token each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import httpx
import msgspec

from loadstone.core.errors import InputError
from loadstone.core.record import Target
from loadstone.core.text import error_text, excerpt
from loadstone.measure.engines.server import Server
from loadstone.measure.wire import triton
from loadstone.measure.wire.answer import Answer
from loadstone.measure.wire.ask import RequestBody, body, new_answer, path
from loadstone.measure.wire.structured import obeyed, spellings
from loadstone.workload.prompts import Vocabulary
from loadstone.workload.request import Ask, Sampling, Structured
from loadstone.workload.word_list import WORDS

PROMPT = " ".join(WORDS[:8])
IDS = list(range(100, 108))
"""Such a prompt SGLang takes though it has no tokenizer (--skip-tokenizer-init), and every vocabulary has these."""
_SHAPED_TOKENS = 24
"""Enough to tell a constrained answer from another."""
TRITON = ("triton", "triton-grpc")
_MIN_PIECES = 64
"""A vocabulary smaller than this would make prompts that share prefixes by chance."""
_GROUP_WORDS = 64
_ID_PROBE = 32
_OVERHEAD_WORDS = 16
_OVERHEAD_TRIES = 4
_FEWEST_TRIES, _MOST_TRIES = 64, 400
"""Requests to find words by: the fewest where none is found, the most where some are."""


class Trial(NamedTuple):
    """What came of one request. `error`: why it is no answer, one line; None: it is one. `response`: over HTTP."""

    answer: Answer
    error: str | None
    response: httpx.Response | None = None

    @property
    def status(self) -> int:
        return self.response.status_code if self.response is not None else 0


class AskOnce(Protocol):
    """Sends one request for an answer of at most so many tokens, and reads it as in a run."""

    def __call__(
        self, ask: Ask, prompt: str = PROMPT, *, tokens: int | None = None, keep_text: bool = False
    ) -> Trial: ...


def ask_once(
    server: Server,
    ask: Ask,
    prompt: str | Sequence[int] | None = None,
    *,
    tokens: int | None = None,
    keep_text: bool = False,
) -> Trial:
    """One request over HTTP, of an answer of at most `tokens`, or as many as `ask.extra` demands at least.

    Raises TargetError where there is no server.
    """
    if prompt is None:
        prompt = IDS if ask.endpoint == "sglang" else PROMPT
    content: Any = [{"role": "user", "content": prompt}] if ask.endpoint == "chat" else prompt
    tokens = max(tokens or trial_tokens(ask), _least_tokens(ask.extra))
    response = server.post(path(ask), RequestBody(body(ask)).render(msgspec.json.encode(content), tokens))
    answer = new_answer(ask.endpoint, stream=ask.stream, keep_text=keep_text)
    if response.status_code != 200:
        return Trial(answer, f"HTTP {response.status_code}: {error_text(response.content)}", response)
    answer.feed(response.content)
    answer.finish()
    error = answer.error
    if error is None and answer.finish_reason is None and not answer.done:
        error = excerpt(response.content) or "an empty answer"
    return Trial(answer, error, response)


def trial_tokens(ask: Ask) -> int:
    """Tokens of a trial: one of Triton's may have no text, and is not seen where the model does not count."""
    return 4 if ask.endpoint in TRITON else 1


def _least_tokens(extra: dict[str, Any]) -> int:
    """The least number of tokens that a user's own fields ask for: vLLM and SGLang refuse a shorter limit."""
    sampling = extra.get("sampling_params")
    least = (extra.get("min_tokens"), sampling.get("min_new_tokens") if isinstance(sampling, dict) else None)
    return max((tokens for tokens in least if isinstance(tokens, int)), default=0)


def check_extra(ask_once: AskOnce, ask: Ask, error: str) -> None:
    """Raises InputError where the plain request failed by `error`, and does not without the user's own fields."""
    if ask.extra and ask_once(msgspec.structs.replace(ask, extra={})).error is None:
        raise InputError(f"--extra-body: the server does not take it ({error}); correct it")


# --- which fields it takes --------------------------------------------------------------------------------------


def negotiate(
    ask_once: AskOnce,
    target: Target,
    ask: Ask,
    *,
    sampling: Sampling,
    structured: Structured | None,
    exact: bool,
) -> Ask:
    """The request of a run: with token counts, lengths that are `exact` as far as the server can be told so, and the
    sampling and shape that are wished.

    Raises InputError, which names the flag, where the server does not take one of these wishes.
    """
    if ask.endpoint in TRITON:
        _check_inputs(ask, sampling, structured)
        ask = _with_inputs(target, ask, exact=exact)
    else:
        ask = _with_fields(ask_once, target, ask, exact=exact)
    for flag, name, value in _flags(sampling):
        error = ask_once(msgspec.structs.replace(ask, sampling=Sampling(**{name: value}))).error
        if error is not None:
            raise InputError(f"{_shown(flag, value)}: the server does not take it ({error}); leave it out")
    ask = msgspec.structs.replace(ask, sampling=sampling)
    return ask if structured is None else _with_shape(ask_once, ask, structured)


def _with_fields(ask_once: AskOnce, target: Target, ask: Ask, *, exact: bool) -> Ask:
    """Ask for token counts, and with `exact` for answers of exact length, as far as the server takes the fields.

    Each is tried alone, on an answer of one token; `target.accepts` says what came of it. And `target.choices`, how
    many answers a request has by the user's own fields.
    """
    if ask.extra:
        target.choices = ask_once(ask).answer.choices
    trials: dict[str, dict[str, Any]] = {"ignore_eos": {"ignore_eos": True}, "min_tokens": {"min_tokens": True}}
    if ask.endpoint in ("completions", "chat") and ask.stream:
        trials |= {"stream_options": {"usage": "final"}, "continuous_usage_stats": {"usage": "running"}}
    for name, change in trials.items():
        target.accepts[name] = ask_once(msgspec.structs.replace(ask, **change)).error is None
    accepts = target.accepts
    counted = "final" if accepts.get("stream_options") else "none"
    return msgspec.structs.replace(
        ask,
        usage="running" if accepts.get("continuous_usage_stats") else counted,
        ignore_eos=exact and accepts["ignore_eos"],
        min_tokens=exact and accepts["min_tokens"],
    )


def _with_inputs(target: Target, ask: Ask, *, exact: bool) -> Ask:
    """What the model has inputs for: Triton takes others silently, as parameters that nobody reads."""
    for name in ("min_tokens", "return_num_output_tokens"):
        target.accepts[name] = triton.spelled(name, ask.inputs) in ask.inputs
    counted = target.accepts["return_num_output_tokens"]
    return msgspec.structs.replace(
        ask, usage="running" if counted else "none", min_tokens=exact and target.accepts["min_tokens"]
    )


def _check_inputs(ask: Ask, sampling: Sampling, structured: Structured | None) -> None:
    """Raises InputError, which names the flag, where a Triton model has no input for what is wished."""
    for flag, name, value in _flags(sampling):
        if triton.spelled("stop_words" if name == "stop" else name, ask.inputs) not in ask.inputs:
            raise InputError(f"{_shown(flag, value)}: the model {ask.model} has no input for it; leave it out")
    if structured is not None and "guided_decoding_guide" not in ask.inputs:
        raise InputError(f"--structured: the model {ask.model} has no input guided_decoding_guide; leave it out")


def _shown(flag: str, value: Any) -> str:
    return f"{flag} {excerpt(str(value), 40)}"


def _flags(sampling: Sampling) -> Iterator[tuple[str, str, Any]]:
    """Flag, field and value of each wish."""
    flags = {"temperature": "--temperature", "top_p": "--top-p", "seed": "--sampling-seed", "stop": "--stop"}
    for name, flag in flags.items():
        value = getattr(sampling, name)
        if value is not None and value != ():
            yield flag, name, value


def _with_shape(ask_once: AskOnce, ask: Ask, structured: Structured) -> Ask:
    """Ask for answers of a shape, in the first of the known spellings that the server takes and does not ignore.

    Raises InputError, which names the flag, where there is none.
    """
    # Greedy, and free to end: then an answer that differs from the free one differs for the wish's sake.
    calm = msgspec.structs.replace(ask, sampling=Sampling(temperature=0.0), ignore_eos=False, min_tokens=False)
    free: str | None = None
    tried = []
    for spelling in spellings(ask.endpoint, structured.kind):
        shape = {"structured": structured, "spelling": spelling}
        answer, error, _ = ask_once(msgspec.structs.replace(calm, **shape), tokens=_SHAPED_TOKENS, keep_text=True)
        if error is None:
            obeys = obeyed(structured, answer.text, ended=answer.finish_reason == "stop")
            if obeys is None and answer.text:
                if free is None:
                    free = ask_once(calm, tokens=_SHAPED_TOKENS, keep_text=True).answer.text
                obeys = answer.text != free
            if obeys is not False:
                # Such an answer ends where its shape does.
                return msgspec.structs.replace(ask, **shape, ignore_eos=False, min_tokens=False)
        tried.append(f"{spelling}: {error or 'ignored'}")
    raise InputError(
        f"--structured: the server takes no {structured.kind.replace('_', ' ')} in any form known "
        f"({excerpt('; '.join(tried), 400)}); leave it out, or give it with --extra-body"
    )


# --- how to write prompts of exact length -----------------------------------------------------------------------


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
    if ask.endpoint not in TRITON:
        # vLLM refuses options of a stream where there is none.
        extra = {name: value for name, value in ask.extra.items() if name != "stream_options"}
        ask = msgspec.structs.replace(ask, stream=False, extra=extra)
    trial = ask_once(server, ask, prompt)
    return trial.answer.input_tokens if trial.status == 200 else None


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
    first, overhead = next((pair for pair in overheads if pair[1] is not None), ("", None))
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
