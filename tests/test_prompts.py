import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadstone.errors import InputError
from loadstone.records import PlannedRequest
from loadstone.workload.prompts import PromptWriter, Vocabulary

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
    asked: PlannedRequest, vocabulary: Vocabulary = IDS, *, seed: int = 0, salt: str | None = "s", chat: bool = False
) -> Any:
    return msgspec.json.decode(PromptWriter(vocabulary, seed=seed, salt=salt, chat=chat).write(asked))


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
    others = [written(asked, seed=1), written(asked, salt="t"), written(asked, salt=None), written(request(4))]
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
        msgspec.json.decode(writer.write(request(i, 40, prefix_group=1, prefix_tokens=24)))[0]["content"].split(" ")
        for i in range(2)
    ]
    assert [len(words) for words in prompts] == [40, 40]
    assert prompts[0][:24] == prompts[1][:24]
    assert prompts[0][24:] != prompts[1][24:]


def test_chat_is_one_message_of_the_user() -> None:
    text = written(request(), WORDS)
    assert written(request(), WORDS, chat=True) == [{"role": "user", "content": text}]


@given(size=st.integers(1, 300), tokens=st.integers(1, 300), top=st.integers(0, 200_000), chat=st.booleans())
def test_a_prompt_is_json_whatever_the_vocabulary(size: int, tokens: int, top: int, chat: bool) -> None:
    ids = Vocabulary("token ids", ids=tuple(top + 977 * i for i in range(size)))
    prompt = PromptWriter(ids, seed=0, salt="s", chat=False).write(request(tokens=tokens))
    assert len(json.loads(prompt)) == tokens
    words = Vocabulary(
        "text", words=tuple(chr(33 + i) for i in range(size))
    )  # quotation marks, backslashes, controls
    text = json.loads(PromptWriter(words, seed=0, salt="s", chat=chat).write(request(tokens=tokens)))
    text = text[0]["content"] if chat else text
    assert len(text.split(" ")) == tokens


def test_a_prompt_shorter_than_what_is_fixed_is_refused() -> None:
    vocabulary = Vocabulary("text", words=WORDS.words, overhead_tokens=10)
    with pytest.raises(
        InputError, match=r"^--input 10: the server adds 10 tokens to every prompt; ask for at least 11$"
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
    assert written(given_prompt("Why?"), WORDS, salt=None, chat=True) == [{"role": "user", "content": "Why?"}]
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
    "text", ['[{"role":"user","content":"Hi"}]', "[{ not JSON", "[{}]", "[{1, 2}] is a set in a list"]
)
def test_text_that_looks_like_messages_is_text(text: str) -> None:
    assert written(given_prompt(text), WORDS, salt=None) == text
    assert written(given_prompt(text), WORDS, salt=None, chat=True) == [{"role": "user", "content": text}]
