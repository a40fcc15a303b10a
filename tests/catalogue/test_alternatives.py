"""Braces in a deployment's shorthand, and the commas that part its options."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadstone.catalogue.deployment.alternatives import expand, split_commas
from loadstone.core.errors import InputError

OVERRIDES = 'hf_overrides={"rope_parameters": {"rope_type": "yarn", "factor": 4.0}, "a": [1, 2]}'


def test_the_last_braces_change_first() -> None:
    assert expand("llama-3.1-70b@4xh200/engine={vllm, sglang},tp={2,4}") == [
        "llama-3.1-70b@4xh200/engine=vllm,tp=2",
        "llama-3.1-70b@4xh200/engine=vllm,tp=4",
        "llama-3.1-70b@4xh200/engine=sglang,tp=2",
        "llama-3.1-70b@4xh200/engine=sglang,tp=4",
    ]
    assert expand("{llama-3.1-8b,qwen3-8b}@1x{h100,h200}") == [
        f"{model}@1x{gpu}" for model in ("llama-3.1-8b", "qwen3-8b") for gpu in ("h100", "h200")
    ]
    assert expand("llama-3.1-8b@1xh100/tp{1}") == ["llama-3.1-8b@1xh100/tp1"]
    assert expand("llama-3.1-8b@1xh100") == ["llama-3.1-8b@1xh100"]


def test_json_is_no_list_of_alternatives_and_its_commas_part_nothing() -> None:
    assert expand(f"m@1xh100/tp={{1,2}},{OVERRIDES}") == [
        f"m@1xh100/tp={tp},{OVERRIDES}" for tp in (1, 2)
    ]
    assert split_commas(f"tp1, {OVERRIDES} ,,engine=vllm") == ["tp1", OVERRIDES, "engine=vllm"]
    assert split_commas('a="x,\\",y",b') == ['a="x,\\",y"', "b"]
    assert split_commas("a=[1,2],b={c,d}") == ["a=[1,2]", "b={c,d}"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m@1xh100/engine={vllm,sglang", "braces that are not closed"),
        ("m@1xh100/engine=vllm}", "braces that are not closed"),
        ("m@1xh100/tp={1,}", "an alternative in braces is empty"),
        ("m@1xh100/tp={ ,1}", "an alternative in braces is empty"),
        ("m@" + "{1,2,3,4,5,6,7,8,9,10}" * 4, "10,000 deployments; write at most 1000"),
    ],
)
def test_braces_that_mean_nothing_are_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        expand(text)
    assert message in str(caught.value)


@given(st.text(alphabet='ab={}[],"\\@/ x', max_size=40))
def test_any_text_is_parted_or_refused(text: str) -> None:
    letters = re.sub(r"[\s,]", "", text)
    assert re.sub(r"[\s,]", "", "".join(split_commas(text))) == letters
    with contextlib.suppress(InputError):
        assert expand(text)
