"""Request bodies: what each endpoint calls things, and prompts and lengths put in their places."""

import json
from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadstone.core.plan import POOLING_TASKS
from loadstone.measure.wire.request import RequestBody, make_body, make_path
from loadstone.measure.wire.structured import has_shape, make_shape_fields
from loadstone.measure.wire.wire import find_wire, list_wires
from loadstone.workload.request import (
    LENGTH,
    PROMPT,
    TEXT_OR_IDS,
    RequestSpec,
    Sampling,
    Structured,
)

SAMPLING = Sampling(temperature=0.5, top_p=0.9, seed=0, stop=("\n", "END"))
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def spec(endpoint: Any = "completions", **more: Any) -> RequestSpec:
    return RequestSpec(endpoint=endpoint, model="m", **more)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (spec(), {"model": "m", "stream": True, "max_tokens": LENGTH, "prompt": PROMPT}),
        (
            spec(stream=False, usage="running"),
            {"model": "m", "stream": False, "max_tokens": LENGTH, "prompt": PROMPT},
        ),
        (
            spec("chat", usage="running", ignore_eos=True, min_tokens=True, sampling=SAMPLING),
            {
                "model": "m",
                "stream": True,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True},
                "ignore_eos": True,
                "temperature": 0.5,
                "top_p": 0.9,
                "seed": 0,
                "stop": ["\n", "END"],
                "max_tokens": LENGTH,
                "min_tokens": LENGTH,
                "messages": PROMPT,
            },
        ),
        (
            spec(usage="final", extra={"stream_options": {"x": 1}, "max_tokens": 5, "model": "n"}),
            {
                "model": "n",
                "stream": True,
                "stream_options": {"include_usage": True, "x": 1},
                "max_tokens": 5,
                "prompt": PROMPT,
            },
        ),
        (
            spec(usage="final", extra={"stream_options": None, "model": {"x": 1}}),
            {
                "model": {"x": 1},
                "stream": True,
                "stream_options": None,
                "max_tokens": LENGTH,
                "prompt": PROMPT,
            },
        ),
        (
            spec("sglang", ignore_eos=True, min_tokens=True, sampling=SAMPLING),
            {
                "sampling_params": {
                    "max_new_tokens": LENGTH,
                    "min_new_tokens": LENGTH,
                    "ignore_eos": True,
                    "temperature": 0.5,
                    "top_p": 0.9,
                    "sampling_seed": 0,
                    "stop": ["\n", "END"],
                },
                "stream": True,
                TEXT_OR_IDS: PROMPT,
            },
        ),
        (
            spec(
                "sglang", stream=False, extra={"sampling_params": {"top_k": 5, "max_new_tokens": 3}}
            ),
            {
                "sampling_params": {"max_new_tokens": 3, "top_k": 5},
                "stream": False,
                TEXT_OR_IDS: PROMPT,
            },
        ),
        (
            spec(
                "triton",
                sampling=Sampling(top_p=0.9, stop=("END",)),
                min_tokens=True,
                usage="running",
            ),
            {
                "text_input": PROMPT,
                "max_tokens": LENGTH,
                "stream": True,
                "bad_words": "",
                "stop_words": "END",
                "top_p": 0.9,
                "min_tokens": LENGTH,
                "return_num_input_tokens": True,
                "return_num_output_tokens": True,
            },
        ),
        (
            spec("triton"),
            {
                "text_input": PROMPT,
                "max_tokens": LENGTH,
                "stream": True,
                "bad_words": "",
                "stop_words": "",
            },
        ),
        (
            spec(
                "triton",
                stream=False,
                sampling=SAMPLING,
                min_tokens=True,
                usage="running",
                inputs=("text_input", "max_tokens", "min_length", "random_seed", "stop_words"),
            ),
            {
                "text_input": PROMPT,
                "max_tokens": LENGTH,
                "stop_words": ["\n", "END"],
                "random_seed": 0,
                "min_length": LENGTH,
            },
        ),
    ],
)
def test_each_endpoint_has_its_own_words(asked: RequestSpec, expected: dict[str, Any]) -> None:
    assert make_body(asked) == expected


