import itertools
from pathlib import Path

import gguf
import numpy as np
import pytest

from loadstone.measure.engines import tiny_gguf
from loadstone.workload.word_list import WORDS


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "new" / "tiny.gguf"
    tiny_gguf.write(path)
    return path


def bpe(text: str, merges: list[str]) -> list[str]:
    """Byte-pair encoding in its simplest form: the earliest merge that applies, until none does."""
    rank = {tuple(merge.split(" ")): number for number, merge in enumerate(merges)}
    parts = list(text)
    while pairs := [
        (rank[pair], at) for at, pair in enumerate(itertools.pairwise(parts)) if pair in rank
    ]:
        _, at = min(pairs)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def test_every_word_with_its_space_is_one_token_and_every_byte_has_one() -> None:
    tokens, merges = tiny_gguf.vocabulary()
    assert len(tokens) == len(set(tokens)) == tiny_gguf.VOCABULARY_SIZE
    assert tokens[:5] == ["<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>"]
    assert all(len(character) == 1 for character in tokens[5:261])
    assert tokens[5 + ord("A")] == "A"
    assert tokens[5 + ord(" ")] == "Ġ"
    assert tokens[5 + ord("\n")] == "Ċ"
    for word in WORDS:
        assert bpe("Ġ" + word, merges) == ["Ġ" + word]
        assert "Ġ" + word in tokens
    assert bpe("time", merges) == ["t", "i", "m", "e"]
    assert {left + right for left, right in (merge.split(" ") for merge in merges)} <= set(tokens)


def test_the_file_is_the_same_each_time_and_nothing_else_is_left(model: Path) -> None:
    before = model.read_bytes()
    tiny_gguf.write(model)
    assert model.read_bytes() == before
    assert [path.name for path in model.parent.iterdir()] == ["tiny.gguf"]
    assert len(tiny_gguf.fingerprint()) == 12


def test_only_words_can_be_generated(model: Path) -> None:
    reader = gguf.GGUFReader(model)
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    tokens, _ = tiny_gguf.vocabulary()
    bias = tensors["output.weight"][:, 0]
    assert {token for token, value in zip(tokens, bias, strict=True) if value == 0} == {
        "Ġ" + word for word in WORDS
    }
    # No layer writes to the dimension that carries the bias, and every token starts it with the
    # same value.
    assert len(set(tensors["token_embd.weight"][:, 0].tolist())) == 1
    for name in (
        f"blk.{layer}.{matrix}.weight"
        for layer in range(4)
        for matrix in ("attn_output", "ffn_down")
    ):
        assert not np.any(tensors[name][0])
    assert reader.fields["llama.context_length"].contents() == 131072
    assert reader.fields["tokenizer.ggml.eos_token_id"].contents() == 2
    assert reader.fields["tokenizer.ggml.add_bos_token"].contents() is False
