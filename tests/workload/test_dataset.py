"""workload/dataset.py: every format, told by its content, and every way a file can be wrong."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from conftest import Write, lines
from loadstone.core.errors import InputError
from loadstone.workload import files
from loadstone.workload.dataset import Dataset, read

PUBLIC = Path(__file__).resolve().parents[3] / "shared/data/prompts"


def turn(speaker: str, value: str) -> dict[str, str]:
    return {"from": speaker, "value": value}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def messages(dataset: Dataset) -> list[Any]:
    return [json.loads(prompt) for prompt in dataset.prompts]


def test_plain_text_is_a_prompt_per_line_that_is_not_blank(write: Write) -> None:
    path = write("  From fairest\r\n\n \nThat thereby")
    assert read(path) == Dataset(
        format="text",
        prompts=["  From fairest", "That thereby"],
        output_tokens=[None, None],
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        skipped=0,
    )


@pytest.mark.parametrize(
    "first", ['"Hello," she said.', "[1] Smith et al.", "{% if x %}", "[INST] hi", "42", "null"]
)
def test_prose_that_opens_like_json_is_text(write: Write, first: str) -> None:
    assert read(write(f"{first}\nmore\n")).prompts == [first, "more"]


@pytest.mark.parametrize("field", ["prompt", "question", "instruction", "input", "text"])
def test_a_prompt_under_any_usual_field(write: Write, field: str) -> None:
    items = [{"id": 1, field: "one"}, {"id": 2, field: "two\nlines"}]
    for content in (lines(*items), json.dumps(items), json.dumps(items, indent=2)):
        dataset = read(write(content))
        assert (dataset.format, dataset.prompts) == ("prompts", ["one", "two\nlines"])


def test_strings_by_line_and_in_an_array(write: Write) -> None:
    assert read(write('"one"\n\n"t\\u00fc\\n"\n')).prompts == ["one", "tü\n"]
    assert read(write('["one", "two"]')).prompts == ["one", "two"]


def test_the_first_of_several_turns_counts(write: Write) -> None:
    assert read(write(lines({"turns": ["one", "two"]}, {"turns": ["three"]}))).prompts == [
        "one",
        "three",
    ]


def test_an_instruction_is_asked_with_what_it_is_about_and_null_is_no_field(write: Write) -> None:
    alpaca = {"prompt": None, "input": "b", "instruction": "a", "output": "c"}
    dolly = {"instruction": "a", "context": "d", "response": "c"}
    alone = {"instruction": "a", "input": " ", "context": 3}
    assert read(write(lines(alpaca, dolly, alone))).prompts == ["a\n\nb", "a\n\nd", "a"]


def test_a_line_of_a_batch_file_is_what_its_request_says(write: Write) -> None:
    bodies: list[Any] = [
        {"model": "m", "messages": [user("one")], "max_tokens": 7},
        {"model": "m", "messages": [user("two")]},
    ]
    path = "/v1/chat/completions"
    dataset = read(
        write(
            lines(
                *(
                    {"custom_id": "r", "method": "POST", "url": path, "body": body}
                    for body in bodies
                )
            )
        )
    )
    assert (dataset.format, dataset.output_tokens) == ("messages", [7, None])
    assert messages(dataset) == [[user("one")], [user("two")]]


@pytest.mark.parametrize(
    "head",
    [
        "prompt,output_tokens",
        '"id";"Question"',
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "id\ttext",
        "a,messages",
    ],
)
def test_a_table_is_not_taken_for_prompts(write: Write, head: str) -> None:
    with pytest.raises(InputError, match="a table with named columns; give JSONL") as error:
        read(write(f"{head}\nhello,5\n"))
    assert "--trace" in str(error.value)


@pytest.mark.parametrize(
    "line", ["Text me, she said.", "input", "One, two, three", "prompt: a, b?"]
)
def test_prose_with_commas_is_text(write: Write, line: str) -> None:
    assert read(write(f"{line}\nmore\n")).prompts == [line, "more"]


def test_a_line_without_end_is_not_read_to_its_end(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 1000)
    good = json.dumps({"prompt": "a"})
    long = json.dumps({"prompt": "b" * 1000})
    assert len(read(write(f"{good}\n" * 500)).prompts) == 500
    with pytest.raises(InputError, match="line 2: over 1,000 bytes"):
        read(write(f"{good}\n{long}\n{good}\n"))
    monkeypatch.setattr(files, "MAX_ARRAY_BYTES", 3000)
    assert len(read(write(json.dumps(["a"] * 500))).prompts) == 500
    with pytest.raises(InputError, match="array of over 3,000 bytes; give JSONL"):
        read(write(gzip.compress(json.dumps(["a"] * 5000).encode())))


def test_a_pipe_is_refused_with_its_remedy(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(
        InputError, match="a pipe, and what it brings is read more than once; save it in a file"
    ):
        read(tmp_path / "pipe")


def test_sharegpt_takes_the_first_human_turn_behind_the_system_turn(write: Write) -> None:
    conversations = [
        [turn("human", "one"), turn("gpt", "answer"), turn("human", "two")],
        [turn("system", "be brief"), turn("user", "three")],
        [turn("system", ""), turn("human", "four")],
    ]
    dataset = read(write(json.dumps([{"id": "x", "conversations": c} for c in conversations])))
    assert (dataset.format, dataset.skipped) == ("sharegpt", 0)
    assert messages(dataset) == [
        [user("one")],
        [{"role": "system", "content": "be brief"}, user("three")],
        [user("four")],
    ]
    assert dataset.prompts[0] == '[{"role":"user","content":"one"}]'


def test_sharegpt_counts_what_no_human_begins(write: Write) -> None:
    conversations = [
        [turn("gpt", "go on"), turn("human", "two")],
        [turn("system", "a"), turn("assistant", "b"), turn("human", "c")],
        [turn("human", " ")],
        [turn("system", "a")],
        [],
        [turn("human", "kept")],
    ]
    dataset = read(write(lines(*({"conversations": c} for c in conversations))))
    assert (messages(dataset), dataset.skipped) == ([[user("kept")]], 5)


def test_messages_go_without_the_last_answer_and_without_notes(write: Write) -> None:
    answer = {"role": "assistant", "content": "b"}
    parts = [{"type": "text", "text": "look", "cache_control": {"type": "ephemeral"}}]
    dataset = read(
        write(
            lines(
                {"messages": [user("a") | {"timestamp": 7}, answer]},
                {"messages": [user("a"), answer, user("c"), answer]},
                {"messages": [user(parts)]},
            )
        )
    )
    assert dataset.format == "messages"
    assert messages(dataset) == [[user("a")], [user("a"), answer, user("c")], [user(parts)]]


def test_tool_calls_stay_whole(write: Write) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function"}]}
    asked = [user("a"), call, {"role": "tool", "content": "b", "tool_call_id": "1"}]
    assert messages(read(write(lines({"messages": asked})))) == [asked]


def test_messages_that_cannot_be_sent_are_counted(write: Write) -> None:
    image = [
        {"type": "text", "text": "what is this?"},
        {"type": "file", "file": {"file_id": "f"}},
    ]
    only_answer = [{"role": "assistant", "content": "b"}]
    dataset = read(
        write(
            lines(
                *(
                    {"messages": m}
                    for m in ([], only_answer, [user("")], [user(image)], [user("a")])
                )
            )
        )
    )
    assert (messages(dataset), dataset.skipped) == ([[user("a")]], 4)


def test_pictures_sound_and_videos_are_sent_as_parts(write: Write) -> None:
    gif = base64.b64encode(b"GIF89a" + bytes([64, 0, 48, 0])).decode()
    parts = [
        {"type": "image_url", "image_url": {"url": f"data:image/gif;base64,{gif}"}},
        {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AA=="}},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
    ]
    dataset = read(write(lines(*({"messages": [user([part])]} for part in parts))))
    assert messages(dataset) == [[user([part])] for part in parts]
    assert dataset.describe(None)["parts"] == ["image_url", "input_audio", "video_url"]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("data:image/png;base64,AAAA", "no PNG, JPEG, WebP or GIF"),
        ("data:image/png;base64,iVBORw0KGgo=", "no PNG"),
        ("data:image/gif;base64,R0lGODlhAAAwAA==", "sides of 1 to 65,535"),
        ("data:image/png;base64,AA=", "broken base64"),
        ("data:image/png;base64,héé", "broken base64"),
        ("data:image/svg+xml,<svg/>", "not in base64"),
        ("data:", "not in base64"),
        ("HTTP://example.com/a.png", "would fetch"),
    ],
)
def test_broken_pictures_are_told_by_line_or_left_out(write: Write, url: str, message: str) -> None:
    picture = {"type": "image_url", "image_url": {"url": url}}
    path = write(lines({"messages": [user("a")]}, {"messages": [user([picture])]}))
    with pytest.raises(InputError, match=rf"(?s)line 2.*{message}") as error:
        read(path)
    assert "\n" not in str(error.value)
    assert read(path, skip_bad=True).bad == 1


def test_empty_prompts_are_counted_and_their_lengths_go_with_them(write: Write) -> None:
    dataset = read(
        write(
            lines(
                {"prompt": " ", "max_tokens": 1},
                {"prompt": "a", "max_tokens": 2},
                {"turns": [], "prompt": ""},
            )
        )
    )
    assert (dataset.prompts, dataset.output_tokens, dataset.skipped) == (["a"], [2], 2)


@pytest.mark.parametrize(
    "field",
    [
        "output_tokens",
        "output_len",
        "output_length",
        "output_tokens_count",
        "max_tokens",
        "max_completion_tokens",
    ],
)
def test_stated_output_lengths(write: Write, field: str) -> None:
    items = [
        {"prompt": "a", field: 7},
        {"prompt": "b"},
        {"prompt": "c", field: None},
        {"prompt": "d", field: 9.0},
    ]
    assert read(write(lines(*items))).output_tokens == [7, None, None, 9]


def conversations(dataset: Dataset) -> list[tuple[str | None, list[Any]]]:
    """Of each the system message that it begins with, and what its user asks."""
    found: list[tuple[str | None, list[Any]]] = []
    for turns in dataset.turns:
        said = [message for adds in turns for message in json.loads(adds)]
        system = said.pop(0)["content"] if said[0]["role"] != "user" else None
        assert {message["role"] for message in said} == {"user"}
        found.append((system, [message["content"] for message in said]))
    return found


def test_sharegpt_as_conversations_has_every_human_turn(write: Write) -> None:
    items = [
        [
            turn("human", "one"),
            turn("gpt", "answer"),
            turn("user", "two"),
            turn("gpt", "b"),
            turn("human", " "),
        ],
        [
            turn("system", "be brief"),
            turn("human", "three"),
            turn("system", "late"),
            turn("bing", "x"),
        ],
        [turn("system", " "), turn("human", "four")],
        [turn("gpt", "go on"), turn("human", "five")],
        [turn("system", "alone")],
    ]
    path = write(
        lines(*({"conversations": item, "max_tokens": i + 1} for i, item in enumerate(items)))
    )
    dataset = read(path, conversations=True)
    assert conversations(dataset) == [
        (None, ["one", "two"]),
        ("be brief", ["three"]),
        (None, ["four"]),
    ]
    assert (dataset.output_tokens, dataset.skipped) == ([1, 2, 3], 2)
    alone = read(path)
    assert (alone.prompts, alone.turns) == (dataset.prompts, [])


def test_messages_as_conversations_have_the_users_messages(write: Write) -> None:
    answer = {"role": "assistant", "content": "b"}
    result = {"role": "tool", "content": "r", "tool_call_id": "1"}
    parts = [{"type": "text", "text": "look"}, {"type": "text", "text": "here"}]
    image = [{"type": "file", "file": {"file_id": "f"}}]
    items = [
        [{"role": "system", "content": "s"}, user("a"), answer, user("c"), answer],
        [{"role": "developer", "content": parts}, user(parts), answer, user("d")],
        [user("a"), answer, user("")],
        [user("a"), {"role": "assistant", "content": image}],
        [user("a"), answer, user(image)],
        [result],
    ]
    path = write(lines(*({"messages": item} for item in items)))
    dataset = read(path, conversations=True)
    assert conversations(dataset) == [
        ("s", ["a", "c"]),
        (parts, [parts, "d"]),
        (None, ["a"]),
        (None, ["a"]),
    ]
    # The last item has something to send, but nobody who asks.
    assert (dataset.skipped, read(path).skipped) == (2, 1)
    assert dataset.prompts == read(path).prompts[:4]


CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function"}]}
RESULT = {"role": "tool", "content": "", "tool_call_id": "1"}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def test_where_tools_were_called_each_request_brings_the_recorded_answer(write: Write) -> None:
    answer = {"role": "assistant", "content": "b"}
    system = {"role": "system", "content": "s"}
    item = {
        "messages": [system, user("a"), CALL, RESULT, RESULT, answer, user("c"), answer],
        "tools": TOOLS,
    }
    plain = {"messages": [answer, user("a"), answer, user("b"), user("c")]}
    called, asked = read(write(lines(item, plain)), conversations=True).turns
    assert [json.loads(turn) for turn in called] == [
        {"messages": adds, "tools": TOOLS}
        for adds in ([system, user("a")], [CALL, RESULT, RESULT], [answer, user("c")])
    ]
    assert [json.loads(turn) for turn in asked] == [[answer, user("a")], [user("b")], [user("c")]]


def test_tools_go_with_messages(write: Write) -> None:
    items = [
        {"messages": [user("a")], "tools": TOOLS, "tool_choice": "auto", "id": 1},
        {"messages": [user("b")], "tools": [], "tool_choice": "none", "parallel_tool_calls": None},
        {"conversations": [turn("human", "c")], "functions": TOOLS, "function_call": {"name": "f"}},
    ]
    for item, beside in zip(
        items, ({"tools": TOOLS, "tool_choice": "auto"}, None, items[2]), strict=True
    ):
        found = read(write(lines(item)))
        (prompt,) = messages(found)
        more = prompt if isinstance(prompt, dict) else {}
        assert (
            more == {}
            if not beside
            else {name: more[name] for name in beside.keys() - {"conversations"}}
        )
        assert found.dropped == ({"tool_choice": 1} if item is items[1] else {})


@pytest.mark.parametrize(
    ("item", "dropped"),
    [
        ({"prompt": "a", "images": ["x"]}, {"images": 1}),
        ({"prompt": "a", "image_url": None, "n": 1, "source": "web", "images": []}, {}),
        ({"prompt": "a", "tools": TOOLS, "n": 2}, {"tools": 1, "n": 1}),
        ({"question": "a", "context": "b", "answer": "c"}, {"context": 1}),
        ({"instruction": "a", "context": "b", "response": "c"}, {}),
        ({"messages": [user("a")], "tools": "[]", "response_format": {"type": "json_object"}},
         {"tools": 1, "response_format": 1}),
        ({"messages": [user("a") | {"images": ["x"], "language": "en"}]}, {"images": 1}),
        ({"messages": [user("a"), {"role": "assistant", "content": "b", "tool_plan": "c"}]}, {}),
        ({"conversations": [turn("human", "a"), turn("function_call", "{}"), turn("observation", "b")]}, {}),
    ],
)  # fmt: skip
def test_what_changes_the_work_and_cannot_be_sent_is_counted(
    write: Write, item: dict[str, Any], dropped: dict[str, int]
) -> None:
    assert read(write(lines(item))).dropped == dropped


def test_what_is_left_out_for_its_parts_is_counted_too(write: Write) -> None:
    image = [
        {"type": "text", "text": "what is this?"},
        {"type": "file", "file": {"file_id": "f"}},
    ]
    found = read(write(lines({"messages": [user(image)]}, {"messages": [user("a")]})))
    assert (len(found.prompts), found.skipped, found.dropped) == (1, 1, {"file": 1})
    calls = {"conversations": [turn("human", "a"), turn("function_call", "{}"), turn("human", "b")]}
    assert read(write(lines(calls)), conversations=True).dropped == {"function_call": 1}


def test_turns_and_single_prompts_as_conversations(write: Write) -> None:
    turns = read(
        write(lines({"turns": ["one", "", "two"]}, {"turns": ["three"]}, {"turns": []})),
        conversations=True,
    )
    assert (conversations(turns), turns.skipped) == ([(None, ["one", "two"]), (None, ["three"])], 1)
    assert turns.prompts == ["one", "three"]
    for content in ("one\ntwo\n", '"one"\n"two"\n', lines({"prompt": "one"}, {"prompt": "two"})):
        assert conversations(read(write(content), conversations=True)) == [
            (None, ["one"]),
            (None, ["two"]),
        ]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (lines({"turns": ["one", 2]}), "line 1: one of 'turns' is not text; "),
        (
            lines({"conversations": [turn("human", "a"), {"from": "gpt"}]}),
            "line 1: a turn of 'conversations' lacks",
        ),
        (
            lines({"messages": [{"role": "tool", "content": "a"}]}),
            "none of its 1 items has a prompt to send; ",
        ),
    ],
)
def test_what_only_conversations_need_is_checked_only_there(
    write: Write, content: str, what: str
) -> None:
    path = write(content)
    assert len(read(path).prompts) == 1
    with pytest.raises(InputError) as caught:
        read(path, conversations=True)
    assert what in str(caught.value)


def test_gzip_and_byte_order_mark(write: Write) -> None:
    for content in (
        lines({"prompt": "a"}),
        json.dumps([{"prompt": "a"}]),
        "\n" + json.dumps([{"prompt": "a"}]),
    ):
        marked = b"\xef\xbb\xbf" + content.encode()
        for data in (marked, gzip.compress(marked), gzip.compress(content.encode())):
            dataset = read(write(data))
            assert dataset.prompts == ["a"]
            assert dataset.sha256 == hashlib.sha256(data).hexdigest()
    assert read(write(b"\xef\xbb\xbfa\n")).prompts == ["a"]


def test_same_prompts_from_every_container(write: Write) -> None:
    items = [{"prompt": f"p{i}", "output_tokens": i + 1} for i in range(1000)]
    by_line, as_array = read(write(lines(*items))), read(write(json.dumps(items)))
    assert by_line.prompts == as_array.prompts == [f"p{i}" for i in range(1000)]
    assert by_line.output_tokens == as_array.output_tokens == list(range(1, 1001))


@pytest.mark.parametrize(
    ("content", "where", "what"),
    [
        ("", "data:", "no prompts"),
        (" \n\n", "data:", "no prompts"),
        ("[]", "data:", "no prompts"),
        ('{"prompt": ""}\n', "data:", "none of its 1 items"),
        ('{"prompt": "a"}\n\n{"prompt": "b"\n', "line 3:", "broken JSON"),
        ('{\n"prompt": "a"\n}\n', "line 1:", "broken JSON"),
        ('{"prompt": "a"}\nb\n', "line 2:", "broken JSON"),
        ('{"prompt": "a"}\n7\n', "line 2:", "no field 'prompt'"),
        ('{"prompt": "a"}\n{"text": "b"}\n', "line 2:", "no field 'prompt'"),
        ('{"title": "a"}\n', "line 1:", "conversations, messages, turns, prompt"),
        ("{}\n", "line 1:", "neither a string nor an object"),
        ('{"prompt": 7}\n', "line 1:", "'prompt' is not text"),
        ('{"prompt": [1, 2]}\n', "line 1:", "'prompt' is not text"),
        ('"a"\n{"prompt": "b"}\n', "line 2:", "not a string"),
        ('{"turns": "a"}\n', "line 1:", "'turns' is not a list"),
        ('{"turns": [{"role": "user"}]}\n', "line 1:", "'turns' is not text"),
        ('{"messages": "a"}\n', "line 1:", "'messages' is not a list"),
        ('{"messages": [{"content": "a"}]}\n', "line 1:", "lacks 'role'"),
        ('{"messages": [{"role": "user"}]}\n', "line 1:", "'content'"),
        ('{"conversations": [{"from": "human"}]}\n', "line 1:", "'from' or 'value'"),
        ('{"conversations": [{"role": "user", "content": "a"}]}\n', "line 1:", "'from' or 'value'"),
        ('{"prompt": "a", "max_tokens": 0}\n', "line 1:", "'max_tokens' is 0"),
        ('{"prompt": "a", "max_tokens": 1.5}\n', "line 1:", "'max_tokens' is 1.5"),
        ('{"prompt": "a", "max_tokens": true}\n', "line 1:", "'max_tokens' is True"),
        ('{"prompt": "a", "max_tokens": "7"}\n', "line 1:", "'max_tokens' is '7'"),
        ('{"prompt": "a", "max_tokens": 2147483648}\n', "line 1:", "'max_tokens'"),
        ('[{"prompt": "a"},\n{"prompt": "b"},\n{"text": "c"}]', "element 3:", "no field 'prompt'"),
        ('[["a"]]', "element 1:", "neither a string nor an object"),
        ('[{"prompt": "a"},\n{"prompt": tru}]\n', "line 2:", "broken JSON"),
        ('[{"prompt": "a"},\n{"prompt": "b"}\n', "line 2:", "broken JSON"),
        ('[{"prompt": "a"}]\n[{"prompt": "b"}]\n', "line 2:", "broken JSON"),
        ("[" * 100_000, "line 1:", "broken JSON"),
        ('{"prompt": ' + "[" * 100_000, "line 1:", "broken JSON"),
        (b"PAR1\x15\x04\x15\x00\x00", "data:", "binary"),
        ("a\n".encode("utf-16"), "data:", "UTF-16; save it in UTF-8"),
        (b"\x89PNG\r\n\xff\xfe", "line 1:", "invalid UTF-8"),
        (b"fine\nna\xefve\n", "line 2:", "invalid UTF-8"),
        (b'{"prompt": "a"}\n{"prompt": "na\xefve"}\n', "line 2:", "invalid UTF-8"),
        (b'[{"prompt": "a"}, {"prompt": "na\xefve"}]', "element 2:", "invalid UTF-8"),
        (gzip.compress(b"a prompt\n" * 99, mtime=0)[:-12], "data:", "damaged gzip"),
        (b"\x1f\x8bnonsense", "data:", "damaged gzip"),
        (gzip.compress(b"a prompt\n" * 99, mtime=0)[:20] + b"\xff" * 20, "data:", "damaged gzip"),
        (gzip.compress(b"\x00\x01\x02", mtime=0), "data:", "binary"),
    ],
)
def test_what_is_wrong_is_said_with_its_place_in_one_line(
    write: Write, content: str | bytes, where: str, what: str
) -> None:
    path = write(content)
    with pytest.raises(InputError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert where in message
    assert what in message
    assert "\n" not in message
    assert "; " in message, "no remedy"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"missing: No such file or directory; check"):
        read(tmp_path / "missing")
    with pytest.raises(InputError, match=r"not a file; give"):
        read(tmp_path)
    path = tmp_path / "loop"
    path.symlink_to(path)
    with pytest.raises(InputError, match=r"loop: .*; check"):
        read(path)


@pytest.mark.parametrize("first", [b"", b'{"prompt": "a"}\n', b"a prompt\n"])
def test_a_small_file_of_very_many_empty_lines_is_refused(write: Write, first: bytes) -> None:
    path = write(gzip.compress(first + b"\n" * 2_000_000))
    with pytest.raises(InputError, match="1,000,000 blank lines before it; take them out"):
        read(path)


def test_gzip_of_several_members(write: Write) -> None:
    members = [gzip.compress(json.dumps({"prompt": name}).encode() + b"\n") for name in "abc"]
    assert read(write(b"".join(members))).prompts == ["a", "b", "c"]


def test_an_array_takes_little_more_than_its_file(write: Write) -> None:
    filler = [turn("gpt", "answer " * 20)] * 40
    path = write(
        json.dumps(
            [{"conversations": [turn("human", f"question {i}"), *filler]} for i in range(1000)]
        )
    )
    tracemalloc.start()
    try:
        read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Its bytes, and while they are read the first line as well; decoded, it would be far more.
    assert peak < 3 * path.stat().st_size


@pytest.mark.skipif(
    not PUBLIC.is_dir(),
    reason="the public prompts are not beside this checkout (shared/data/prompts)",
)
@pytest.mark.parametrize(
    ("name", "format", "count", "start"),
    [
        ("sonnet.txt", "text", 518, "FROM fairest creatures"),
        ("mt_bench.jsonl", "prompts", 80, "Compose an engaging travel blog"),
        ("spec_bench.jsonl", "prompts", 480, "Compose an engaging travel blog"),
        ("gsm8k_test.jsonl", "prompts", 1319, "Janet’s ducks lay 16 eggs"),
        ("HumanEval.jsonl.gz", "prompts", 164, "from typing import List\n"),
        ("dummy_conversation.json", "sharegpt", 500, '[{"role":"user","content":"Who are you?"}]'),
    ],
)
def test_public_prompts(name: str, format: str, count: int, start: str) -> None:
    dataset = read(PUBLIC / name)
    assert (dataset.format, len(dataset.prompts), dataset.skipped) == (format, count, 0)
    assert dataset.prompts[0].startswith(start)
    assert dataset.output_tokens == [None] * count
    assert dataset.sha256 == hashlib.sha256((PUBLIC / name).read_bytes()).hexdigest()


def test_bad_lines_are_left_out_and_counted_where_that_is_asked_for(write: Write) -> None:
    """A file of 50,000 prompts is not lost for a line that was cut off, or for half of a surrogate
    pair."""
    good = [{"prompt": f"p{i}", "max_tokens": 3} for i in range(5)]
    content = (
        lines(*good[:4])
        + '{"prompt": "\\ud800"}\n{"text": "b"}\n\n'
        + lines(good[4])
        + '{"prompt": "cut o'
    )
    with pytest.raises(
        InputError, match=r"line 5: broken JSON.*leave such lines out with --skip-bad$"
    ):
        read(write(content))
    found = read(write(content), skip_bad=True)
    assert found.prompts == ["p0", "p1", "p2", "p3", "p4"]
    assert (found.output_tokens, found.bad, found.skipped) == ([3] * 5, 3, 0)
    # The first good one tells what the others must be like.
    assert read(write('{"prompt": 7\n"\\ud800"\n' + lines("a", "b")), skip_bad=True).prompts == [
        "a",
        "b",
    ]
    array = read(write('[{"prompt": "a"}, {"prompt": "\\ud800"}, {"prompt": ""}]'), skip_bad=True)
    assert (array.prompts, array.bad, array.skipped) == (["a"], 1, 1)
    assert read(write(b"fine\nna\xefve\n"), skip_bad=True).prompts == ["fine"]


def test_a_file_of_bad_lines_alone_is_refused(write: Write) -> None:
    with pytest.raises(InputError, match="none of its 2 items has a prompt"):
        read(write('{"prompt": 7}\n{"prompt": 8}\n'), skip_bad=True)


@pytest.mark.parametrize(
    ("content", "bad"),
    [
        ('[{"prompt": "a"},\n{"prompt": "b"}\n', 1),
        ('[{"prompt": "a"},\n{"prompt": "b"}, {"prom', 1),
        ('[{"prompt": "a"}, {"prompt": "\\ud800"}, {"prompt": "b"}]', 1),
        ('[{"prompt": "a"}, {"prompt": tru}, {"prompt": "c"}]', 1),
        ('[{"prompt": "a"}]\n[{"prompt": "b"}]\n', 1),
        ('[{"prompt": "a"}, ' + "[" * 100_000, 1),
    ],
)
def test_of_a_broken_array_what_is_whole_is_kept(write: Write, content: str, bad: int) -> None:
    with pytest.raises(InputError, match=r"broken JSON.*--skip-bad$"):
        read(write(content))
    found = read(write(content), skip_bad=True)
    assert found.prompts[0] == "a"
    assert found.prompts in (["a"], ["a", "b"])
    assert found.bad == bad