def test_an_answer_in_one_piece_does_not_begin_with_its_prompt() -> None:
    assert make_body(spec("triton", stream=False))["exclude_input_in_output"] is True
    assert "exclude_input_in_output" not in make_body(spec("triton"))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (spec(), "/v1/completions"),
        (spec("chat"), "/v1/chat/completions"),
        (spec("sglang", stream=False), "/generate"),
        (spec("messages"), "/v1/messages"),
        (spec("responses"), "/v1/responses"),
        (spec("triton"), "/v2/models/m/generate_stream"),
        (spec("triton", stream=False), "/v2/models/m/generate"),
        (RequestSpec(endpoint="triton", model="a/b ?"), "/v2/models/a%2Fb%20%3F/generate_stream"),
    ],
)
def test_paths(asked: RequestSpec, expected: str) -> None:
    assert make_path(asked) == expected


SAID = b'{"choices": [{"text": "a"}], "text_output": "a", "text": "a", "meta_info": {"completion_tokens": 1}}'
EVENTS = {
    "messages": b'{"type": "content_block_delta", "delta": {"text": "a"}}',
    "responses": b'{"type": "response.output_text.delta", "delta": "a"}',
}
WHOLE = {
    "messages": b'{"type": "message", "content": [{"text": "a"}]}',
    "responses": b'{"output": [{"type": "message", "content": [{"text": "a"}]}]}',
}


@pytest.mark.parametrize("endpoint", [name for name in list_wires() if name not in POOLING_TASKS])
def test_every_endpoint_has_answers_of_both_kinds(endpoint: Any) -> None:
    for stream, keep_text in product((True, False), repeat=2):
        said = (EVENTS if stream else WHOLE).get(endpoint, SAID)
        answer = find_wire(endpoint).answer(stream=stream, keep_text=keep_text)
        assert (answer.streams, answer.events, answer.text, answer.done) == (stream, 0, "", False)
        answer.feed(b"data: %b\n\n" % said if stream else said)
        answer.finish()
        assert (answer.events, answer.text) == (1, "a" if keep_text else "")


TEXTS = st.text(max_size=9) | st.sampled_from(
    ["%d", "%b", '"', "\\", "{}", "prompt", "\x02", "\x03", "\x00"]
)
TEXTS = TEXTS.filter(
    lambda text: text not in (PROMPT, LENGTH, TEXT_OR_IDS)
)  # Hypothesis knows what modules say
VALUES = st.recursive(
    TEXTS | st.integers(-9, 9) | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)


@given(
    st.sampled_from(["completions", "chat", "sglang", "triton"]),
    st.dictionaries(TEXTS.map("x_".__add__), VALUES, max_size=4),
    st.booleans(),
    TEXTS | st.lists(st.integers(0, 2**31), max_size=9),
    st.integers(1, 10**6),
)
def test_a_rendered_body_decodes_to_what_was_asked(
    endpoint: Any, extra: dict[str, Any], min_tokens: bool, prompt: Any, tokens: int
) -> None:
    template = make_body(spec(endpoint, extra=extra, min_tokens=min_tokens, sampling=SAMPLING))
    kind = "input_ids" if isinstance(prompt, list) else "text"

    def filled(value: Any, length: int) -> Any:
        if isinstance(value, dict):
            return {
                kind if name == TEXT_OR_IDS else name: filled(inner, length)
                for name, inner in value.items()
            }
        return prompt if value == PROMPT else length if value == LENGTH else value

    written = RequestBody(template)
    for length in (tokens, 1):
        assert json.loads(written.render(json.dumps(prompt).encode(), length)) == filled(
            template, length
        )


def test_a_body_is_rendered_to_the_byte() -> None:
    written = RequestBody(make_body(spec(min_tokens=True)))
    assert written.render(b"[1,2,3]", 16) == (
        b'{"model":"m","stream":true,"max_tokens":16,"min_tokens":16,"prompt":[1,2,3]}'
    )


def test_what_a_prompt_says_is_never_taken_for_a_place() -> None:
    prompt = json.dumps([PROMPT, LENGTH]).encode()
    assert json.loads(RequestBody(make_body(spec())).render(prompt, 3))["prompt"] == [
        PROMPT,
        LENGTH,
    ]


def test_it_travels_to_a_worker() -> None:
    asked = spec(
        "sglang",
        sampling=SAMPLING,
        structured=Structured("json_schema", SCHEMA),
        spelling="sampling_params",
        inputs=("a",),
    )
    assert msgspec.json.decode(msgspec.json.encode(asked), type=RequestSpec) == asked


