"""Files, options and shorthands of somebody hostile: whatever they hold, they are read or refused
in one line."""

from __future__ import annotations

import gzip
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conftest import Write
from loadstone.catalogue import parse_worker
from loadstone.catalogue.deployment.alternatives import expand
from loadstone.core.errors import InputError
from loadstone.workload import dataset, trace
from loadstone.workload.arrivals import parse_profile
from loadstone.workload.lengths import parse_length, parse_think, parse_tokens
from loadstone.workload.option_fields import flags_of, options_of
from loadstone.workload.options import Options, SimulateOptions
from loadstone.workload.planning import plan_of

READERS: list[Callable[..., Any]] = [trace.read, dataset.read]
PLAIN = '{"timestamp_s": 0, "input_tokens": 8, "output_tokens": 8'


def outcome(read: Callable[[], Any]) -> str:
    """ "" where it is read, else what its one line says."""
    said = ""
    try:
        read()
    except InputError as error:
        said = str(error)
    assert "\n" not in said
    return said


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    "content",
    [
        "[" * 200_000,
        '{"a":' * 200_000,
        PLAIN + ', "hash_ids": ' + "[" * 200_000 + "}",
        '{"prompt": ' + "[" * 200_000,
        "[" + '{"prompt": "x"},' * 3 + "[" * 200_000,
        '{"messages": [{"role": "user", "content": ' + "[" * 100_000 + "]" * 100_000 + "}]}",
        "9" * 1_000_000,
        PLAIN.replace("8", "9" * 5_000, 1) + "}",
        PLAIN.replace("8", "1e999", 1) + "}",
        PLAIN.replace("8", "NaN", 1) + "}",
        PLAIN.replace(": 0", ": -1") + "}",
        PLAIN.replace("8", "1000000000000", 1) + "}",
        PLAIN.replace("8", "-5") + "}",
        "timestamp_s,input_tokens,output_tokens\n" + ",".join(["1"] * 100_000),
        ",".join(f"c{i}" for i in range(100_000)) + "\n1\n",
        'timestamp_s,input_tokens,output_tokens,prompt\n0,1,1,"' + "x" * 300_000,
        "\n" * 100_000,
        "\ufeff" * 50_000,
        '"\\ud800"\n',
        '{"prompt": "\\ud800"}\n',
        '{"prompt": "x", "output_tokens": 1e400}\n',
        '{"prompt": "x", "output_tokens": -3}\n',
        '{"prompt": "x", "output_tokens": 1000000000000}\n',
    ],
    ids=lambda content: content[:30].strip(),
)
@pytest.mark.parametrize("skip_bad", [False, True])
def test_odd_content_is_read_or_refused(
    write: Write, read: Callable[..., Any], content: str, skip_bad: bool
) -> None:
    path = write(content.encode("utf-8", "surrogatepass"))
    begun = time.monotonic()
    outcome(lambda: read(path, skip_bad=skip_bad))
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("skip_bad", [False, True])
@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.text(max_size=100).map(lambda text: text.encode("utf-8", "replace")),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
            lambda inner: st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["timestamp_s", "input_tokens", "output_tokens", "hash_ids", "block_tokens", "timestamp",
                     "input_length", "output_length", "prompt", "messages", "role", "content", "conversations",
                     "from", "value", "turns", "custom_id", "body", "instruction", "context"]
                ),
                inner,
                max_size=6,
            ),
            max_leaves=12,
        ).map(lambda value: json.dumps(value).encode()),
    ),
    st.integers(1, 3),
)  # fmt: skip
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    read: Callable[..., Any],
    skip_bad: bool,
    content: bytes,
    times: int,
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(b"\n".join([content] * times))
    outcome(lambda: read(path, skip_bad=skip_bad))


_MEASURED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[3]) << 20,) * 2)
from pathlib import Path
from loadstone.core.errors import InputError
from loadstone.workload import dataset, trace
try:
    {"trace": trace, "dataset": dataset}[sys.argv[1]].read(Path(sys.argv[2]), skip_bad=len(sys.argv) > 4)
except InputError as error:
    print(error)
