"""LoRA adapters: what they weigh, which slots engines keep them in, and what these take of the KV cache."""

import pytest

from loadstone.catalogue import find_model, parse_deployment
from loadstone.core.errors import InputError
from loadstone.engines import launch_of
from loadstone.engines.launch import Site
from loadstone.engines.sharding.adapters import adapter_numbers
from loadstone.engines.sharding.rank import Shape
from loadstone.predict.sizing.size import Row, size

ONE = Shape(1, 1, 1, 1)
MIB = 2.0**20


def sized(options: str, model: str = "llama-3.1-8b@1xh100") -> Row:
    return size(parse_deployment(f"{model}/{options}").worker)


@pytest.mark.parametrize(
    ("model", "numbers", "mib"),
    [
        ("llama-3.1-8b", 2_621_440, 80.0),
        ("llama-2-7b", 2_498_560, 76.25),
        ("qwen2.5-7b", 2_523_136, 77.0),
        ("qwen3-32b", 8_388_608, 256.0),
        ("llama-3.1-70b", 12_943_360, 395.0),
    ],
)
def test_numbers_of_an_adapter_follow_from_shapes(model: str, numbers: int, mib: float) -> None:
    assert adapter_numbers(find_model(model), ONE) == numbers
    assert 2 * 16 * numbers / MIB == mib


def test_experts_each_have_their_halves() -> None:
    # Mixtral-8x7B: hidden 4096, kv 1024, 8 experts of 14336, 32 layers.
    attention = 2 * (4096 + 4096) + 2 * (4096 + 1024)
    experts = 8 * 3 * (4096 + 14336)
    assert adapter_numbers(find_model("mixtral-8x7b"), ONE) == 32 * (attention + experts)
    dealt = adapter_numbers(find_model("mixtral-8x7b"), Shape(1, 1, 1, 8))
    assert dealt == 32 * (attention + experts / 8)


def test_tensor_parallelism_cuts_one_half() -> None:
    model = find_model("llama-3.1-8b")
    # q, o: 4096 whole and 4096 / 4; k, v: 4096 and 1024 / 4; gate, up, down: 4096 and 14336 / 4.
    a_layer = 2 * (4096 + 1024) + 2 * (4096 + 256) + 3 * (4096 + 3584)
    assert adapter_numbers(model, Shape(4, 1, 4, 1)) == 32 * a_layer
    assert adapter_numbers(model, Shape(4, 1, 4, 1), None, "all", True) == 2_621_440 / 4
    stages = [adapter_numbers(model, Shape(1, 3, 1, 1), stage) for stage in range(3)]
    assert sum(stages) == 2_621_440
    assert adapter_numbers(model, ONE, None, "q_proj+v_proj") == 32 * (8192 + 5120)


@pytest.mark.parametrize(
    ("version", "mib", "tokens"),
    # AG's logs have 93.8 MiB and 750 tokens of May 2025; later releases have no more words.
    [("0.9", 92.09, 737), ("0.32", 80.0, 640)],
)
def test_a_slot_of_vllm_takes_memory_and_tokens(version: str, mib: float, tokens: int) -> None:
    few, many = (sized(f"version={version},max_loras={slots}") for slots in (16, 128))
    assert few.adapters_bytes is not None
    assert many.adapters_bytes is not None
    assert (many.adapters_bytes - few.adapters_bytes) / 112 / MIB == pytest.approx(mib, abs=0.01)
    assert (few.kv_capacity_tokens - many.kv_capacity_tokens) / 112 == pytest.approx(tokens, abs=1)


@pytest.mark.parametrize(
    ("options", "mib"),
    [
        ("max_loras=4,max_lora_rank=64", 4 * 4 * 80),
        ("enable_lora", 80),
        ("engine=sglang,enable_lora", 8 * 80),
        ("engine=sglang,max_loras_per_batch=2,lora_target_modules=q_proj+v_proj", 2 * 13.0),
        ("engine=llama.cpp,lora=a=/a+b=/b", 2 * 80),
        ("engine=tensorrt-llm,max_lora_rank=8", 0),
    ],
)
def test_engines_have_slots_of_their_own(options: str, mib: float) -> None:
    assert sized(options).adapters_bytes == mib * MIB


@pytest.mark.parametrize("options", ["", "engine=sglang", "enable_lora=0,max_loras=8"])
def test_a_deployment_without_adapters_has_no_such_bytes(options: str) -> None:
    assert sized(options).adapters_bytes is None


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("max_loras=4,max_cpu_loras=2", "below the 4 slots"),
        ("engine=tensorrt-llm,max_lora_rank=64,device_cache_percent=0.001", "no slot"),
    ],
)
def test_what_cannot_be_says_why(options: str, why: str) -> None:
    row = sized(options)
    assert not row.fits
    assert why in row.why


def started(options: str) -> str:
    launch = launch_of(parse_deployment(f"llama-3.1-8b@1xh100/{options}").worker, Site(model="m"))
    return launch.shell_lines()[0] + "".join(launch.files.values())


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        (
            "max_loras=4,max_lora_rank=32,lora_modules=a=/x/a+b=/x/b",
            "--enable-lora --max-lora-rank 32 --max-loras 4 --lora-modules a=/x/a b=/x/b",
        ),
        ("engine=sglang,lora_paths=a=/x", "--enable-lora --lora-paths a=/x"),
        (
            "engine=sglang,max_lora_rank=16,lora_target_modules=all",
            "--enable-lora --max-lora-rank 16 --lora-target-modules all",
        ),
        ("engine=llama.cpp,lora=a=/a.gguf+b=/b.gguf", "--lora /a.gguf --lora /b.gguf"),
        ("engine=tensorrt-llm,lora_modules=a=/x", "lora_config:\n  lora_dir:\n  - /x\n"),
    ],
)
def test_engines_are_started_with_adapters(options: str, flags: str) -> None:
    assert flags in started(options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("version=0.2.7,max_loras=2", "vllm 0.2.7 does not have it; 0.3"),
        ("engine=sglang,version=0.4.9,lora_paths=a=/x", "sglang 0.4.9 does not have it"),
        ("engine=tensorrt-llm,version=0.17,lora_modules=a=/x", "version=1.0"),
        ("engine=sglang,enable_lora", "largest rank and modules"),
        ("lora_modules=a", "no NAME=PATH"),
        ("engine=mlx-lm,enable_lora", "no command of mlx-lm"),
    ],
)
def test_what_an_engine_lacks_is_refused(options: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        started(options)
