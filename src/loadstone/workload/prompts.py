"""Prompts are written here. A prompt follows from (plan seed, salt, cell, index) alone: any worker
can write it, nothing is stored, and a new salt makes every prompt of a run new to every prefix
cache.
"""

import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import numpy as np

from loadstone.core.errors import InputError
from loadstone.core.plan import Plan, PlannedRequest
from loadstone.core.vectors import Ints64
from loadstone.workload.pictures import mark_pictures

CHARACTERS_PER_TOKEN = 4.0
"""Where a file's text decides how long a prompt is: OpenAI's rule of thumb for English."""

MARK_TOKENS, MARK_END = 6, "\n\n"
"""Words of the vocabulary in front of a prompt of real text, and what is between; they are a part
of its length."""

_BASE64 = re.compile(";base64,[A-Za-z0-9+/=]*")
_KEPT_SESSIONS = 64
"""Sessions whose last prompt is kept, to write the next one from."""


class Vocabulary(msgspec.Struct, frozen=True):
    """Pieces of text that are one token each to the server under test, and what it adds to every
    prompt.

    token ids: `ids`; text: `words`, each of which, after a space, is one token. `overhead_tokens`:
    tokens of an empty prompt (BOS, chat template), counted by the server in its usage. Where the
    server counts nothing, one word is hoped to be one token; the verdict compares once it does.
    """

    kind: Literal["token ids", "text"]
    ids: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    overhead_tokens: int = 0