# --- structured output ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "spelling", "expected"),
    [
        (
            "json_schema",
            "response_format",
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True},
                }
            },
        ),
        ("json_schema", "structured_outputs", {"structured_outputs": {"json": SCHEMA}}),
        ("json_schema", "guided", {"guided_json": SCHEMA}),
        ("json_schema", "llama.cpp", {"json_schema": SCHEMA}),
        ("json_schema", "sglang", {"json_schema": msgspec.json.encode(SCHEMA).decode()}),
        ("regex", "structured_outputs", {"structured_outputs": {"regex": "a+"}}),
        ("regex", "guided", {"guided_regex": "a+"}),
        ("regex", "sglang", {"regex": "a+"}),
        ("grammar", "structured_outputs", {"structured_outputs": {"grammar": "a+"}}),
        ("grammar", "guided", {"guided_grammar": "a+"}),
        ("grammar", "sglang", {"ebnf": "a+"}),
        ("grammar", "llama.cpp", {"grammar": "a+"}),
        (
            "grammar",
            "guided_decoding",
            {"guided_decoding_guide_type": "ebnf_grammar", "guided_decoding_guide": "a+"},
        ),
        (
            "regex",
            "guided_decoding",
            {"guided_decoding_guide_type": "regex", "guided_decoding_guide": "a+"},
        ),
    ],
)
def test_each_engine_spells_a_shape_its_own_way(
    kind: Any, spelling: Any, expected: dict[str, Any]
) -> None:
    structured = Structured(kind, SCHEMA if kind == "json_schema" else "a+")
    endpoint = "triton" if spelling == "guided_decoding" else "chat"
    assert make_shape_fields(spec(endpoint, structured=structured, spelling=spelling)) == expected
    assert spelling in find_wire(endpoint).spellings[kind]
    asked = make_body(spec(endpoint, structured=structured, spelling=spelling))
    assert expected.items() <= asked.items()


@pytest.mark.parametrize("endpoint", ["chat", "sglang", "triton"])
def test_a_shape_is_asked_for_where_its_spelling_is_known(endpoint: Any) -> None:
    for half in ({"structured": Structured("regex", "a+")}, {"spelling": "guided"}):
        assert make_body(spec(endpoint, **half)) == make_body(spec(endpoint))


def test_sglang_takes_a_shape_among_its_sampling_parameters() -> None:
    assert find_wire("sglang").spellings["json_schema"] == ("sampling_params",)
    asked = make_body(
        spec("sglang", structured=Structured("json_schema", SCHEMA), spelling="sampling_params")
    )
    assert json.loads(asked["sampling_params"]["json_schema"]) == SCHEMA


@pytest.mark.parametrize(
    ("structured", "text", "ended", "expected"),
    [
        (Structured("json_schema", SCHEMA), ' {"a": 1', False, True),
        (Structured("json_schema", SCHEMA), "Sure! {", False, False),
        (Structured("json_schema", SCHEMA), "[1", False, False),
        (Structured("json_schema", SCHEMA), " \n", False, None),
        (Structured("json_schema", {"enum": ["x"]}), '"x', False, True),
        (Structured("json_schema", {"enum": ["x"]}), "x", False, False),
        (Structured("json_schema", {"type": ["integer", "null"]}), "nul", False, True),
        (Structured("json_schema", {"type": ["integer", "null"]}), '"1"', False, False),
        (Structured("json_schema", {"type": ["integer", {"odd": 1}]}), "[1]", False, False),
        (Structured("json_schema", {"type": "odd"}), "-1", False, True),
        (Structured("regex", "[0-9]+"), "123", True, True),
        (Structured("regex", "[0-9]+"), "123", False, True),
        (Structured("regex", "[0-9]+"), "one", True, False),
        (Structured("regex", "[0-9]+x"), "123", False, None),
        (Structured("regex", "("), "123", True, None),
        (Structured("regex", "[0-9]+"), "", True, None),
        (Structured("grammar", 'root ::= "a"'), "a", True, None),
    ],
)
def test_whether_an_answer_has_its_shape(
    structured: Structured, text: str, ended: bool, expected: bool | None
) -> None:
    assert has_shape(structured, text, ended=ended) is expected


@pytest.mark.parametrize("kind", ["object", "array", "string", "number", "boolean", "null"])
def test_a_value_begins_as_its_type_does(kind: str) -> None:
    samples = {
        "object": ["{}"],
        "array": ["[]"],
        "string": ['"a"'],
        "number": ["-1", "0.5", "9"],
        "boolean": ["true", "false"],
        "null": ["null"],
        "none": ["x", "+1", "X"],
    }
    shape = Structured("json_schema", {"type": kind})
    assert [
        text for texts in samples.values() for text in texts if has_shape(shape, text, ended=True)
    ] == samples[kind]
