"""The facts that all requests of a run have in common: endpoint, sampling, structured output, time
limits, route in a fleet.
"""

from typing import Any, Literal

import msgspec

StructuredKind = Literal["json_schema", "regex", "grammar"]

Spelling = Literal[
    "response_format",
    "output_config",
    "text_format",
    "structured_outputs",
    "guided",
    "sglang",
    "llama.cpp",
    "sampling_params",
    "guided_decoding",
]
"""Whose field names: response_format is OpenAI's, text_format its Responses', output_config
Anthropic's; structured_outputs vLLM's, and guided its older
ones (to 0.11); sglang SGLang's on the OpenAI endpoints, sampling_params its native ones;
guided_decoding TensorRT-LLM's on Triton.
"""


class Structured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shape of answers. `value`: the schema as an object, or the regular expression or grammar
    as text.

    A grammar is in whatever form the engine reads: GBNF for llama.cpp, EBNF or Lark for others.
    """

    kind: StructuredKind
    value: dict[str, Any] | str


USAGES = ("none", "final", "running")
"""Token counts that a server is asked for: none, one at the end, one on every event."""

PROMPT = "\x02prompt\x03"

LENGTH = "\x02length\x03"
"""Stand in a body for the prompt and for each number of output tokens: whole strings that nobody
writes."""

TEXT_OR_IDS = "\x02text or ids\x03"
"""Stands for the name of SGLang's field for the prompt, which follows from what the prompt is."""


DOCUMENTS = "\x02documents\x03"
"""Stands for the documents of a query, where PROMPT stands for the query alone."""


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The way tokens are drawn; None, and no stops: as the server does by itself. `seed` is each
    request's own."""

    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()


class RequestSpec(msgspec.Struct, kw_only=True, frozen=True):
    """The facts that all requests of a run have in common, for the wire.

    query        the server's `?api-version=…`, which goes with paths that have no /v1 of their own
    length       the API's name for the most tokens of an answer; least_tokens: the fewest that may
                 be asked for
    usage        the server is asked for no token counts, one at the end, or one on every event
    ignore_eos   the server goes on after its end token; min_tokens: the length is demanded as a
                 minimum, too
    spelling     how the engine is asked for `structured`
    stored       the server keeps answers, and later turns name them
    form         which of its forms an API has here
    inputs       Triton: the names of the model's inputs; others are not sent
    extra        the user's own fields, merged last, object by object: they win
    """

    endpoint: str
    model: str
    stream: bool = True
    query: str = ""
    length: str = "max_tokens"
    least_tokens: int = 1
    usage: Literal["none", "final", "running"] = "none"
    ignore_eos: bool = False
    min_tokens: bool = False
    sampling: Sampling = Sampling()
    structured: Structured | None = None
    spelling: Spelling | None = None
    stored: bool = False
    form: str = ""
    inputs: tuple[str, ...] = ()
    extra: dict[str, Any] = {}


class Timeouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits in seconds: to connect; from sending to the first output; between outputs; from
    sending to the end."""

    connect_s: float = 10.0
    first_s: float = 600.0
    idle_s: float = 300.0
    total_s: float = 21_600.0


History = Literal["sent", "stored"]
"""What a later turn of a session has of those before it: all of it, or its name at the server."""

Route = Literal["round-robin", "least-busy", "sticky", "prefix"]
