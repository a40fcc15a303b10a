"""What pictures take of an engine's memory, and how engines are told of them."""

import pytest

from loadstone.catalogue.deployment.shorthand import parse_worker
from loadstone.core.errors import InputError
from loadstone.engines import launch_of, rules_of
from loadstone.engines.launch import Site
from loadstone.predict.sizing.size import size

QWEN = "qwen3-vl-8b@{}xh100"
HIDDEN, WIDTH, INNER, PATCHES, TOKENS, TOWER = 4096, 1152, 4304, 65_536, 16_384, 576_388_336
"""Of Qwen3-VL-8B: its text's hidden size, its tower's, and what its largest picture becomes: of
16,777,216 pixels, which the file of its processor allows."""


def test_a_tower_and_its_cache_are_sized_as_by_hand() -> None:
    row = size(parse_worker(QWEN.format(1)))
    cache = TOKENS * HIDDEN * 2 * (1 + 3)
    tower = PATCHES * (max(3 * WIDTH, INNER) + 2 * WIDTH) * 2
    assert row.embeddings_bytes == pytest.approx(cache, rel=0.01)
    assert row.tower_bytes == pytest.approx(tower, rel=0.01)
    assert row.weights_bytes == pytest.approx(2 * (8_190_735_360 + TOWER), rel=0.01)
    blind = size(parse_worker(f'{QWEN.format(1)}/limit_mm_per_prompt={{"image": 0}}'))
    assert blind.embeddings_bytes is None
    assert blind.processor_cache_bytes is None
    assert blind.free_bytes - row.free_bytes == pytest.approx(cache + tower, rel=0.01)
    unprofiled = size(parse_worker(f"{QWEN.format(1)}/skip_mm_profiling"))
    assert unprofiled.tower_bytes == 0


def test_a_larger_step_has_a_larger_cache() -> None:
    row = size(parse_worker(f"{QWEN.format(1)}/max_num_batched_tokens=32768"))
    assert row.embeddings_bytes == 32_768 * HIDDEN * 2 * 4


def test_every_rank_has_the_whole_tower_where_pictures_are_dealt_out() -> None:
    parts, whole = (
        size(parse_worker(f"{QWEN.format(2)}/tp2,mm_encoder_tp_mode={mode}"))
        for mode in ("weights", "data")
    )
    assert whole.weights_bytes - parts.weights_bytes == pytest.approx(2 * TOWER, rel=0.01)
    layer = PATCHES * max(3 * WIDTH, INNER) * 2
    assert whole.tower_bytes is not None
    assert parts.tower_bytes is not None
    assert whole.tower_bytes - parts.tower_bytes == pytest.approx(layer, rel=0.01)
    assert whole.embeddings_bytes == parts.embeddings_bytes


@pytest.mark.parametrize(("arguments", "caches"), [("", 2), ("dp2,api_server_count=1", 3)])
def test_the_host_keeps_prepared_pictures(arguments: str, caches: int) -> None:
    row = size(parse_worker(f"{QWEN.format(2 if arguments else 1)}/{arguments or 'tp1'}"))
    assert row.processor_cache_bytes == caches * 4 * 2**30


def test_a_smaller_picture_is_tried_at_start() -> None:
    """Its patches take the tower's memory; what the cache of embeddings is made for stays."""
    largest = size(parse_worker(QWEN.format(1)))
    limit = '{"image":{"count":1,"width":512,"height":512}}'
    tried = size(parse_worker(f"{QWEN.format(1)}/limit_mm_per_prompt={limit}"))
    tower = 1024 * (max(3 * WIDTH, INNER) + 2 * WIDTH) * 2
    assert tried.tower_bytes == pytest.approx(tower, rel=0.01)
    assert tried.embeddings_bytes == largest.embeddings_bytes


@pytest.mark.parametrize("engine", ["vllm,mm_processor_kwargs", "sglang,mm_process_config"])
@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ('{"max_pixels":1003520}', 41 * 23),
        ('{"image":{"size":{"longest_edge":1048576}}}', 42 * 24),
        ('{"images_kwargs":{"max_pixels":1048576}}', 42 * 24),
        ('{"fps":2}', 60 * 34),
    ],
)
def test_a_processor_may_be_given_other_numbers(engine: str, fields: str, tokens: int) -> None:
    """Of what follows from them, the largest picture of the encoder too."""
    worker = parse_worker(f"{QWEN.format(1)}/engine={engine}={fields}")
    visual, encoder = rules_of(worker).visual, rules_of(worker).encoder(rules_of(worker).limits())
    assert visual is not None
    assert encoder is not None
    assert visual.count(1920, 1080).tokens == tokens
    assert (encoder.largest.seen < 1100) == (tokens < 2040)


@pytest.mark.parametrize(
    ("asked", "flags"),
    [
        ("limit_mm_per_prompt=2", ["--limit-mm-per-prompt", '{"image": 2}']),
        ("version=0.8.5,limit_mm_per_prompt=2", ["--limit-mm-per-prompt", "image=2"]),
        ("mm_encoder_tp_mode=data", ["--mm-encoder-tp-mode", "data"]),
        ("mm_processor_cache_gb=8", ["--mm-processor-cache-gb", "8"]),
        ("engine=sglang,limit_mm_data_per_request=2", ["--limit-mm-data-per-request"]),
        (
            'engine=sglang,limit_mm_per_prompt={"image":{"count":2,"width":512},"video":0}',
            ["--limit-mm-data-per-request", '{"image":2,"video":0}'],
        ),
        (
            'mm_processor_kwargs={"max_pixels":1003520}',
            ["--mm-processor-kwargs", '{"max_pixels":1003520}'],
        ),
        ("engine=sglang,mm_process_config={}", ["--mm-process-config", "{}"]),
        ("engine=sglang,mm_enable_dp_encoder", ["--mm-enable-dp-encoder"]),
    ],
)
def test_an_engine_is_told(asked: str, flags: list[str]) -> None:
    model = "gemma-3-27b@{}xh200" if "0.8.5" in asked else QWEN
    words = launch_of(parse_worker(f"{model.format(1)}/{asked}"), Site()).ranks[0].argv
    assert [word for word in words if word in flags] == flags


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("version=0.10.0,mm_encoder_tp_mode=data", "use 0.10.1"),
        ("mm_encoder_tp_mode=half", "use weights, data"),
        ("limit_mm_per_prompt=many", "is no limit"),
        ('limit_mm_per_prompt={"image":{"count":-1}}', "is no limit"),
        ('limit_mm_per_prompt={"image":{"count":1,"width":0,"height":9}}', "is no limit"),
        ("mm_processor_kwargs=4", "is no object"),
        ('mm_processor_kwargs={"max_pixels":0}', "max_pixels is 0"),
        ("engine=sglang,version=0.5.8,mm_process_config={}", "use 0.5.9"),
        ("engine=sglang,version=0.5.5,mm_enable_dp_encoder", "use 0.5.6"),
        ("engine=trt-llm,limit_mm_per_prompt=2", "has no such argument"),
    ],
)
def test_what_a_release_has_not_is_refused(asked: str, message: str) -> None:
    worker = parse_worker(f"{QWEN.format(1)}/{asked}")
    try:
        why = size(worker).why
    except InputError as error:
        why = str(error)
    assert message in why
    assert "\n" not in why
