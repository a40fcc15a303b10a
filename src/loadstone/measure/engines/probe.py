"""One small request to a server, asked and heard just as in a run; and which fields of requests it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import httpx
import msgspec

from loadstone.core import Target
from loadstone.core.errors import InputError
from loadstone.core.text import error_text, excerpt
from loadstone.measure.engines.server import Server
from loadstone.measure.wire import triton
from loadstone.measure.wire.answer import Answer
from loadstone.measure.wire.ask import RequestBody, body, path
from loadstone.measure.wire.dialects import new_answer
from loadstone.measure.wire.structured import obeyed, spellings
from loadstone.workload.request import Ask, Sampling, Structured
from loadstone.workload.word_list import WORDS

AnyAsk = TypeVar("AnyAsk", bound=Ask)
PROMPT = " ".join(WORDS[:8])
IDS = list(range(100, 108))
"""Such a prompt SGLang takes though it has no tokenizer (--skip-tokenizer-init), and every vocabulary has these."""
SHAPED_TOKENS = 24
"""Enough to tell a constrained answer from another."""


class Heard(NamedTuple):
    """What came of one request. `error`: why it is no answer, one line; None: it is one."""

    response: httpx.Response
    answer: Answer
    error: str | None


def ask_once(
    server: Server, ask: Ask, prompt: str | Sequence[int] | None = None, *, tokens: int = 1, keep_text: bool = False
) -> Heard:
    """One request of an answer of at most so many tokens, or as many as `ask.extra` demands at least.

    Raises TargetError where there is no server.
    """
    if prompt is None:
        prompt = IDS if ask.endpoint == "sglang" else PROMPT
    asked: Any = [{"role": "user", "content": prompt}] if ask.endpoint == "chat" else prompt
    tokens = max(tokens, _demanded(ask.extra))
    response = server.post(path(ask), RequestBody(body(ask)).render(msgspec.json.encode(asked), tokens))
    answer = new_answer(ask.endpoint, stream=ask.stream, keep_text=keep_text)
    if response.status_code != 200:
        said = error_text(response.content)
        return Heard(response, answer, f"HTTP {response.status_code}: {said}")
    answer.feed(response.content)
    answer.finish()
    error = answer.error
    if error is None and answer.finish_reason is None and not answer.done:
        error = excerpt(response.content) or "an empty answer"
    return Heard(response, answer, error)


def _demanded(extra: dict[str, Any]) -> int:
    """The least number of tokens that a user's own fields ask for: vLLM and SGLang refuse a shorter limit."""
    sampling = extra.get("sampling_params")
    least = (extra.get("min_tokens"), sampling.get("min_new_tokens") if isinstance(sampling, dict) else None)
    return max((tokens for tokens in least if isinstance(tokens, int)), default=0)


def try_fields(server: Server, target: Target, ask: Ask, *, exact: bool) -> Ask:
    """Ask for token counts, and with `exact` for answers of exact length, as far as the server takes the fields.

    Each is tried alone, on an answer of one token; `target.accepts` says what came of it. And `target.choices`, how
    many answers a request has by the user's own fields.
    """
    if ask.endpoint == "triton":
        return triton_fields(target, ask, exact=exact)
    if ask.extra:
        target.choices = ask_once(server, ask).answer.choices
    trials = {"ignore_eos": {"ignore_eos": True}, "min_tokens": {"min_tokens": True}}
    if ask.endpoint in ("completions", "chat") and ask.stream:
        trials |= {"stream_options": {"usage": "final"}, "continuous_usage_stats": {"usage": "running"}}  # type: ignore[dict-item]
    for name, change in trials.items():
        target.accepts[name] = ask_once(server, msgspec.structs.replace(ask, **change)).error is None
    accepts = target.accepts
    return msgspec.structs.replace(
        ask,
        usage="running"
        if accepts.get("continuous_usage_stats")
        else "final"
        if accepts.get("stream_options")
        else "none",
        ignore_eos=exact and accepts["ignore_eos"],
        min_tokens=exact and accepts["min_tokens"],
    )


