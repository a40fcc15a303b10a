import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadstone.core.errors import InputError
from loadstone.core.plan import PlannedRequest
from loadstone.measure.wire.request import RequestBody
from loadstone.workload.prompts import PromptWriter, Vocabulary
from loadstone.workload.request import LENGTH, PROMPT

IDS = Vocabulary("token ids", ids=tuple(range(5, 20_000, 7)))
WORDS = Vocabulary("text", words=tuple(f"word{i}" for i in range(500)))
MESSAGES = '[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}]'


def request(index: int = 0, tokens: int = 40, **fields: Any) -> PlannedRequest:
    given = {
        "cell": 0, "index": index, "phase": "measure", "intended_s": None, "input_tokens": tokens, "output_tokens": 1,
        "prefix_group": None, "prefix_tokens": 0, "prompt": None,
    }  # fmt: skip
    return PlannedRequest(**{**given, **fields})


def written(
    asked: PlannedRequest,
    vocabulary: Vocabulary = IDS,
    *,
    seed: int = 0,
    salt: str | None = "s",
    chat: bool = False,
) -> Any:
    return msgspec.json.decode(
        PromptWriter(vocabulary, seed=seed, salt=salt, chat=chat).write(asked)
    )


@pytest.mark.parametrize("tokens", [1, 2, 40, 5000])
def test_a_prompt_has_as_many_tokens_as_asked(tokens: int) -> None:
    ids = written(request(tokens=tokens))
    assert len(ids) == tokens
    assert set(ids) <= set(IDS.ids)
    words = written(request(tokens=tokens), WORDS).split(" ")
    assert len(words) == tokens
    assert set(words) <= set(WORDS.words)


def test_what_the_server_adds_is_left_out() -> None:
    vocabulary = Vocabulary("text", words=WORDS.words, overhead_tokens=11)
    assert len(written(request(tokens=40), vocabulary).split()) == 29


def test_a_prompt_follows_from_seed_salt_cell_and_index_alone() -> None:
    asked = request(3)
    base = written(asked)
    writer = PromptWriter(IDS, seed=0, salt="s", chat=False)
    writer.write(request(2))
    assert msgspec.json.decode(writer.write(asked)) == base
    others = [
        written(asked, seed=1),
        written(asked, salt="t"),
        written(asked, salt=None),
        written(request(4)),
    ]
    others.append(written(request(3, cell=1)))
    assert len({tuple(ids) for ids in [base, *others]}) == 6


def test_two_requests_never_share_their_first_tokens() -> None:
    for vocabulary in (IDS, WORDS):
        writer = PromptWriter(vocabulary, seed=0, salt="s", chat=False)
        prompts = [
            msgspec.json.decode(writer.write(request(index, 16, cell=cell)))
            for cell in range(4)
            for index in range(500)
        ]
        assert len(set(map(str, prompts))) == 2000


def test_a_group_shares_its_prefix_and_nothing_else() -> None:
    def ids(index: int, group: int, cell: int = 0, salt: str = "s") -> list[int]:
        asked = request(index, 40, cell=cell, prefix_group=group, prefix_tokens=24)
        return written(asked, salt=salt)  # type: ignore[no-any-return]

    base, same = ids(0, 0), ids(1, 0)
    assert len(base) == len(same) == 40
    assert base[:24] == same[:24]
    assert base[24:] != same[24:]
    others = [ids(0, 1), ids(0, 0, cell=1), ids(0, 0, salt="t")]
    assert len({tuple(prompt[:16]) for prompt in [base, *others]}) == 4


def test_a_group_shares_its_prefix_in_words_too() -> None:
    writer = PromptWriter(WORDS, seed=0, salt="s", chat=True)
    prompts = [
        msgspec.json.decode(writer.write(request(i, 40, prefix_group=1, prefix_tokens=24)))[0][
            "content"
        ].split(" ")
        for i in range(2)
    ]
    assert [len(words) for words in prompts] == [40, 40]
    assert prompts[0][:24] == prompts[1][:24]
    assert prompts[0][24:] != prompts[1][24:]


def test_chat_is_one_message_of_the_user() -> None:
    text = written(request(), WORDS)
    assert written(request(), WORDS, chat=True) == [{"role": "user", "content": text}]


@given(
    size=st.integers(1, 300),
    tokens=st.integers(1, 300),
    top=st.integers(0, 200_000),
    chat=st.booleans(),
)
def test_a_prompt_is_json_whatever_the_vocabulary(
    size: int, tokens: int, top: int, chat: bool
) -> None:
    ids = Vocabulary("token ids", ids=tuple(top + 977 * i for i in range(size)))
    prompt = PromptWriter(ids, seed=0, salt="s", chat=False).write(request(tokens=tokens))
    assert len(json.loads(prompt)) == tokens
    words = Vocabulary(
        "text", words=tuple(chr(33 + i) for i in range(size))
    )  # quotation marks, backslashes, controls
    text = json.loads(
        PromptWriter(words, seed=0, salt="s", chat=chat).write(request(tokens=tokens))
    )
    text = text[0]["content"] if chat else text
    assert len(text.split(" ")) == tokens


