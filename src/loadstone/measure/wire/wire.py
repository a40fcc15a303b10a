"""Defines what the program knows of an API by which servers are measured: a table for each, found
by its name among the entry points `loadstone.wires`. No I/O.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from loadstone.core import plugins
from loadstone.core.record import Target
from loadstone.measure.wire.answer import Answer
from loadstone.measure.wire.simulated import SimulatedWire
from loadstone.workload.request import RequestSpec, Spelling, StructuredKind
from loadstone.workload.word_list import WORDS

PROBE_PROMPT = " ".join(WORDS[:8])
Fields = Mapping[str, Any]


Found = tuple[Target, RequestSpec]
Spell = Callable[[bytes, str | None], bytes]


@dataclass(frozen=True, kw_only=True)
class Wire:
    """One API: how a server is asked by it, and how its answers are read.

    path           that of the requests, from the server's root on
    body           the JSON of every request, with PROMPT and LENGTH where requests differ
    answer         reads an answer: made with `stream`, whether it comes as events or in one piece,
                   and `keep_text`. It counts as Answer says, whatever the API's own counts mean
    prompts        what a request may hold
    spell          writes a prompt that is messages of OpenAI's chat, with the body's fields behind
                   them, as the API has it; the second value is the server's name of a stored answer
                   that stands before them. None: they are written so
    headers        of every request, unless the user gives them
    key            the header, and the variable of the environment, of a key beside what all have
    has_queries    a request is a query and documents
    stores         an answer may be kept by the server, and a later prompt name it
    length_names   names for the most tokens of an answer, the preferred one first
    least_field    where a user's own fields ask for a least number of tokens, from the body's root
                   on
    spellings      ways to ask for structured output that are worth trying, by kind, the preferred
                   one first

    How a server, an engines.server.Server, is probed:
    order          where no API is named, those of lower numbers are tried first
    probe_prompt   a prompt that every server of it takes, text or token ids
    probe_tokens   the fewest tokens by which an answer is seen
    counts_whole   an answer in one piece says how many tokens its prompt had
    optional       fields that a server may take or not, by their names: each is tried alone, as a
                   change of the request
    input_name     what a model calls such a field, or one of Sampling's, or `structured`, among the
                   `inputs` of a request that its pages list; None: requests have to tell what is
                   taken
    recognise      whether a server speaks it, where that shows elsewhere than at /v1/models
    describe       the server, its model and the plainest request that it answers, where /v1/models
                   does not tell. Raises TargetError

    simulated      how the timing server answers it; None: it does not
    """

    path: Callable[[RequestSpec], str]
    body: Callable[[RequestSpec], dict[str, Any]]
    answer: type[Answer]
    prompts: Literal["text or ids", "text", "messages"] = "text"
    spell: Spell | None = None
    headers: Sequence[tuple[str, str]] = ()
    key: tuple[str, str] | None = None
    stores: bool = False
    has_queries: bool = False
    length_names: Sequence[str] = ("max_tokens",)
    least_field: Sequence[str] = ("min_tokens",)
    spellings: Mapping[StructuredKind, tuple[Spelling, ...]] = field(default_factory=dict)
    order: int = 100
    probe_prompt: str | list[int] = PROBE_PROMPT
    probe_tokens: int = 1
    counts_whole: bool = True
    optional: Callable[[RequestSpec], dict[str, Fields]] = lambda spec: {}
    input_name: Callable[[RequestSpec, str], str] | None = None
    recognise: Callable[[Any, RequestSpec], bool] | None = None
    describe: Callable[[Any, RequestSpec, str | None], Found] | None = None
    simulated: SimulatedWire | None = None

    @property
    def takes_messages(self) -> bool:
        return self.prompts == "messages"

    def has_input(self, spec: RequestSpec, name: str) -> bool | None:
        """Return whether the model has an input for a field; None: a request has to tell."""
        return None if self.input_name is None else self.input_name(spec, name) in spec.inputs


def find_wire(endpoint: str) -> Wire:
    """Return the table of an API by its name. Raises InputError where no package offers it."""
    wire: Wire = plugins.load(plugins.WIRES, endpoint, "--endpoint")
    return wire


@cache
def list_wires() -> dict[str, Wire]:
    """List the tables of all APIs by their names, in the order in which they are tried."""
    wires = {name: find_wire(name) for name in sorted(plugins.offers(plugins.WIRES))}
    return dict(sorted(wires.items(), key=lambda entry: entry[1].order))
