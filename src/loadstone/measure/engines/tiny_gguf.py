"""Makes a small llama model with random weights and a vocabulary whose token counts are known
beforehand.

It exists to put a real engine (llama.cpp) behind the load client with nothing to download. What it
promises:

- " word" is exactly one token for each of `WORDS`, so text of k such words, each with its leading
  space, is k tokens;
- what it generates are whole words of `WORDS`, never an end of sequence or half a UTF-8 character:
  the text of a reply is as many tokens as were generated, and each token shows as one piece of
  plain text;
- the same file, byte for byte, from the same code and libraries.

Any other text is tokenized byte by byte. About 4 million parameters, 18 MB in float32.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadstone.core.files import TemporaryFolder
from loadstone.workload import word_list
from loadstone.workload.word_list import WORDS

VOCABULARY_SIZE = 4096
SPECIALS = ("<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

_SEED = 0
_HIDDEN = 256
_LAYERS = 4
_HEADS = 4
_KV_HEADS = 2
_HEAD_DIM = 64
_FFN = 512
# Claimed, not trained (nothing here is): it lets the server be started with any context a test may
# want.
_CONTEXT_TOKENS = 131072

# Standard deviation of a word's logit. Three makes the likeliest of a thousand words win by a
# margin that float32 rounding in different batch shapes rarely closes, yet leaves sampling at
# temperature 1 dozens of candidates.
_LOGIT_SPREAD = 3.0
# Hidden dimension 0 is the same constant at every position (no layer writes to it), which turns the
# output matrix's column 0 into a bias per token: zero for words, this for everything else, after
# normalisation about −40 in logits.
_CONSTANT = 4.0
_SILENCE = -10.0


def fingerprint() -> str:
    """Return twelve hex digits that change when the code or the words that make the file change."""
    sources = (Path(__file__), word_list.FILE)
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]


def vocabulary() -> tuple[list[str], list[str]]:
    """Return the tokens in id order, `VOCABULARY_SIZE` of them, and the BPE merges, in GPT-2's
    byte-to-character spelling.

    Each word is reached letter by letter ("Ġ t", "Ġt i", "Ġti m", …). Every merge begins with the
    space, so no other order of merging exists and a word can come out as nothing but its one token.
    """
    characters = _byte_characters()
    space = characters[ord(" ")]
    tokens = [*SPECIALS, *characters]
    merges: list[str] = []
    made = set(tokens)
    for word in WORDS:
        prefix = space
        for letter in word:
            longer = prefix + letter
            if longer not in made:
                made.add(longer)
                tokens.append(longer)
                merges.append(f"{prefix} {letter}")
            prefix = longer
    # No merge leads to the padding, so no text is ever tokenized to it; its text is printable all
    # the same.
    tokens.extend(f"[{n}]" for n in range(VOCABULARY_SIZE - len(tokens)))
    return tokens, merges


def write(path: Path) -> None:
    """Build the model at `path`, replacing what is there; parent folders are made.

    Safe to run from several processes at once: each writes a file of its own and renames it. Raises
    OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryFolder(".tiny-", path.parent) as folder:
        finished = folder / path.name
        _write(finished)
        finished.replace(path)


def _write(path: Path) -> None:
    import gguf

    tokens, merges = vocabulary()
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("loadstone-tiny")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(VOCABULARY_SIZE)
    writer.add_context_length(_CONTEXT_TOKENS)
    writer.add_embedding_length(_HIDDEN)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_FFN)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_key_length(_HEAD_DIM)
    writer.add_value_length(_HEAD_DIM)
    writer.add_rope_dimension_count(_HEAD_DIM)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in SPECIALS else normal for token in tokens])
    writer.add_token_merges(merges)
    writer.add_unk_token_id(SPECIALS.index("<unk>"))
    writer.add_bos_token_id(SPECIALS.index("<s>"))
    writer.add_eos_token_id(SPECIALS.index("</s>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, tensor in _tensors(tokens).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(tokens: list[str]) -> dict[str, NDArray[np.float32]]:
    """Return weights by GGUF name, rows = outputs. Scaled by 1/√inputs, so that every activation is
    of order one."""
    rng = np.random.default_rng(_SEED)

    def normal(rows: int, columns: int) -> NDArray[np.float32]:
        return rng.standard_normal((rows, columns), dtype=np.float32) / np.float32(np.sqrt(columns))

    ones = np.ones(_HIDDEN, np.float32)
    embedding = rng.standard_normal((VOCABULARY_SIZE, _HIDDEN), dtype=np.float32)
    embedding[:, 0] = _CONSTANT
    output = normal(VOCABULARY_SIZE, _HIDDEN) * np.float32(_LOGIT_SPREAD)
    spoken = {_byte_characters()[ord(" ")] + word for word in WORDS}
    output[:, 0] = [0.0 if token in spoken else _SILENCE for token in tokens]
    tensors: dict[str, Any] = {
        "token_embd.weight": embedding,
        "output_norm.weight": ones,
        "output.weight": output,
    }
    for layer in range(_LAYERS):
        to_residual = {
            "attn_output": normal(_HIDDEN, _HEADS * _HEAD_DIM),
            "ffn_down": normal(_HIDDEN, _FFN),
        }
        for matrix in to_residual.values():
            matrix[0] = 0.0
        matrices = {
            "attn_norm": ones,
            "attn_q": normal(_HEADS * _HEAD_DIM, _HIDDEN),
            "attn_k": normal(_KV_HEADS * _HEAD_DIM, _HIDDEN),
            "attn_v": normal(_KV_HEADS * _HEAD_DIM, _HIDDEN),
            "ffn_norm": ones,
            "ffn_gate": normal(_FFN, _HIDDEN),
            "ffn_up": normal(_FFN, _HIDDEN),
            **to_residual,
        }
        tensors |= {f"blk.{layer}.{name}.weight": matrix for name, matrix in matrices.items()}
    return tensors


def _byte_characters() -> list[str]:
    """Return GPT-2's character for each of the 256 bytes: printable bytes stand for themselves, the
    rest for U+0100 and on.

    Source: `bytes_to_unicode` in OpenAI's GPT-2 encoder. (A space is "Ġ", U+0120.)
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]