def test_a_prompt_shorter_than_what_is_fixed_is_refused() -> None:
    vocabulary = Vocabulary("text", words=WORDS.words, overhead_tokens=10)
    with pytest.raises(
        InputError,
        match=r"^--input 10: the server adds 10 tokens to every prompt; ask for at least 11$",
    ):
        written(request(tokens=10), vocabulary)
    with pytest.raises(InputError, match=r"and 8 are shared; ask for at least 19$"):
        written(request(tokens=18, prefix_group=0, prefix_tokens=8), vocabulary)
    assert len(written(request(tokens=11), vocabulary).split()) == 1


def given_prompt(prompt: str, chat: bool = False, **fields: Any) -> PlannedRequest:
    return request(tokens=-1, prompt=prompt, chat=chat, **fields)


def test_a_dataset_s_text_gets_a_mark_in_front() -> None:
    marked = written(given_prompt("Why?"), WORDS)
    assert len(marked) == len("[0123abcd] Why?")
    assert marked.endswith("] Why?")
    assert written(given_prompt("Why?"), WORDS, chat=True) == [{"role": "user", "content": marked}]


def test_a_mark_is_one_for_each_run_cell_and_phase() -> None:
    base = written(given_prompt("Why?"), WORDS)
    assert written(given_prompt("Why?", index=9), WORDS) == base
    others = [
        written(given_prompt("Why?"), WORDS, salt="t"),
        written(given_prompt("Why?"), WORDS, seed=1),
        written(given_prompt("Why?", cell=1), WORDS),
        written(given_prompt("Why?", phase="warmup"), WORDS),
    ]
    assert len({base, *others}) == 5


def test_without_a_salt_a_dataset_s_prompts_go_as_they_are() -> None:
    assert written(given_prompt("Why?"), WORDS, salt=None) == "Why?"
    assert written(given_prompt("Why?"), WORDS, salt=None, chat=True) == [
        {"role": "user", "content": "Why?"}
    ]
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    for messages in (msgspec.json.decode(MESSAGES), parts):
        text = msgspec.json.encode(messages).decode()
        assert written(given_prompt(text, chat=True), WORDS, salt=None, chat=True) == messages


def test_messages_get_the_mark_in_the_first() -> None:
    first, second = written(given_prompt(MESSAGES, chat=True), WORDS, chat=True)
    assert first["role"] == "system"
    assert first["content"].endswith("] Be brief.")
    assert second == {"role": "user", "content": "Hi"}
    text = '[{"role":"user","content":[{"type":"text","text":"Hi"}]}]'
    (only,) = written(given_prompt(text, chat=True), WORDS, chat=True)
    assert [part["type"] for part in only["content"]] == ["text", "text"]
    assert only["content"][0]["text"].startswith("[")
    assert only["content"][1]["text"] == "Hi"


def test_messages_become_text_where_the_endpoint_takes_none() -> None:
    assert written(given_prompt(MESSAGES, chat=True), WORDS, salt=None) == "Be brief.\n\nHi"
    text = '[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},{"role":"tool"}]'
    assert written(given_prompt(text, chat=True), WORDS, salt=None) == "a\nb\n\n"


@pytest.mark.parametrize(
    "text",
    ['[{"role":"user","content":"Hi"}]', "[{ not JSON", "[{}]", "[{1, 2}] is a set in a list"],
)
def test_text_that_looks_like_messages_is_text(text: str) -> None:
    assert written(given_prompt(text), WORDS, salt=None) == text
    assert written(given_prompt(text), WORDS, salt=None, chat=True) == [
        {"role": "user", "content": text}
    ]


def test_blocks_are_shared_by_all_that_name_them() -> None:
    writer = PromptWriter(IDS, seed=0, salt="s", chat=False)

    def ids(index: int, tokens: int, *blocks: int, cell: int = 0) -> list[int]:
        asked = request(index, tokens, blocks=blocks, block_tokens=16, cell=cell)
        return list(msgspec.json.decode(writer.write(asked)))

    one, two, three = ids(0, 40, 7, 8, 9), ids(1, 32, 7, 8), ids(2, 30, 7, 3)
    assert [len(prompt) for prompt in (one, two, three)] == [40, 32, 30]
    assert one[:32] == two
    assert one[:16] == three[:16]
    assert one[16:30] != three[16:30]
    assert ids(3, 40, 7, 8, 9, cell=1)[:16] != one[:16]  # a cell's cache must not help the next
    own = ids(4, 40, 7)  # more than its blocks hold: the rest is its own
    assert own[:16] == one[:16]
    assert own[16:] != one[16:]


