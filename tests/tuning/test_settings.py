"""Settings of a race: what is tried, what is refused before anything starts, and why."""

import pytest

from loadstone.core.errors import InputError
from loadstone.studies.tuning.contest import make_contest
from loadstone.studies.tuning.options import TuneOptions
from loadstone.studies.tuning.settings import FlagValues, Setting, combine, find_heavier, read_flags
from loadstone.workload.option_fields import options_of

LLAMA = "llama-3.1-8b@1xh100/engine=vllm"


def contest(target: str = LLAMA, **more: object):  # type: ignore[no-untyped-def]
    words = {"target": target, "concurrency": 8, "requests": 16, "input": "64", "output": "8"}
    return make_contest(options_of(words | more, TuneOptions))


def names(found) -> list[str]:  # type: ignore[no-untyped-def]
    return [setting.name for setting in found.settings]


def test_the_default_is_first_and_what_it_has_already_is_no_setting() -> None:
    found = contest(f"{LLAMA},max_num_seqs=64", set=["max_num_seqs=64,128"])
    assert names(found) == ["default", "max-num-seqs 128"]


def test_flags_that_are_tied_are_refused_with_both_names() -> None:
    found = contest(set=["max_num_batched_tokens=512,4096", "max-num-seqs=256,1024"])
    (refused,) = found.refused
    assert refused.setting.name == "max-num-batched-tokens 512, max-num-seqs 1024"
    assert "max-num-batched-tokens 512 with max-num-seqs 1024" in refused.why
    assert len(found.settings) == 4


@pytest.mark.parametrize(
    ("large", "small", "kept"), [(512, 512, True), (128, 512, False), (2048, 128, True)]
)
def test_a_piece_is_no_larger_than_its_batch(large: int, small: int, kept: bool) -> None:
    found = contest("llama.cpp", set=[f"b={large},4096", f"ub={small}", "np=2"])
    assert any(f"batch-size {large}" in name or large == 2048 for name in names(found)[1:]) is kept
    assert [refused.setting.name for refused in found.refused] == (
        [] if kept else ["batch-size 128, parallel 2"]
    )


def test_a_quantised_cache_of_values_needs_flash_attention() -> None:
    found = contest("llama.cpp", set=["ctv=f16,q8_0", "fa=on,off"])
    (refused,) = found.refused
    assert "cache-type-v q8_0 with flash-attn off" in refused.why


def test_flags_that_change_together() -> None:
    found = contest("llama.cpp", set=["ctk+ctv=f16,q8_0"])
    assert names(found) == ["default", "cache-type-k q8_0, cache-type-v q8_0"]
    assert "check" in next(iter(found.base.study.workloads.values()))  # answers may change


def test_a_release_that_lacks_a_flag_is_refused_before_launch() -> None:
    old = "llama-3.1-8b@1xh100/engine=vllm,version=0.9.0"
    found = contest(old, set=["async-scheduling=true,false", "max-num-seqs=64"])
    (refused,) = found.refused
    assert "0.10 and later have" in refused.why
    with pytest.raises(InputError, match=r"no setting is left .* 0\.10 and later have"):
        contest(old, set=["async-scheduling=true"])


@pytest.mark.parametrize(
    "target",
    [
        "llama-3.1-8b@prefill=1xh100/tp1+decode=1xh100/tp1",
        "qwen3-vl-8b@encode=1xh100/tp1+both=1xh100/tp1",
    ],
)
def test_pools_have_no_flags_in_common(target: str) -> None:
    with pytest.raises(InputError, match="of pools each has its own"):
        contest(target, set=["max_num_seqs=64"])


def test_a_switch_that_is_off_is_left_out() -> None:
    found = contest(set=["enforce-eager=true,false"])
    assert names(found) == ["default", "enforce-eager true"]
    _, launch = found.launch(found.settings[1], 0)
    assert launch.deployment is not None
    assert "enforce_eager" in launch.deployment or ("enforce-eager", None) in launch.arguments


def test_rounds_have_plans_of_their_own_and_settings_of_a_round_share_one() -> None:
    found = contest(set=["max-num-seqs=64,128"])
    launches = {
        (setting.name, number): found.launch(setting, number)[1]
        for setting in found.settings
        for number in (0, 1)
    }
    assert len({launch.id for launch in launches.values()}) == len(launches)
    seeds = {key: launch.cells[0].options["seed"] for key, launch in launches.items()}
    assert {seed for (_, number), seed in seeds.items() if number == 0} == {0}
    assert {seed for (_, number), seed in seeds.items() if number == 1} == {1}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"set": ["max-num-seqs=64", "max_num_seqs=128"]}, "set twice"),
        ({"set": ["no-such-flag"]}, "no values of no-such-flag"),
        ({"objective": "speed"}, "no such objective"),
        ({"launches": 3}, "must be at least 10"),
        ({"objective": "p99:nothing"}, "no such objective"),
        ({"objective": "rate"}, "write --slo"),
        ({"concurrency": None, "rate": 4}, "at a fixed rate every setting gives what comes"),
        ({"concurrency": None}, "no load"),
        ({"concurrency": "4,8"}, "a race has one"),
        ({"target": "no-engine"}, "no deployment and no engine"),
        ({"target": "llama-3.1-8b@1xh100/engine=sglang", "set": ["num_continuous_decode_steps"]}, "nothing in sglang reads"),
        ({"layouts": ["auto"], "target": "llama.cpp"}, "of a deployment with GPUs"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(words: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        contest(**words)


def test_layouts_of_the_same_gpus() -> None:
    found = contest(
        "llama-3.1-8b@4xh100/tp4,engine=vllm", layouts=["auto"], set=["max-num-seqs=256"]
    )
    layouts = {setting.layout for setting in found.settings}
    assert layouts == {"", "4xh100/tp1,dp4", "4xh100/tp2,dp2"}


def test_heavier_settings_take_more_of_every_memory() -> None:
    flags = [FlagValues(("max-num-seqs",), (64, 128)), FlagValues(("block-size",), (16, 32))]
    settings = combine(flags, (), {})
    found = find_heavier("vllm", settings)
    small = settings.index(Setting((("max-num-seqs", 64), ("block-size", 16))))
    large = settings.index(Setting((("max-num-seqs", 128), ("block-size", 16))))
    assert found[small] == {large}


def test_main_flags_without_set() -> None:
    assert {flag for found in read_flags("vllm", ()) for flag in found.flags} == {
        "max-num-batched-tokens",
        "max-num-seqs",
    }