"""


@pytest.mark.process
@pytest.mark.parametrize("kind", ["trace", "dataset"])
@pytest.mark.parametrize(
    "unit", ["\n", "[", pytest.param('"x",\n', marks=pytest.mark.slow)], ids=repr
)
def test_a_gzip_bomb_takes_bounded_memory_and_time(tmp_path: Path, kind: str, unit: str) -> None:
    """Half a GB in half a MB: not held whole, and not read for minutes."""
    path = tmp_path / "bomb.gz"
    piece = (unit * (1 << 20))[: 1 << 20].encode()
    member = gzip.compress(piece * 64, 1)
    path.write_bytes(member * 8)
    begun = time.monotonic()
    command = [sys.executable, "-c", _MEASURED, kind, str(path), "2600"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr, done.stderr[-800:]
    assert done.stdout.count("\n") == 1
    assert time.monotonic() - begun < 100


@pytest.mark.parametrize("read", READERS)
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, read: Callable[..., Any]) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "fifo-link").symlink_to(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("fifo", "fifo-link", "loop", "missing", ".", "a\0b", "x" * 5000):
        assert outcome(lambda name=name: read(tmp_path / name)), name
    assert outcome(lambda: read(Path("/dev/zero")))


TEXT = st.text(
    st.sampled_from("0123456789.,:=@x×/{}[]\"'\\-+eEkKmMinfahN sn_tpdluorg\u0661\ud800\0\n"),
    max_size=40,
)
WORDS = st.lists(
    st.sampled_from(
        ["llama-3.1-8b", "deepseek-v3", ":fp8", ":", "@", "8x", "h200", "dgx-h200", "/", ",", "tp8", "tp", "=", "ep8",
         "engine", "vllm", "sglang", "kv=fp8", "draft=", "num_speculative_tokens=3", "attention-dp", "{", "}", " ",
         "nodes=2", "version=", "max_num_seqs=", "99999999999999999999", "-1", "0", ".yaml", "x.json", "\0", "\u0661",
         "~", "..", "$HOME", "NaN", "dtype=", "quantization=", "--", "dp2", "pp2", "enforce_eager"]
    ),
    max_size=12,
).map("".join)  # fmt: skip


@settings(max_examples=3000, deadline=None)
@given(WORDS | TEXT)
@example("llama-3.1-8b@8xh200/draft=llama-3.1-8b,num_speculative_tokens=5")
def test_no_shorthand_ends_in_a_traceback(text: str) -> None:
    outcome(lambda: [parse_worker(each) for each in expand(text)[:5]])


@settings(max_examples=1000, deadline=None)
@given(TEXT)
@example("1e400")
@example("normal:1e308:1e308")
@example("1" * 5000)
@example("uniform:1:" + "9" * 400)
def test_no_text_of_an_option_ends_in_a_traceback(text: str) -> None:
    for parse in (
        lambda: parse_length(text, 1.0, "--input"),
        lambda: parse_think(text),
        lambda: parse_tokens(text, "--prefix"),
        lambda: parse_profile(text),
    ):
        outcome(parse)


NAMES = [each.name for kind in (Options, SimulateOptions) for each in flags_of(kind).values()]
VALUES = (
    TEXT
    | st.integers()
    | st.floats()
    | st.booleans()
    | st.none()
    | st.lists(st.integers() | TEXT, max_size=3)
    | st.dictionaries(TEXT, TEXT, max_size=2)
)


@settings(max_examples=1500, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=2))
@example({"extra_body": "\ud800"})
@example({"structured": 'json-schema:{"a": "\ud800"}'})
def test_no_value_of_an_option_ends_in_a_traceback(given_options: dict[str, Any]) -> None:
    outcome(
        lambda: options_of({"deployment": "llama-3.1-8b@1xh100", **given_options}, SimulateOptions)
    )


HUGE = ["1e308", "1e-308", "9" * 400, "1e20", "2147483648", "inf", "nan", "-1", "0", "1e-9"]


@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize(
    "flags",
    [
        ("concurrency",), ("rate",), ("requests",), ("duration", "rate"), ("warmup",), ("input",), ("output",),
        ("prefix",), ("prefix_groups", "prefix"), ("turns",), ("think_time", "turns"), ("burstiness", "rate"),
        ("seed",), ("requests_per_rate", "rate"), ("max_concurrency", "rate"), ("range_ratio",), ("ramp",),
        ("duration",),
    ],
    ids=lambda flags: flags[0],
)  # fmt: skip
def test_absurd_numbers_make_no_absurd_plan(flags: tuple[str, ...], value: str) -> None:
    """A plan is made, or refused, within seconds and a few GB."""
    usual = {"rate": "2", "turns": "2", "prefix": "8"}
    given_options = {flags[0]: f"1:{value}:{value}s" if flags[0] == "ramp" else value}
    given_options |= {flag: usual[flag] for flag in flags[1:]}
    if not {"requests", "duration", "requests_per_rate", "ramp"} & set(flags):
        given_options["requests"] = "4"
    begun = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome(lambda: plan_of(options_of(given_options, Options)))
    assert time.monotonic() - begun < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4_000_000  # KiB