def test_blocks_leave_room_for_what_the_server_adds() -> None:
    vocabulary = Vocabulary("text", words=WORDS.words, overhead_tokens=5)
    text = written(request(0, 32, blocks=(1, 2), block_tokens=16), vocabulary).split()
    longer = written(request(1, 48, blocks=(1, 2, 3), block_tokens=16), vocabulary).split()
    assert len(text) == 27
    assert longer[:27] == text


def conversation(
    vocabulary: Vocabulary, chat: bool, *asked: PlannedRequest, answer: str = 'say "so"\n'
) -> list[Any]:
    """The prompts of a session's turns, each with the history that led to it."""
    writer = PromptWriter(vocabulary, seed=0, salt="s", chat=chat)
    prompts = []
    opened = b""
    for number, turn in enumerate(asked):
        history = writer.answered(opened, answer, turn) if number else b""
        opened = writer.opened(turn, history)
        prompts.append(msgspec.json.decode(writer.closed(opened, turn)))
    return prompts


def test_a_turn_asks_with_all_that_was_said() -> None:
    turns = [request(n, 4, turn=n) for n in range(3)]
    first, second, third = conversation(WORDS, True, *turns)
    assert [message["role"] for message in third] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert third[:3] == second
    assert second[:1] == first
    assert second[1]["content"] == 'say "so"\n'
    assert [len(message["content"].split()) for message in third[::2]] == [4, 4, 4]
    assert third[0]["content"] != third[2]["content"]


def test_a_turn_of_completions_is_one_text() -> None:
    first, second = conversation(
        WORDS, False, request(0, 4, turn=0), request(1, 3, turn=1), answer=" so"
    )
    assert second.startswith(first + " so ")
    assert len(second.split()) == 4 + 1 + 3


def test_a_system_prompt_is_said_once_and_shared() -> None:
    turns = [
        request(0, 24, turn=0, prefix_group=1, prefix_tokens=20),
        request(1, 4, turn=1, prefix_group=1),
    ]
    first, second = conversation(WORDS, True, *turns)
    assert [message["role"] for message in second] == ["system", "user", "assistant", "user"]
    assert len(first[0]["content"].split()) == 20
    assert len(first[1]["content"].split()) == 4
    (other, *_), *_ = conversation(
        WORDS, True, request(9, 24, turn=0, prefix_group=1, prefix_tokens=20)
    )
    assert other == first[0]


def test_a_file_s_conversation_has_its_mark_once() -> None:
    turns = [
        request(n, -1, turn=n, prompt=json.dumps([{"role": "user", "content": f"Q{n}"}]), chat=True)
        for n in (0, 1)
    ]
    first, second = conversation(WORDS, True, *turns)
    assert first[0]["content"].endswith("] Q0")
    assert second == [
        *first,
        {"role": "assistant", "content": 'say "so"\n'},
        {"role": "user", "content": "Q1"},
    ]
    text = conversation(WORDS, False, *turns, answer="A")[1]
    assert text.endswith("] Q0A\n\nQ1")


TOOLS = [{"type": "function", "function": {"name": "f"}}]
CALLED: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Q0"}],
    [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "tool", "content": "R", "tool_call_id": "1"},
    ],
]


def test_tools_stand_behind_the_messages_of_chat() -> None:
    prompt = json.dumps({"messages": CALLED[0], "tools": TOOLS, "tool_choice": "auto"})
    asked = request(0, -1, prompt=prompt, chat=True)
    written = PromptWriter(WORDS, seed=0, salt=None, chat=True).write(asked)
    body = RequestBody({"messages": PROMPT, "stream": True, "max_tokens": LENGTH}).render(
        written, 5
    )
    assert json.loads(body) == {
        "messages": CALLED[0], "tools": TOOLS, "tool_choice": "auto", "stream": True, "max_tokens": 5,
    }  # fmt: skip
    text = PromptWriter(WORDS, seed=0, salt=None, chat=False).write(asked)
    assert json.loads(text) == "Q0"


def test_a_recorded_answer_stands_in_place_of_the_servers() -> None:
    turns = [
        request(n, -1, turn=n, prompt=json.dumps(adds), chat=True) for n, adds in enumerate(CALLED)
    ]
    first, second = conversation(WORDS, True, *turns)
    assert second == [*first, *CALLED[1]]


def test_half_a_surrogate_pair_in_an_answer_is_no_trouble() -> None:
    turns = [request(n, 4, turn=n) for n in range(2)]
    assert conversation(WORDS, True, *turns, answer="a\ud83d")[1][1]["content"] == "a?"
