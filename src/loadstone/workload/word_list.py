"""The words of which synthetic prompts are made.

1,024 common English words (3 to 9 lower-case ASCII letters), sorted. With a leading space each is
one token in the GPT-2, cl100k and o200k vocabularies (checked word by word with all three), and so
in tokenizers that grew out of them, Llama 3's and Qwen's; text of k words is then k tokens without
a tokenizer at hand. The embedded engine's vocabulary (`loadstone.measure.engines.tiny_gguf`) is
built from the same list, where it holds by construction.
"""

from pathlib import Path

FILE = Path(__file__).with_name("words.txt")
WORDS: tuple[str, ...] = tuple(FILE.read_text("ascii").split())
