"""300 texts on which tokenizers are compared: digits, code, emoji, many scripts, control tokens, white space."""

from __future__ import annotations

import random

CONTROL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")

_FRAGMENTS = (
    "The quick brown fox jumps over the lazy dog.",
    "I'm sure they're right, we'll see; it's John's, isn't IT'S? don't 'tis",
    "In 2024, 1234567890 people paid $3.14 or 1,000,000 (10^6) — 50%!",
    "007 0x7fff 3e-10 1st 2nd v1.2.3-rc4 192.168.0.1 ٣٤٥ १२३ ½ ²",
    "def f(x):\n\treturn x ** 2  # square\n\n\nif __name__ == '__main__':\n    print(f(3))\n",
    'fn main() { let v: Vec<u8> = vec![1, 2]; println!("{:?}", v); }',
    "SELECT * FROM t WHERE a >= 10 AND b != 'x';\r\n-- done\r\n",
    '{"key": [1, 2.5, null], "nested": {"a": "b"}}',
    "😀😁👩‍👩‍👧‍👦🏳️‍🌈🇨🇿 👍🏽 ❤️ ☃",
    "日本語のテキストと漢字。中文字符，标点！한국어 문장입니다.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy. Straße ŒUVRE naïve café",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם مرحبا بالعالم",
    "नमस्ते दुनिया สวัสดีชาวโลก ሰላም ልዑል",
    "e\u0301 vs é, ﬁ ligature, Å vs A\u030a, \u200b\u200d\ufeff zero width",
    "   leading and trailing   ",
    " \t\n\r\n\x0b\f  \u00a0\u3000\u2028",
    "\n\n\n\n",
    "a" * 60,
    "ab " * 20,
    "!!!???...---===###~~~```",
    "https://example.org/a/b?c=d&e=%20#frag user@mail.com C:\\path\\file.txt",
    "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, ∑∫√π ≠ ∞ → ←",
    "CamelCaseAndsnake_case-kebab XMLHttpRequest iPhone15Pro",
    "\x00\x01\x7f\x1b[31mred\x1b[0m",
    "<|im_start|>user\nWhat is <|im_end|>?<|endoftext|> <|not_a_token|> <|im_start",
    "\U0001d54c\U0001f9ea\U000e0041\ufffd\ufffe",
)


def texts(control: tuple[str, ...] = CONTROL, count: int = 300) -> list[str]:
    """Every fragment alone, then mixtures of them cut at random places, with control tokens in between."""
    rng = random.Random(0)
    found = ["", " ", "  ", "0", *_FRAGMENTS]
    while len(found) < count:
        pieces = []
        for _ in range(rng.randrange(1, 6)):
            fragment = rng.choice(_FRAGMENTS)
            start = rng.randrange(len(fragment))
            pieces.append(fragment[start : start + rng.randrange(1, 40)])
            pieces.append(rng.choice(("", "", " ", "\n", "  ", str(rng.randrange(10**6)), *control)))
        found.append("".join(pieces))
    return found