class PromptWriter:
    """Writes the prompts of a plan as JSON, ready for a request body.

    Raises InputError where a prompt is demanded shorter than what the server adds to any prompt.
    """

    def __init__(self, vocabulary: Vocabulary, *, seed: int, salt: str | None, chat: bool) -> None:
        self._chat = chat
        self._as_ids = vocabulary.kind == "token ids"
        self._overhead = vocabulary.overhead_tokens
        self._key = f"{seed}/{salt}/"
        self._salt = salt
        self._prefixes: dict[tuple[int, int, int], bytes] = {}
        self._session_blocks: dict[str | None, tuple[tuple[int, ...], list[int], bytes]] = {}
        if self._as_ids:
            # Equal width, padded with spaces (JSON allows them): then a prompt is one gather from a
            # table.
            width = len(str(max(vocabulary.ids)))
            cells = [b"%*d," % (width, token) for token in vocabulary.ids]
            self._table = np.frombuffer(b"".join(cells), np.uint8).reshape(len(cells), width + 1)
        else:
            self._words = [b" " + msgspec.json.encode(word)[1:-1] for word in vocabulary.words]
        self._size = len(vocabulary.ids or vocabulary.words)

    def write(self, request: PlannedRequest) -> bytes:
        """Write the prompt (a JSON string, or array of ids) or, for chat, the array of messages."""
        return self.closed(self.opened(request), request)

    def opened(
        self,
        request: PlannedRequest,
        history: bytes = b"",
        answers: Mapping[int, str] | None = None,
    ) -> bytes:
        """Write the prompt without its closing bracket or quotation mark.

        `history`: what `answered` made of the turn before, for a later turn of a session;
        `answers`: what the server answered to turns of the session, where those stand in the
        prompt. Raises InputError.
        """
        if request.inputs:
            texts = enumerate(request.inputs)
            return b"[" + b",".join([self._input(request, *text) for text in texts])
        if request.messages:
            return self._from_messages(request, answers or {})
        if request.prompt is not None:
            return self._from_file(request, history)
        own_tokens = (
            request.input_tokens - request.prefix_tokens - (0 if history else self._overhead)
        )
        if own_tokens < 1:
            raise InputError(
                f"--input {request.input_tokens}: the server adds {self._overhead} tokens to every"
                " prompt"
                + (f" and {request.prefix_tokens} are shared" if request.prefix_tokens else "")
                + f"; ask for at least {request.prefix_tokens + self._overhead + 1}"
            )
        pieces = b""
        if request.blocks:
            # All of a request's tokens are its blocks', the last one cut short; so is what the
            # server adds.
            count = min(len(request.blocks), -(-own_tokens // request.block_tokens))
            pieces = self._blocks(request, count, own_tokens - (count - 1) * request.block_tokens)
            own_tokens -= count * request.block_tokens
        if own_tokens > 0:
            pieces += self._pieces(f"{request.cell}-{request.index}", own_tokens)
        if self._chat and request.prefix_tokens and request.turn is not None:
            system = _message(b"system", self._text(self._prefix(request)))
            return b"[" + system + b"," + _ask(request, self._text(pieces))
        if request.prefix_tokens:
            pieces = self._prefix(request) + pieces
        if self._as_ids:
            return b"[" + pieces[:-1]
        text = self._text(pieces)
        if self._chat:
            return (history + b"," if history else b"[") + _ask(request, text)
        return history + b" " + text if history else b'"' + text

    def closed(self, opened: bytes, request: PlannedRequest) -> bytes:
        """Close the prompt; behind messages come, as further fields of the body, what else the
        request has."""
        closed = opened + (b'"' if opened.startswith(b'"') else b"]")
        if not self._chat or not request.chat or not (request.prompt or "").startswith("{"):
            return closed
        if request.messages:
            return closed + b"," + (request.prompt or "")[1:-1].encode()
        fields = msgspec.json.decode(request.prompt or "")
        del fields["messages"]
        # What a grader needs is not for the server.
        fields.pop("check", None)
        return closed + b"," + msgspec.json.encode(fields)[1:-1] if fields else closed

    def answered(self, opened: bytes, answer: str, following: PlannedRequest) -> bytes:
        """Write the history that the turn `following` of a session begins with: this turn's prompt,
        and what was answered, unless that turn brings an answer of its own. Empty before a prompt
        that is whole.
        """
        if following.messages or following.blocks:
            return b""
        if following.chat and _messages(following.prompt or "")[0]["role"] == "assistant":
            return opened
        # What a hostile server sent may hold halves of surrogate pairs, which JSON in UTF-8 cannot.
        text = msgspec.json.encode(answer.encode("utf-8", "replace").decode())[1:-1]
        return opened + (b"," + _message(b"assistant", text) if self._chat else text)

    def _input(self, request: PlannedRequest, place: int, tokens: int) -> bytes:
        """Write one of the texts of a request for vectors or scores. Raises InputError."""
        own_tokens = tokens - self._overhead
        if own_tokens < 1:
            raise InputError(
                f"--input {tokens}: the server adds {self._overhead} tokens to every input; ask for"
                f" at least {self._overhead + 1}"
            )
        pieces = self._pieces(f"{request.cell}-{request.index}-{place}", own_tokens)
        if self._as_ids:
            return b"[" + pieces[:-1] + b"]"
        return b'"' + self._text(pieces) + b'"'

    def _text(self, pieces: bytes) -> bytes:
        """Write pieces as the inside of a JSON string, begun by a word that is known to cost one
        token there.

        A word without a space before it may cost another number of tokens; the overhead was counted
        with this one.
        """
        _, space, rest = pieces[1:].partition(b" ")
        return self._words[0][1:] + space + rest

    def _pieces(self, name: str, count: int) -> bytes:
        """Join `count` pieces that follow from the key and `name`."""
        # SHAKE-128 gives the same bytes on every platform and version, which no library's generator
        # promises.
        raw = hashlib.shake_128((self._key + name).encode()).digest(2 * count)
        picks = np.frombuffer(raw, "<u2") % self._size
        if self._as_ids:
            return bytes(self._table[picks].tobytes())
        words = self._words
        return b"".join([words[pick] for pick in picks.tolist()])

    def _blocks(self, request: PlannedRequest, count: int, last: int) -> bytes:
        """Join the first `count` of a request's blocks, of the last of which are `last` tokens at
        most.

        A session's prompts begin alike: the one before is kept, and what is new is written.
        """
        name = f"block/{request.cell}/{request.copy}/" if request.copy else f"block/{request.cell}/"
        full, (past, ends, written) = (
            count - 1,
            self._session_blocks.pop(request.session_id, ((), [0], b"")),
        )
        same = 0
        for block, earlier in zip(request.blocks[:full], past, strict=False):
            if block != earlier:
                break
            same += 1
        ends = ends[: same + 1]
        fresh = [
            self._pieces(f"{name}{block}", request.block_tokens)
            for block in request.blocks[same:full]
        ]
        for piece in fresh:
            ends.append(ends[-1] + len(piece))
        whole = b"".join([written[: ends[same]], *fresh])
        if request.session_id is not None:
            self._session_blocks[request.session_id] = (request.blocks[:full], ends, whole)
            if len(self._session_blocks) > _KEPT_SESSIONS:
                del self._session_blocks[next(iter(self._session_blocks))]
        return whole + self._pieces(
            f"{name}{request.blocks[full]}", min(last, request.block_tokens)
        )

    def _from_messages(self, request: PlannedRequest, answers: Mapping[int, str]) -> bytes:
        """Write a session's messages as they were recorded, with a mark in front that is new for
        every run, cell and copy of the session; in live sessions the server's own answers stand in
        the place of the recorded ones.
        """
        messages = list(request.messages)
        for place, turn in request.answers:
            if turn in answers:
                answer = msgspec.json.decode(messages[place])
                answer["content"] = answers[turn].encode("utf-8", "replace").decode()
                messages[place] = msgspec.json.encode(answer).decode()
        mark = ""
        if self._salt is not None:
            key = f"{self._key}{request.cell}/{request.copy}"
            mark = f"[{hashlib.shake_128(key.encode()).hexdigest(4)}] "
        if not self._chat:
            text = "\n\n".join([_content(msgspec.json.decode(message)) for message in messages])
            return b'"' + msgspec.json.encode(mark + text)[1:-1]
        if mark:
            messages[0] = msgspec.json.encode(
                _marked(msgspec.json.decode(messages[0]), mark)
            ).decode()
        return b"[" + ",".join(messages).encode()

    def _prefix(self, request: PlannedRequest) -> bytes:
        key = (request.cell, request.prefix_group or 0, request.prefix_tokens)
        if key not in self._prefixes:
            self._prefixes[key] = self._pieces(f"prefix/{key[0]}/{key[1]}", key[2])
        return self._prefixes[key]

    def _from_file(self, request: PlannedRequest, history: bytes) -> bytes:
        """Write a file's prompt, with a mark in front that is new for every run, cell and phase.

        The mark is the same within a cell, so that prefixes which the file's prompts share stay
        shared; real text of demanded length shares nothing, and each has its own. A later turn
        follows its history and needs none, and a graded one is asked as its file has it.
        """
        prompt = request.prompt or ""
        messages = _messages(prompt) if request.chat and self._chat else None
        mark = ""
        if request.input_tokens > 0 and request.phase != "check":
            words = self._pieces(f"{request.cell}-{request.index}", MARK_TOKENS)
            mark = self._text(words).decode() + MARK_END
        elif self._salt is not None and not history and request.phase != "check":
            key = f"{self._key}{request.cell}/{request.phase}"
            mark = f"[{hashlib.shake_128(key.encode()).hexdigest(4)}] "
        if not self._chat:
            text = prompt_text(prompt, request.chat)
            if history:
                text = "\n\n" + text
            return (history or b'"') + msgspec.json.encode(mark + text)[1:-1]
        if messages is None:
            messages = [{"role": "user", "content": prompt}]
        messages[0] = _marked(messages[0], mark)
        if request.pictures is not None and not request.pictures.shape.files:
            content = messages[-1].get("content")
            parts = content if isinstance(content, list) else [_text_part(str(content or ""))]
            messages[-1] = {**messages[-1], "content": _join_parts(request, parts)}
        return (history + b"," if history else b"[") + msgspec.json.encode(messages)[1:-1]


def _ask(request: PlannedRequest, text: bytes) -> bytes:
    """Write a user's message with the inside of a JSON string, and the request's pictures."""
    if request.pictures is None:
        return _message(b"user", text)
    parts = _join_parts(request, [msgspec.Raw(b'{"type":"text","text":"%b"}' % text)])
    return msgspec.json.encode({"role": "user", "content": parts})


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _join_parts(request: PlannedRequest, words: list[Any]) -> list[Any]:
    pictures = request.pictures
    if pictures is None:
        return words
    marks = mark_pictures(request, pictures)
    return [*marks, *words] if pictures.shape.place == "first" else [*words, *marks]


def _marked(message: dict[str, Any], mark: str) -> dict[str, Any]:
    if isinstance(message.get("content"), str):
        return {**message, "content": mark + message["content"]}
    if not mark:
        return message
    return {**message, "content": [_text_part(mark), *(message.get("content") or [])]}


def count_characters(prompt: str) -> int:
    """Count the characters of a text; what it has in base64 is none."""
    return len(_BASE64.sub("", prompt) if ";base64," in prompt else prompt)


def text_tokens(prompt: str) -> int:
    """Estimate the tokens of a text."""
    return max(1, math.ceil(count_characters(prompt) / CHARACTERS_PER_TOKEN))


def count_text_tokens(plan: Plan, cell: int) -> Ints64:
    """Estimate the prompt tokens of a cell's requests that are texts or messages."""
    rows = plan.rows(cell)
    sizes = np.array([*map(text_tokens, plan.prompts), 0], np.int64)  # the last for −1
    total = sizes[plan.prompt[plan.span(cell)]]
    if plan.blocks is None or plan.blocks.tokens:
        return total
    blocks, messages = plan.blocks, np.zeros(len(rows), np.int64)
    for place, row in enumerate(rows):
        kept, back = blocks.kept[row], int(blocks.back[row])
        if kept and back <= place and kept == blocks.size(row - back):
            messages[place] = messages[place - back] + sizes[blocks.own(row)].sum()
        else:
            messages[place] = sizes[blocks.take_row(row)].sum()
    return total + messages


def prompt_text(prompt: str, chat: bool) -> str:
    """Return a file's prompt as text alone. Completions take no messages (`chat`): these have
    theirs one after another.
    """
    return "\n\n".join(map(_content, _messages(prompt))) if chat else prompt


def _messages(prompt: str) -> list[dict[str, Any]]:
    """Write the messages of a chat prompt."""
    decoded = msgspec.json.decode(prompt)
    messages: list[dict[str, Any]] = decoded["messages"] if isinstance(decoded, dict) else decoded
    return messages


def _message(role: bytes, text: bytes) -> bytes:
    return b'{"role":"%b","content":"%b"}' % (role, text)


def text_of(content: object) -> str:
    """Return the text of a message's content, which may be in parts."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def _content(message: dict[str, object]) -> str:
    return text_of(message.get("content"))
