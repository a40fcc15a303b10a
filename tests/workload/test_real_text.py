"""real_text.py: windows of a known text, cut by counts that are known, from every layout."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loadstone.core.errors import InputError
from loadstone.core.plan import Plan
from loadstone.workload.options import Options
from loadstone.workload.planning import Planner
from loadstone.workload.prompts import PromptWriter, Vocabulary
from loadstone.workload.real_text import Count, read
from loadstone.workload.word_list import WORDS

PIECES = re.compile(r"\s?[A-Za-z]{1,5}|\s|[^A-Za-z\s]")


def pieces(text: str) -> int:
    """Count a word as one token for each five letters, a character beyond ASCII as three; and four
    that stand in every prompt."""
    return 4 + sum(
        3 if not piece.isascii() and len(piece) == 1 else 1 for piece in PIECES.findall(text)
    )


def story(number: int, words: int = 400) -> str:
    rng = np.random.default_rng(number)
    return " ".join(
        WORDS[pick] + ("." if pick % 7 == 0 else "") for pick in rng.integers(1024, size=words)
    )


def plan_of(text: Path | str, count: Count = pieces, **options: object) -> Plan:
    given = {"concurrency": 1, "warmup": 0, "input": "50", "output": "4"} | options
    return Planner(Options.read(text=str(text), **given)).plan(count=count)


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text("\n\n".join(story(number) for number in range(20)))
    return path


def test_windows_are_exact_and_never_overlap(book: Path) -> None:
    plan = plan_of(book, requests=100, input="uniform:20:90", concurrency=[1, 4], warmup=2)
    assert [pieces(prompt) for prompt in plan.prompts] == plan.input_tokens[
        np.argsort(plan.prompt)
    ].tolist()
    assert len(set(plan.prompts)) == len(plan) == 204
    text = book.read_text()
    joined = text + "\n\n" + text
    places = sorted(
        (joined.index(prompt) % len(text), len(prompt))
        for prompt in plan.prompts
        if prompt in joined
    )
    assert len(places) >= 203  # one may lie over the seam
    assert all(at + size <= following for (at, size), (following, _) in itertools.pairwise(places))
    assert (plan.workload["kind"], plan.workload["prompts"]) == ("text", 204)
    assert (plan.has_texts, plan.is_real_text, plan.exact_output) == (False, True, True)


def test_the_same_seed_gives_the_same_text_and_another_seed_another(book: Path) -> None:
    first, again, other = (plan_of(book, requests=10, seed=seed) for seed in (1, 1, 2))
    assert first.plan_id == again.plan_id
    assert not set(first.prompts) & set(other.prompts)


def test_a_text_that_is_used_up_is_told_and_a_cell_by_time_goes_round(book: Path) -> None:
    with pytest.raises(InputError, match=r"--text .*book.txt: used up after \d+ of 9000 prompts"):
        plan_of(book, requests=9000)
    plan = plan_of(book, duration_s=60.0, concurrency=[1, 2])
    sizes = [len(plan.rows(cell)) for cell in (0, 1)]
    assert 100 < min(sizes) < 1024
    assert max(sizes) - min(sizes) <= 1
    assert len(set(plan.prompts)) == len(plan)


def test_characters_of_several_tokens_are_filled_up(tmp_path: Path) -> None:
    path = tmp_path / "sky.txt"
    path.write_text("天" * 4000)
    plan = plan_of(path, requests=40, input="uniform:20:60")
    assert [pieces(prompt) for prompt in plan.prompts] == plan.input_tokens.tolist()
    assert "lengths_off" not in plan.workload

    def threes(text: str) -> int:
        return 3 * len(text)

    plan = plan_of(path, threes, requests=4, input="31")
    assert plan.workload["lengths_off"] == {"-1": 4}


def test_what_stands_in_every_prompt_is_a_least_length(book: Path) -> None:
    with pytest.raises(InputError, match="--input 4: 4 tokens stand in every prompt"):
        plan_of(book, requests=1, input="4")


ROWS = [{"id": number, "text": story(number)} for number in range(8)]
CHATS = [
    {"id": 1, "messages": [{"role": "user", "content": story(1)}, {"role": "x", "content": "b"}]}
]


def save(folder: Path, layout: str) -> Path:
    table = pa.Table.from_pylist(ROWS)
    match layout:
        case "jsonl":
            path = folder / "rows.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        case "strings":
            path = folder / "rows.json"
            path.write_text(json.dumps([row["text"] for row in ROWS]))
        case "parquet":
            path = folder / "rows.parquet"
            pq.write_table(table, path, row_group_size=3)
        case "hub":
            path = folder / "datasets--a--b"
            data = path / "snapshots" / "c0ffee" / "data"
            data.mkdir(parents=True)
            (path / "refs").mkdir()
            (path / "refs" / "main").write_text("c0ffee")
            pq.write_table(table, data / "train-00000-of-00001.parquet")
        case "save_to_disk":
            path = folder / "saved"
            (path / "train").mkdir(parents=True)
            (path / "train" / "state.json").write_text("{}")
            with pa.OSFile(str(path / "train" / "data-00000-of-00001.arrow"), "wb") as file:  # noqa: SIM117
                with pa.ipc.new_stream(file, table.schema) as stream:
                    stream.write_table(table, max_chunksize=3)
        case "messages":
            path = folder / "chats.parquet"
            pq.write_table(pa.Table.from_pylist(CHATS), path)
        case _:
            path = folder / "sources"
            (path / ".git").mkdir(parents=True)
            (path / ".git" / "config").write_text("no text of the project\n" * 900)
            (path / "picture.png").write_bytes(b"\x89PNG\0\0")
            for row in ROWS:
                (path / f"{row['id']}.py").write_text(str(row["text"]))
    return path


@pytest.mark.parametrize(
    "layout", ["jsonl", "strings", "parquet", "hub", "save_to_disk", "messages", "files"]
)
def test_every_layout_is_read_and_recorded(tmp_path: Path, layout: str) -> None:
    path = save(tmp_path, layout)
    plan = plan_of(path, requests=8, input="40")
    known = " ".join(story(number) for number in range(8))
    assert all(prompt.replace("\n\n", " ") in known for prompt in plan.prompts[:2])
    assert {"file": path.name, "files": 8 if layout == "files" else 1}.items() <= (
        plan.workload.items()
    )
    assert len(plan.workload["sha256"]) == 64
    assert plan.workload.get("revision") == ("c0ffee" if layout == "hub" else None)
    assert plan.workload.get("files_left_out") == (1 if layout == "files" else None)
    column = {"messages": "messages", "strings": None, "files": None}.get(layout, "text")
    assert plan.workload.get("column") == column


def test_a_column_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({"plot": row["text"], "cast": "nobody"}) + "\n" for row in ROWS)
    )
    assert plan_of(f"{path}:plot", requests=2).workload["column"] == "plot"
    with pytest.raises(InputError, match=r"which column is the text is not clear.*plot, cast"):
        read(str(path))
    with pytest.raises(InputError, match="no column 'scene'; it has plot, cast"):
        read(f"{path}:scene")


def cut_arrow(folder: Path) -> Path:
    path = save(folder, "save_to_disk") / "train" / "data-00000-of-00001.arrow"
    path.write_bytes(path.read_bytes()[:9000])
    return path


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", b"\0\1\2", "binary, not text"),
        ("b.txt", b"first line\n\xff\xfe\xff", "binary, or not in UTF-8"),
        ("c.txt", b"   \n", "no text in it"),
        ("d.parquet", b"PAR1 and no more", "cannot be read"),
        ("e.jsonl", b'{"text": "one"}\n{"words": "two"}\n', "no column 'text'"),
        ("f.jsonl", b'{"text": "one"}\n{"text": ', "line 2: broken JSON"),
    ],
)
def test_bad_text_is_one_line(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=said) as error:
        plan_of(path, requests=2)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


def test_a_damaged_stream_names_its_row(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data-00000-of-00001.arrow, row [47]: cannot be read"):
        plan_of(cut_arrow(tmp_path), requests=90)


@pytest.mark.parametrize("flag", [{"prefix": 9}, {"turns": "2"}, {"dataset": "x", "input": None}])
def test_options_that_say_otherwise_are_refused(book: Path, flag: dict[str, object]) -> None:
    with pytest.raises(InputError, match="--text"):
        plan_of(book, requests=2, **flag)


def test_each_request_has_a_mark_of_its_own(book: Path) -> None:
    plan = plan_of(book, requests=3)
    vocabulary = Vocabulary("text", words=WORDS)

    def written(salt: str) -> list[str]:
        writer = PromptWriter(vocabulary, seed=plan.seed, salt=salt, chat=False)
        return [json.loads(writer.write(plan.request(0, index))) for index in range(3)]

    first, again, other = written("a"), written("a"), written("b")
    assert first == again
    for index, (one, two) in enumerate(zip(first, other, strict=True)):
        mark, _, text = one.partition("\n\n")
        assert text == plan.prompts[plan.prompt[index]]
        assert (len(mark.split(" ")), two.partition("\n\n")[2]) == (6, text)
        assert not two.startswith(mark)
    assert len({prompt.partition("\n\n")[0] for prompt in first + other}) == 6