def triton_fields(target: Target, ask: AnyAsk, *, exact: bool) -> AnyAsk:
    """What the model has inputs for: Triton takes others silently, as parameters that nobody reads."""
    for name in ("min_tokens", "return_num_output_tokens"):
        target.accepts[name] = triton.spelled(name, ask.inputs) in ask.inputs
    counted = target.accepts["return_num_output_tokens"]
    return msgspec.structs.replace(
        ask, usage="running" if counted else "none", min_tokens=exact and target.accepts["min_tokens"]
    )


def with_sampling(error_of: Callable[[AnyAsk], str | None], ask: AnyAsk, sampling: Sampling) -> AnyAsk:
    """Ask for tokens to be drawn so. `error_of` asks once, and says why that is no answer; None: it is one.

    Raises InputError, which names the flag, where the server does not take it.
    """
    for flag, name, value in _flags(sampling):
        error = error_of(msgspec.structs.replace(ask, sampling=Sampling(**{name: value})))
        if error is not None:
            raise InputError(f"{_shown(flag, value)}: the server does not take it ({error}); leave it out")
    return msgspec.structs.replace(ask, sampling=sampling)


def check_inputs(ask: Ask, sampling: Sampling, structured: Structured | None) -> None:
    """Raises InputError, which names the flag, where a Triton model has no input for what is wished."""
    for flag, name, value in _flags(sampling):
        if triton.spelled("stop_words" if name == "stop" else name, ask.inputs) not in ask.inputs:
            raise InputError(f"{_shown(flag, value)}: the model {ask.model} has no input for it; leave it out")
    if structured is not None and "guided_decoding_guide" not in ask.inputs:
        raise InputError(f"--structured: the model {ask.model} has no input guided_decoding_guide; leave it out")


def _shown(flag: str, value: Any) -> str:
    return f"{flag} {excerpt(str(value), 40)}"


def _flags(sampling: Sampling) -> Iterator[tuple[str, str, Any]]:
    """Flag, field and value of what is said."""
    for flag, name in (
        ("--temperature", "temperature"),
        ("--top-p", "top_p"),
        ("--sampling-seed", "seed"),
        ("--stop", "stop"),
    ):
        value = getattr(sampling, name)
        if value is not None and value != ():
            yield flag, name, value


def with_shape(hear: Callable[[AnyAsk], tuple[str | None, Answer]], ask: AnyAsk, structured: Structured) -> AnyAsk:
    """Ask for answers of a shape, in the first of the known spellings that the server takes and does not ignore.

    hear   asks once for SHAPED_TOKENS with their text: why that is no answer (None: it is one), and what came
    Raises InputError, which names the flag, where there is none.
    """
    # Greedy, and free to end: then an answer that differs from the free one differs for the wish's sake.
    calm = msgspec.structs.replace(ask, sampling=Sampling(temperature=0.0), ignore_eos=False, min_tokens=False)
    free: str | None = None
    tried = []
    for spelling in spellings(ask.endpoint, structured.kind):
        shape = {"structured": structured, "spelling": spelling}
        error, answer = hear(msgspec.structs.replace(calm, **shape))
        if error is None:
            obeys = obeyed(structured, answer.text, ended=answer.finish_reason == "stop")
            if obeys is None and answer.text:
                if free is None:
                    free = hear(calm)[1].text
                obeys = answer.text != free
            if obeys is not False:
                # Such an answer ends where its shape does.
                return msgspec.structs.replace(ask, **shape, ignore_eos=False, min_tokens=False)
        tried.append(f"{spelling}: {error or 'ignored'}")
    raise InputError(
        f"--structured: the server takes no {structured.kind.replace('_', ' ')} in any form known "
        f"({excerpt('; '.join(tried), 400)}); leave it out, or give it with --extra-body"
    )
