"""Small tokenizers of the tokenizers library, trained on a few sentences or built by hand."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SENTENCES = [
    "The naïve café costs 5 € a day, and the crème brûlée 7 €.",
    "Größe und Maß: die Straße ist für Fußgänger gesperrt.",
    "注意力机制是不变的。注意力机制是不变的。",
    "Здравствуй, мир! 🎼 𝄞 👩‍🚀",
]
END = "<|endoftext|>"
OTHER = "<|other|>"


def byte_level(merges: int = 60, sentences: list[str] = SENTENCES) -> Tokenizer:
    """Byte-level BPE, whose tokens may end inside a character, with two special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=258 + merges,
        special_tokens=[AddedToken(word, special=True) for word in (END, OTHER)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return tokenizer


def across_characters(character: str) -> Tokenizer:
    """Tokens that cross characters: a first byte, the two others, and these plus the next first byte."""
    first, second, third = byte_level(0).encode(character).tokens
    words = [first, second, third, second + third, second + third + first]
    merges = [(second, third), (second + third, first)]
    tokenizer = Tokenizer(models.BPE({word: n for n, word in enumerate(words)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def byte_fallback() -> Tokenizer:
    """Byte fallback as in Llama: words with a leading space, and bytes for everything else.

    Tokens 0 to 255 are bytes, 256 is " the" and 257 " end".
    """
    words = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁the": 256, "▁end": 257}
    tokenizer = Tokenizer(models.BPE(words, []))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer
