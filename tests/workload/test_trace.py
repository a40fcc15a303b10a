"""workload/trace.py: every format, told by its content, and every way a file can be wrong."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import Write, lines
from loadstone.core.errors import InputError
from loadstone.core.plan import Blocks
from loadstone.workload.block_tree import BlockTree
from loadstone.workload.trace import Trace, read

PUBLIC = Path(__file__).resolve().parents[3] / "shared/data/traces"

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
BURST_NEW = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
)
PLAIN = "timestamp_s,input_tokens,output_tokens\n"


def moon(time_ms: Any, input_tokens: Any, output_tokens: Any, *ids: Any) -> dict[str, Any]:
    row = {"timestamp": time_ms, "input_length": input_tokens, "output_length": output_tokens}
    return row | {"hash_ids": list(ids)} if ids else row


def plain(time_s: Any, input_tokens: Any, output_tokens: Any, **more: Any) -> dict[str, Any]:
    return {
        "timestamp_s": time_s,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        **more,
    }


def columns(trace: Trace) -> tuple[list[float], list[int], list[int], list[int]]:
    return (
        trace.time_s.tolist(),
        trace.input_tokens.tolist(),
        trace.output_tokens.tolist(),
        trace.line.tolist(),
    )


def blocks(trace: Trace) -> list[list[int]]:
    return [part.tolist() for part in np.split(trace.block_ids, trace.block_offsets[1:-1])]


def promised(trace: Trace) -> list[int]:
    blocks = Blocks.whole(trace.block_tokens, trace.block_offsets, trace.block_ids)
    rows = range(len(trace.line))
    known = np.array(BlockTree(blocks, rows, np.zeros(len(rows), np.int32)).known)
    return np.minimum(known * blocks.tokens, trace.input_tokens).tolist()


# --- formats --------------------------------------------------------------------------------------


def test_azure_2023_keeps_every_digit(write: Write) -> None:
    path = write(
        AZURE.replace("\n", "\r\n")
        + "2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.0319601,3180,8\r\n"
        + "2023-11-17 00:00:00.0000000,110,27"
    )
    trace = read(path)
    assert columns(trace) == (
        [0.0, 0.0520001, 20576.02004],
        [4808, 3180, 110],
        [10, 8, 27],
        [2, 3, 4],
    )
    assert (trace.format, trace.skipped, trace.simultaneous, trace.block_tokens) == (
        "azure",
        {},
        0,
        0,
    )
    assert (blocks(trace), trace.prompts, promised(trace)) == ([[], [], []], None, [0, 0, 0])
    assert trace.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    kinds = (
        trace.time_s,
        trace.input_tokens,
        trace.output_tokens,
        trace.line,
        trace.block_offsets,
        trace.block_ids,
    )
    assert [array.dtype.str[1:] for array in kinds] == ["f8", "i4", "i4", "i4", "i8", "i4"]


def test_azure_2024_has_a_zone_and_sometimes_no_fraction(write: Write) -> None:
    stamps = [
        "2024-05-10 00:00:00.009930+00:00",
        "2024-05-10 00:00:01+00:00",
        "2024-05-10T00:00:01.5Z",
    ]
    stamps += ["2024-05-10 01:00:02+01:00", "2024-05-10 00:00:02.000000001"]
    trace = read(write(AZURE + "".join(f"{stamp},7,1\n" for stamp in stamps)))
    assert trace.time_s.tolist() == [0.0, 0.99007, 1.49007, 1.99007, 1.990070001]


def test_burstgpt_in_both_layouts_leaves_out_what_got_no_answer(write: Write) -> None:
    old = (
        BURST
        + "5,ChatGPT,472,18,490,Conversation log\n5,ChatGPT,0,0,0,API log\n45,GPT-4,1087,230,1317,API log\n"
    )
    new = (
        BURST_NEW
        + "19440110.0,1722ac82,43,GPT-4,472,18,490,Conversation log\n19440111.0,,2,ChatGPT,9,0,9,API log\n"
    )
    new += "19440150.0,,2,ChatGPT,1087,230,1317,API log\n"
    for content in (old, new):
        trace = read(write(content))
        assert columns(trace) == ([0.0, 40.0], [472, 1087], [18, 230], [2, 4])
        assert (trace.format, trace.skipped) == ("burstgpt", {"no answer": 1})


def test_coarse_clocks_have_simultaneous_requests(write: Write) -> None:
    rows = "".join(f"{time},ChatGPT,7,1,8,API log\n" for time in (3, 3, 3, 4, 5, 5))
    assert read(write(BURST + rows)).simultaneous == 3
    assert (
        read(write(lines(moon(0, 1, 1, 1), moon(0, 1, 1, 1), moon(1, 1, 1, 1)))).simultaneous == 1
    )
    assert read(write(PLAIN + "0,1,1\n0.0,1,1\n")).simultaneous == 1


def test_mooncake_has_ms_and_blocks_of_512(write: Write) -> None:
    trace = read(
        write(
            lines(
                moon(27_000, 655, 52, 46, 47),
                {**moon(27_000.5, 512, 1, 46), "session_id": "x"},
                moon(30_000, 513, 26, 46, 2**63),
                moon(30_001, 7, 3),
            )
        )
    )
    assert columns(trace) == (
        [0.0, 0.0005, 3.0, 3.001],
        [655, 512, 513, 7],
        [52, 1, 26, 3],
        [1, 2, 3, 4],
    )
    assert (trace.format, trace.block_tokens, blocks(trace)) == (
        "mooncake",
        512,
        [[0, 1], [0], [0, 2], []],
    )
    assert promised(trace) == [0, 512, 512, 0]


def test_mooncake_lines_may_state_another_block_size(write: Write) -> None:
    trace = read(write(lines(*({**moon(i, 33, 1, 5, 6, 7), "block_tokens": 16} for i in range(2)))))
    assert (trace.block_tokens, promised(trace)) == (16, [0, 33])


def test_plain_csv_and_jsonl_say_the_same(write: Write) -> None:
    table = read(
        write('output_tokens,timestamp_s,input_tokens,prompt\n3,10.5,7,"a, b\nc"\n\n4,12,8.0,d\n')
    )
    objects = read(write(lines(plain(10.5, 7, 3, prompt="a, b\nc"), plain(12, 8.0, 4, prompt="d"))))
    for trace in (table, objects):
        assert (trace.format, trace.prompts) == ("plain", ["a, b\nc", "d"])
        assert columns(trace)[:3] == ([0.0, 1.5], [7, 8], [3, 4])
    assert (table.line.tolist(), objects.line.tolist()) == ([2, 5], [1, 2])


def test_plain_jsonl_with_blocks(write: Write) -> None:
    rows = [
        plain(0, 20, 1, hash_ids=[-9, 8], block_tokens=16),
        plain(1, 5, 1),
        plain(1, 4, 1, hash_ids=[-9], block_tokens=16),
    ]
    trace = read(write(lines(*rows)))
    assert (trace.block_tokens, blocks(trace), promised(trace)) == (
        16,
        [[0, 1], [], [0]],
        [0, 0, 4],
    )


def test_gzip_byte_order_mark_and_blank_lines_change_nothing(write: Write) -> None:
    for content in (AZURE + "2024-05-10 00:00:01,7,1\n", lines(moon(5, 7, 1))):
        for text in (content, "\ufeff" + content, "\ufeff\r\n\n" + content, content + "\n\n"):
            for data in (text.encode(), gzip.compress(text.encode())):
                trace = read(write(data))
                assert columns(trace)[:3] == ([0.0], [7], [1])
                assert text.splitlines()[trace.line[0] - 1].rstrip("}\n").endswith("1")


# --- what is wrong --------------------------------------------------------------------------------

STAMP = "2024-05-10 00:00:0"
AZURE_LINE, BURST_LINE, PLAIN_LINE = (
    AZURE + f"{STAMP}1,7,1\n",
    BURST + "1,m,7,1,8,x\n",
    PLAIN + "1,7,1\n",
)
PROMPT_LINE = PLAIN.replace("\n", ",prompt\n") + "1,7,1,a\n"
MOON_LINE, MOON_BLOCKS = lines(moon(1, 7, 1)), lines(moon(1, 600, 1, 1, 2))


@pytest.mark.parametrize(
    ("content", "where", "what"),
    [
        ("", "data:", "empty"),
        (" \n\n", "data:", "empty"),
        (AZURE, "data:", "no requests"),
        (BURST + "1,ChatGPT,0,0,0,API log\n", "data:", "1 left out (no answer)"),
        (b"PAR1\x15\x04\x15\x00\x00", "data:", "binary"),
        (AZURE.encode("utf-16"), "data:", "UTF-16; save it in UTF-8"),
        (b"\x89PNG\r\n\xff\xfe", "line 1:", "invalid UTF-8"),
        (gzip.compress((PLAIN + "0,7,1\n" * 99).encode(), mtime=0)[:-12], "data:", "damaged gzip"),
        (b"\x1f\x8bnonsense", "data:", "damaged gzip"),
        (
            AZURE.replace("GeneratedTokens", "Tokens"),
            "line 1:",
            "found 'TIMESTAMP', 'ContextTokens', 'Tokens', but not",
        ),
        ("\n" + AZURE.replace("GeneratedTokens", "Tokens"), "line 2:", "not 'GeneratedTokens'"),
        (
            AZURE.replace(",", ";"),
            "line 1:",
            "not the columns of a trace, but 'TIMESTAMP;ContextTokens;GeneratedTokens'",
        ),
        ("a,b\n1,2\n", "line 1:", "plain: 'timestamp_s', 'input_tokens', 'output_tokens'"),
        (",".join(map(str, range(99))), "line 1:", "and 87 more"),
        ("timestamp_s," + PLAIN + "0,0,1,1\n", "line 1:", "more than one 'timestamp_s'"),
        (PLAIN.replace("\n", ",user,hash_ids\n"), "line 1:", "unknown: 'user', 'hash_ids'"),
        ('"a\n' + AZURE, "line 2:", "broken CSV"),
        (lines({"prompt": "a"}), "line 1:", "not the columns of a trace, but 'prompt'"),
        (lines({**moon(0, 1, 1), "input_length": 1})[:-3], "line 1:", "broken JSON"),
        ('[{"timestamp": 0}]', "line 1:", "no object"),
        (lines({"timestamp": 0, "input_length": 1}), "line 1:", "not 'output_length'"),
        (lines(plain(0, 1, 1, model="x")), "line 1:", "unknown: 'model'"),
    ],
)
@pytest.mark.parametrize("skip_bad", [False, True])
def test_files_of_no_use_are_refused_with_and_without_skip_bad(
    write: Write, content: str | bytes, where: str, what: str, skip_bad: bool
) -> None:
    message = refused(write(content), skip_bad=skip_bad)
    assert where in message
    assert what in message


@pytest.mark.parametrize(
    ("good", "bad", "reason", "what"),
    [
        (AZURE_LINE, f"{STAMP}0.9999999,7,1", "unsorted", "earlier than line 2"),
        (AZURE_LINE, f"{STAMP}1.0000000,7,1", "repeated line", "the same as line 2"),
        (AZURE_LINE, f"{STAMP}2,0,1", "no input", "'ContextTokens' is 0"),
        (AZURE_LINE, f"{STAMP}2,7,0", "no answer", "'GeneratedTokens' is 0"),
        (AZURE_LINE, f"{STAMP}2,-7,1", "negative number", "'ContextTokens' is '-7', below 0"),
        (AZURE_LINE, f"{STAMP}2,7", "broken line", "values: 2, columns of the header: 3"),
        (AZURE_LINE, f'{STAMP}2,"7"x,1', "broken line", "broken CSV"),
        (AZURE_LINE, AZURE.strip(), "not a number", "'TIMESTAMP' is 'TIMESTAMP', not like"),
        (AZURE_LINE, "1700000000,7,1", "not a number", "'TIMESTAMP' is '1700000000'"),
        (AZURE_LINE, "2024-13-10 00:00:00,7,1", "not a number", "'TIMESTAMP'"),
        (AZURE_LINE, "2024-05-10 00:00:01+99:00,7,1", "not a number", "'TIMESTAMP'"),
        (AZURE_LINE, "1924-05-10 00:00:01,7,1", "negative number", "before 1970"),
        (BURST_LINE, "0,m,7,1,8,x", "unsorted", "earlier than line 2"),
        (BURST_LINE, "2,m,0,1,1,x", "no input", "'Request tokens' is 0"),
        (PLAIN_LINE, "-1,7,1", "negative number", "'timestamp_s' is '-1'"),
        (PLAIN_LINE, "nan,7,1", "not a number", "'timestamp_s' is 'nan'"),
        (PLAIN_LINE, "inf,7,1", "not a number", "'timestamp_s' is 'inf'"),
        (PLAIN_LINE, "1715299200000000,7,1", "not a number", "not a time"),
        (PLAIN_LINE, ",7,1", "not a number", "no 'timestamp_s'"),
        (PLAIN_LINE, "2,nan,1", "not a number", "'input_tokens' is 'nan'"),
        (PLAIN_LINE, "2,inf,1", "not a number", "'input_tokens' is 'inf'"),
        (PLAIN_LINE, "2,7.5,1", "not a number", "'input_tokens' is '7.5', not a whole number"),
        (PLAIN_LINE, "2,1_000,1", "not a number", "'input_tokens' is '1_000'"),
        (PLAIN_LINE, "2,2147483648,1", "not a number", "'input_tokens' is '2147483648'"),
        (PLAIN_LINE, "2,7," + "9" * 5000, "not a number", "'output_tokens' is '999"),
        (PROMPT_LINE, "2,7,1, ", "no prompt", "'prompt' is ' '"),
        (PROMPT_LINE, b"2,7,1,na\xefve", "broken line", "invalid UTF-8"),
        (PLAIN_LINE, b"2,\xef,1", "not a number", "'input_tokens'"),
        (
            MOON_BLOCKS,
            lines(moon(2, 600, 1, 1)),
            "hash_ids do not fit",
            "1 hash_ids, but 600 tokens",
        ),
        (MOON_BLOCKS, lines(moon(2, 512, 1, 1, 2)), "hash_ids do not fit", "are 1 blocks of 512"),
        (
            MOON_BLOCKS,
            lines(moon(2, 7, 1, "x")),
            "hash_ids do not fit",
            "not a list of whole numbers",
        ),
        (
            MOON_BLOCKS,
            lines(moon(2, 7, 1, True)),
            "hash_ids do not fit",
            "not a list of whole numbers",
        ),
        (MOON_BLOCKS, lines(moon(2, 7, 1) | {"hash_ids": []}), "hash_ids do not fit", "0 hash_ids"),
        (
            MOON_BLOCKS,
            lines(moon(2, 7, 1) | {"hash_ids": 3}),
            "hash_ids do not fit",
            "'hash_ids' is 3",
        ),
        (MOON_LINE, lines(moon(0.5, 7, 1)), "unsorted", "earlier than line 1"),
        (MOON_LINE, lines(moon(-1, 7, 1)), "negative number", "'timestamp' is -1"),
        (MOON_LINE, lines(moon(2, 0, 1)), "no input", "'input_length' is 0"),
        (MOON_LINE, lines(moon(2, 7, None)), "not a number", "no 'output_length'"),
        (MOON_LINE, lines(moon(2, True, 1)), "not a number", "'input_length' is True"),
        (MOON_LINE, lines(moon(2, "many", 1)), "not a number", "'input_length' is 'many'"),
        (MOON_LINE, lines(moon(2, 7, 1))[:-3], "broken line", "broken JSON"),
        (
            MOON_LINE,
            '{"timestamp": NaN, "input_length": 7, "output_length": 1}',
            "broken line",
            "broken JSON",
        ),
        (
            MOON_LINE,
            '{"timestamp": ' + "[" * 900 + "]" * 900 + "}",
            "not a number",
            "a list, not a number",
        ),
        (MOON_LINE, "[" * 100_000, "broken line", "broken JSON"),
        (MOON_LINE, b'{"timestamp": 2, "\xef": 0}', "broken line", "broken JSON"),
        (MOON_LINE, "7", "broken line", "no object"),
        (lines(plain(1, 7, 1)), lines(plain(2, 7, 1, model=3)), "broken line", "unknown: 'model'"),
        (
            lines(plain(1, 7, 1)),
            lines(plain(2, 7, 1, prompt="a")),
            "no prompt",
            "a 'prompt', other than",
        ),
        (
            lines(plain(1, 7, 1, prompt="a")),
            lines(plain(2, 7, 1)),
            "no prompt",
            "no 'prompt', other than",
        ),
        (
            lines(plain(1, 7, 1, prompt="a")),
            lines(plain(2, 7, 1, prompt=3)),
            "no prompt",
            "'prompt' is 3",
        ),
        (
            lines(plain(1, 7, 1)),
            lines(plain(2, 7, 1, hash_ids=[1])),
            "not a number",
            "no 'block_tokens'",
        ),
        (
            lines(plain(1, 7, 1)),
            lines(plain(2, 7, 1, hash_ids=[1], block_tokens=0)),
            "hash_ids do not fit",
            "is 0",
        ),
        (
            lines(plain(1, 7, 1, hash_ids=[1], block_tokens=8)),
            lines(plain(2, 7, 1, hash_ids=[1], block_tokens=16)),
            "hash_ids do not fit",
            "blocks of 16 tokens here, of 8 further up",
        ),
    ],
)
def test_a_bad_line_is_named_or_left_out_and_counted(
    write: Write, good: str, bad: str | bytes, reason: str, what: str
) -> None:
    ending = bad.encode() if isinstance(bad, str) else bad
    path = write(good.encode() + ending.rstrip(b"\n") + b"\n")
    number = len(good.splitlines()) + 1
    message = refused(path)
    assert f", line {number}: " in message
    assert what in message
    assert message.endswith("--skip-bad")
    kept = read(path, skip_bad=True)
    assert kept.line.tolist() == [number - 1]
    assert kept.skipped == {reason: 1}


def refused(path: Path, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        read(path, **options)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert "; " in message, "no remedy"
    assert len(message) < 600
    return message


def test_lines_behind_bad_ones_are_read_and_order_is_judged_by_what_was_kept(write: Write) -> None:
    rows = ["5,7,1", "2,7,1", "x,7,1", "4,7,1", "9,0,1", "6,7,1"]
    trace = read(write(PLAIN + "".join(f"{row}\n" for row in rows)), skip_bad=True)
    assert columns(trace) == ([0.0, 1.0], [7, 7], [1, 1], [2, 7])
    assert trace.skipped == {"unsorted": 2, "not a number": 1, "no input": 1}
    only_bad = write(PLAIN + "x,7,1\nx,7,1\n")
    assert "2 left out (not a number)" in refused(only_bad, skip_bad=True)


def test_the_model_may_take_exactly_so_many_tokens(write: Write) -> None:
    path = write(PLAIN + "0,600,400\n")
    trace = read(path)
    trace.check_lengths(str(path), 1000, 1)
    assert trace.without_longer(1000).count == 1
    with pytest.raises(
        InputError, match=r"line 2: 600 tokens in and 400 out, and the model takes 999 .*bad$"
    ):
        trace.check_lengths(str(path), 999, 1)
    with pytest.raises(InputError, match="no request of the trace lies within the 999 tokens"):
        trace.without_longer(999)


def test_what_is_too_long_for_the_model_is_left_out_and_counted(write: Write) -> None:
    trace = read(write(PLAIN + "1,600,401\n3,7,1\n4,600,401\n6,8,2\n"))
    trace.check_lengths("t", 1000, 0)  # of what is not sent nothing is asked
    kept = trace.without_longer(1000)
    assert columns(kept) == ([0.0, 3.0], [7, 8], [1, 2], [3, 5])
    assert kept.skipped == {"too long for the model": 2}
    assert trace.without_longer(1001) is trace


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"missing: No such file or directory; check"):
        read(tmp_path / "missing")
    with pytest.raises(InputError, match=r"not a file; give"):
        read(tmp_path)


# --- parts and sizes ------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [b"", f"{PLAIN}0,1,1\n".encode()])
def test_a_small_file_of_very_many_empty_lines_is_refused(write: Write, first: bytes) -> None:
    assert "1,000,000 blank lines before it" in refused(
        write(gzip.compress(first + b"\n" * 2_000_000))
    )


@pytest.fixture
def five(write: Write) -> Trace:
    """Requests at 0, 1, 2, 3 and 4 s, the second without blocks, with prompts."""
    ids = [[1], None, [1, 2], [1, 2, 3], [2]]
    rows = [
        plain(100 + i, 5 + (len(own) - 1) * 10 if own else 8, i + 1, prompt=f"p{i}")
        | ({"hash_ids": own, "block_tokens": 10} if own else {})
        for i, own in enumerate(ids)
    ]
    return read(write(lines(*rows)))


def test_a_cut_begins_at_its_start(five: Trace) -> None:
    part = five.cut(1.5, 4)
    assert columns(part) == ([0.5, 1.5], [15, 25], [3, 4], [3, 4])
    assert (blocks(part), part.prompts, part.sha256) == (
        [[0, 1], [0, 1, 2]],
        ["p2", "p3"],
        five.sha256,
    )
    assert five.cut(0, 9).line.tolist() == [1, 2, 3, 4, 5]
    with pytest.raises(InputError, match=r"from 1\.2 s to 1\.8 s; it goes from 0 to 4 s"):
        five.cut(1.2, 1.8)


def test_the_first_requests(five: Trace) -> None:
    assert columns(five.first(2)) == ([0.0, 1.0], [5, 8], [1, 2], [1, 2])
    assert five.first(9).count == five.count == 5
    with pytest.raises(InputError, match="first 0"):
        five.first(0)


def test_a_sample_is_a_share_drawn_by_its_seed(write: Write) -> None:
    trace = read(write(PLAIN + "".join(f"{i},7,1\n" for i in range(4000))))
    sample = trace.sample(0.25, seed=0)
    assert 900 < sample.count < 1100  # five standard deviations: 137
    assert np.array_equal(sample.line, trace.sample(0.25, seed=0).line)
    assert not np.array_equal(sample.line, trace.sample(0.25, seed=1).line)
    # Without a pattern: of neighbours, about a quarter of the kept ones are both kept.
    assert 170 < np.count_nonzero(np.diff(sample.line) == 1) < 330
    assert np.array_equal(sample.time_s, sample.line - 2.0)
    assert np.array_equal(trace.sample(1.0, seed=3).line, trace.line)
    with pytest.raises(InputError, match="larger share"):
        trace.sample(0.0, seed=0)


def test_scaled_lengths_keep_blocks_and_what_is_shared(write: Write) -> None:
    trace = read(
        write(
            lines(
                moon(0, 1100, 90, 1, 2, 3),
                moon(1, 1024, 1, 1, 2),
                moon(2, 1025, 40, 1, 2, 4),
                moon(3, 70, 7),
            )
        )
    )
    small = trace.scaled_lengths(1 / 32)
    # 1025 / 32 would round to two blocks of 16; its third must keep a token.
    assert (small.block_tokens, small.input_tokens.tolist()) == (16, [34, 32, 33, 2])
    assert small.output_tokens.tolist() == [3, 1, 1, 1]
    assert promised(trace) == [0, 1024, 1024, 0]
    assert promised(small) == [0, 32, 32, 0]
    assert blocks(small) == blocks(trace)
    tiny = trace.scaled_lengths(1e-6)
    assert (tiny.block_tokens, tiny.input_tokens.tolist(), tiny.output_tokens.tolist()) == (
        1,
        [3, 2, 3, 1],
        [1] * 4,
    )
    assert trace.scaled_lengths(1.0).input_tokens.tolist() == trace.input_tokens.tolist()
    with pytest.raises(InputError, match="scale by less"):
        trace.scaled_lengths(1e7)


@given(st.lists(st.integers(1, 9000), min_size=1, max_size=20), st.floats(1e-4, 30))
def test_scaled_inputs_always_fill_their_blocks(lengths: list[int], factor: float) -> None:
    counts = [-(-length // 512) for length in lengths]
    n = len(lengths)
    trace = Trace(
        format="mooncake",
        time_s=np.zeros(n),
        input_tokens=np.array(lengths, np.int32),
        output_tokens=np.ones(n, np.int32),
        line=np.arange(n, dtype=np.int32),
        block_tokens=512,
        block_offsets=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        block_ids=np.arange(sum(counts), dtype=np.int32),
        prompts=None,
        sha256="",
        skipped={},
    )
    scaled = trace.scaled_lengths(factor)
    assert (-(-scaled.input_tokens // scaled.block_tokens)).tolist() == counts


# --- what an endless cache would have -------------------------------------------------------------


def promised_of(ids: list[list[int]], block_tokens: int, lengths: list[int]) -> list[int]:
    offsets = np.concatenate(([0], np.cumsum([len(own) for own in ids]))).astype(np.int64)
    flat = np.array([id for own in ids for id in own], np.int32)
    blocks = Blocks.whole(block_tokens, offsets, flat)
    known = BlockTree(blocks, range(len(ids)), np.zeros(len(ids), np.int32)).known
    return np.minimum(np.array(known) * block_tokens, lengths).tolist()


def test_promised_are_leading_blocks_that_one_earlier_request_had() -> None:
    ids = [[1, 2, 3], [1, 2, 4], [2, 3], [1, 3], [1, 2, 4], [1, 2, 4, 5], [], [1, 2, 3]]
    #      nothing    two        none    one     all, cut   three
    assert promised_of(ids, 10, [30, 30, 20, 20, 25, 40, 9, 30]) == [0, 20, 0, 10, 25, 30, 0, 30]


@given(st.lists(st.lists(st.integers(0, 2), max_size=5), min_size=1, max_size=12))
def test_promised_against_a_plain_search(ids: list[list[int]]) -> None:
    def shared(one: list[int], other: list[int]) -> int:
        return next(
            (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
            min(len(one), len(other)),
        )

    expected = [
        4 * max((shared(own, other) for other in ids[:i]), default=0) for i, own in enumerate(ids)
    ]
    assert promised_of(ids, 4, [4 * len(own) for own in ids]) == expected


# --- the public files -----------------------------------------------------------------------------


@pytest.mark.skipif(
    not PUBLIC.is_dir(),
    reason="the public traces are not beside this checkout (shared/data/traces)",
)
@pytest.mark.parametrize(
    ("name", "format", "count", "duration_s", "simultaneous", "input_tokens", "output_tokens"),
    [
        ("azure/AzureLLMInferenceTrace_code.csv", "azure", 8819, 3435.948056, 0, 18059974, 245896),
        (
            "azure/AzureLLMInferenceTrace_conv.csv",
            "azure",
            19366,
            3501.721937,
            0,
            22361870,
            4088665,
        ),
        (
            "mooncake/conversation_trace.jsonl",
            "mooncake",
            12031,
            3536.999,
            10851,
            144793823,
            4122048,
        ),
        ("mooncake/synthetic_trace.jsonl", "mooncake", 3993, 1022.025, 11, 61194628, 595432),
    ],
)
def test_public_traces(
    name: str,
    format: str,
    count: int,
    duration_s: float,
    simultaneous: int,
    input_tokens: int,
    output_tokens: int,
) -> None:
    trace = read(PUBLIC / name)
    assert (trace.format, trace.count, trace.duration_s, trace.skipped) == (
        format,
        count,
        duration_s,
        {},
    )
    assert trace.simultaneous == simultaneous
    assert int(trace.input_tokens.sum()) == input_tokens
    assert int(trace.output_tokens.sum()) == output_tokens
    if format == "mooncake":
        # These ids stand for all that comes before them too: an id seen before is a block seen
        # before.
        seen: set[int] = set()
        expected = []
        for own in blocks(trace):
            expected.append(512 * sum(id in seen for id in own))
            seen.update(own)
        assert promised(trace) == np.minimum(expected, trace.input_tokens).tolist()
        assert promised(trace.scaled_lengths(1 / 512)) == [
            min(-(-full // 512), short)
            for full, short in zip(
                promised(trace), trace.scaled_lengths(1 / 512).input_tokens.tolist(), strict=True
            )
        ]


@pytest.mark.parametrize(
    ("times", "seconds", "doubted"),
    [
        ([0.0, 0.5, 1.0, 1.5], [0, 0.5, 1, 1.5], None),
        ([7.25, 8, 11], [0, 0.75, 3.75], None),
        ([0, 500.5, 1000], [0, 0.5005, 1], None),
        ([0, 8, 16], [0, 0.008, 0.016], None),
        ([0, 1, 2], [0, 0.001, 0.002], 1000),
        ([5, 5, 5], [0, 0, 0], None),
    ],
)
def test_the_unit_of_mooncakes_times_is_looked_at(
    write: Write, times: list[float], seconds: list[float], doubted: float | None
) -> None:
    trace = read(write(lines(*(moon(time, 10, 2) for time in times))))
    assert trace.time_s.tolist() == pytest.approx(seconds)
    assert trace.doubted_per_s == (None if doubted is None else pytest.approx(doubted))


def test_bailian_has_seconds_and_small_blocks(write: Write) -> None:
    rows = [{"chat_id": n, "parent_chat_id": -1} | moon(10 * n, 20, 4, n, 9) for n in range(3)]
    trace = read(write(lines(*rows)))
    assert (trace.format, trace.block_tokens, trace.time_s.tolist()) == ("bailian", 16, [0, 10, 20])
