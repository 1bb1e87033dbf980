"""Token ids equal those of Hugging Face's tokenizers, on texts of all kinds.

The families' own files cannot be had here, so small vocabularies are trained with each family's exact
normaliser, pre-tokeniser, special tokens and post-processing, and saved as transformers saves them.
"""

import json
import random

import pytest
from reference import random_llama
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
    r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(**options):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, **options)


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert=invert)


def steps(*parts):
    return pre_tokenizers.Sequence([*parts, byte_level(use_regex=False)])


# name -> (normaliser, pre-tokeniser, model options, first token or None, end token)
FAMILIES = {
    "gpt2": (None, byte_level(), {}, None, "<|endoftext|>"),
    "llama3": (None, steps(split(LLAMA3)), {"ignore_merges": True}, "<|begin_of_text|>",
               "<|end_of_text|>"),
    "qwen2": (normalizers.NFC(), steps(split(QWEN2)), {}, None, "<|endoftext|>"),
    "cl100k": (None, steps(split(CL100K)), {"ignore_merges": True}, None, "<|endoftext|>"),
    "o200k": (None, steps(split(O200K)), {"ignore_merges": True}, None, "<|endoftext|>"),
    "cl100k_removed": (None, steps(split(CL100K, "removed", True)), {}, None, "<|endoftext|>"),
    "deepseek": (None, steps(split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"), split(DEEPSEEK)),
                 {}, "<|begin_of_text|>", "<|end_of_text|>"),
    "starcoder": (None, pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                 byte_level()]), {}, None, "<|endoftext|>"),
    "prefix_space": (None, pre_tokenizers.ByteLevel(add_prefix_space=True), {}, "<s>", "</s>"),
    "nfkc_merged": (normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("``", '"')]),
                    steps(split(r"\s", "merged_with_next"), split(r"[.,]", "merged_with_previous"),
                          split(r"\p{P}", "contiguous"),
                          pre_tokenizers.Digits(individual_digits=False)), {}, None, "<|end|>"),
}  # fmt: skip

WORDS = (
    "the quick brown fox don't DON'T we'll They'Re x1234567 3.14159 foo_bar(baz[0]) http://a.b/c?d=e "
    "naïve café Straße ĳ ŉ ſ K'S o\u017f 'ſ Å e\u0301 o\u0302\u0323 \u1e69 \ufb01 ﷺ Ω Ελλάδα Привет мир שלום "
    "עולם مرحبا नमस्ते दुनिया 你好世界 こんにちは カタカナ 한국어 ไทย ខ្មែរ አማርኛ ᏣᎳᎩ ⅷ ² ½ ٣ १२३ ৪ "
    "😀 👩‍👩‍👧‍👦 🇩🇪 👍🏽 ❤️ ☃ ∑∫√ € ™ … — « » “quoted” `` <b> </s> <unk> <0x41> ▁ Ġ Ċ"
).split(" ")
SPACES = [" ", "  ", "\n", "\n\n", "\r\n", "\t", " \n ", "\u00a0", "\u2003", "\u2028", "\u3000", "\u0085",
          "\u180e", "\u200b", "\ufeff", "\x0b", "\x0c", " " * 20, "\n" * 9, "\t\t  \n"]  # fmt: skip


def corpus():
    generator = random.Random(5)
    return [" ".join(generator.choices(WORDS, k=60)) for _ in range(200)]


def any_character(generator):
    limit = generator.choice([0x80, 0x250, 0x3000, 0xFFFF, 0x10FFFF])
    code = generator.randrange(limit)
    return " " if 0xD800 <= code < 0xE000 else chr(code)


def fuzzed(seed, special, count=400):
    """Texts from words, white space, special tokens and random characters of all planes."""
    generator = random.Random(seed)
    parts = [
        lambda: generator.choice(WORDS),
        lambda: generator.choice(SPACES),
        lambda: any_character(generator),
        lambda: any_character(generator) + chr(generator.randrange(0x300, 0x370)),
        lambda: "".join(any_character(generator) for _ in range(generator.randrange(1, 8))),
        lambda: generator.choice("aA1 .,'\n") * generator.randrange(1, 70),
        lambda: generator.choice(special),
    ]
    weights = [6, 5, 2, 1, 1, 1, 1]
    texts = ["", " ", "\n", "a", "  a", "a  ", "\u0301", *special, *WORDS, *SPACES]
    for _ in range(count):
        chosen = generator.choices(parts, weights, k=generator.randrange(1, 40))
        texts.append("".join(part() for part in chosen))
    return texts


def every_character():
    """Texts that hold every code point of the planes in use, each between letters."""
    used = [range(0xD800), range(0xE000, 0x33500), range(0xE0000, 0xE0200), range(0x10FFF0, 0x110000)]
    codes = [code for plane in used for code in plane]
    return [" xy".join(map(chr, codes[i : i + 2048])) for i in range(0, len(codes), 2048)]


@pytest.fixture
def same_ids(coda, tmp_path):
    """Checks that `coda` gives a reader's ids for texts; all in one file, and one by one if not."""

    def ours(model, path):
        done = coda("tokenize", "--model", model, "--file", path, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["ids"]

    def check(model, theirs, texts):
        path = tmp_path / "text"
        path.write_bytes("|\n".join(texts).encode())
        if ours(model, path) == theirs("|\n".join(texts)):
            return
        for text in texts:
            path.write_bytes(text.encode())
            assert ours(model, path) == theirs(text), ascii(text)
        raise AssertionError("the texts differ only when joined")

    return check


def special_tokens(bos, eos):
    plain = [AddedToken(token, special=True, normalized=False) for token in (bos, eos) if token]
    return [
        *plain,
        AddedToken("<|im_start|>", special=True, normalized=False),
        AddedToken("<mask>", special=True, lstrip=True, normalized=False),
        AddedToken("<right>", special=True, rstrip=True, normalized=False),
    ]


def family(name, model):
    normalizer, pre_tokenizer, _, _, _ = FAMILIES[name]
    raw = Tokenizer(model)
    if normalizer:
        raw.normalizer = normalizer
    raw.pre_tokenizer = pre_tokenizer
    raw.decoder = decoders.ByteLevel()
    return raw


def make(folder, name):
    """A tokenizer of the family, trained and saved by transformers; returns the raw tokenizer."""
    _, _, options, bos, eos = FAMILIES[name]
    raw = family(name, models.BPE(**options))
    trainer = trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    raw.train_from_iterator(corpus(), trainer)
    raw.add_special_tokens(special_tokens(bos, eos))
    raw.add_tokens([AddedToken("fox", single_word=True), "naïve café", AddedToken("e\u0301"), "  x "])
    level = processors.ByteLevel(trim_offsets=False)
    raw.post_processor = level
    if bos:
        template = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, raw.token_to_id(bos))]
        )
        raw.post_processor = processors.Sequence([level, template])
    fast = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token=bos, eos_token=eos)
    fast.save_pretrained(folder)
    return raw


SPECIAL = ["<|endoftext|>", "<|begin_of_text|>", "<|im_start|>", "<mask>", " <mask> ", "\n<mask>",
           "<right> \n a", "<right>", "fox", "fox.", "foxes", "naïve café", "e\u0301", "  x ", "<|im"]  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_ids_are_those_of_tokenizers(same_ids, tmp_path, name):
    folder = tmp_path / name
    raw = make(folder, name)
    reader = AutoTokenizer.from_pretrained(folder)

    def theirs(text):
        return raw.encode(text, add_special_tokens=False).ids

    texts = fuzzed(3, SPECIAL)
    assert reader("".join(texts), add_special_tokens=False).input_ids == theirs("".join(texts))
    same_ids(folder, theirs, texts)


@pytest.mark.parametrize("name", FAMILIES)
def test_words_are_those_of_tokenizers(same_ids, tmp_path, name):
    """Any two bytes of a word merge, so that the ids show where words begin, for every character."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(a, b) for a in letters for b in letters]
    vocab = {piece: i for i, piece in enumerate([*letters, *(a + b for a, b in pairs)])}
    raw = family(name, models.BPE(vocab, pairs))
    raw.save(str(tmp_path / "tokenizer.json"))
    texts = [*every_character(), *fuzzed(8, WORDS, count=200)]
    same_ids(tmp_path, lambda text: raw.encode(text, add_special_tokens=False).ids, texts)


def test_merges_are_read_in_both_spellings(same_ids, tmp_path):
    raw = make(tmp_path, "llama3")
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    pairs = content["model"]["merges"]
    assert isinstance(pairs[0], list)
    content["model"]["merges"] = [" ".join(pair) for pair in pairs]
    path.write_text(json.dumps(content))
    same_ids(tmp_path, lambda text: raw.encode(text, add_special_tokens=False).ids, fuzzed(4, SPECIAL))


def test_ignored_merges(same_ids, tmp_path):
    """A word that is in the vocabulary, but that no merge reaches."""
    raw = make(tmp_path, "llama3")
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"]["Ġqui"] = len(content["model"]["vocab"]) + 100
    assert not any(a + b == "Ġqui" for a, b in content["model"]["merges"])
    for ignores in (True, False):
        content["model"]["ignore_merges"] = ignores
        path.write_text(json.dumps(content))
        raw = Tokenizer.from_file(str(path))
        assert (len(raw.encode("the qui", add_special_tokens=False).ids) == 2) == ignores
        same_ids(tmp_path, lambda text: raw.encode(text, add_special_tokens=False).ids, ["the qui"])  # noqa: B023


def test_begin_is_what_post_processing_adds(coda, tmp_path):
    for name in ("llama3", "qwen2", "prefix_space"):
        folder = tmp_path / name
        make(folder, name)
        done = coda("tokenize", "--model", folder, "--text", "the fox", "--begin", "--json")
        assert json.loads(done.stdout)["ids"] == AutoTokenizer.from_pretrained(folder)("the fox").input_ids


def test_decoding_gives_the_text_back(coda, tmp_path):
    make(tmp_path, "llama3")
    for text in ("".join(WORDS), " a  b\n\n", "x\x00y\x7f\ufffd"):
        path = tmp_path / "text"
        path.write_bytes(text.encode())
        done = coda("tokenize", "--model", tmp_path, "--file", path, "--json")
        assert json.loads(done.stdout)["text"] == text


def test_invalid_utf8_counts_as_replaced(coda, tmp_path):
    raw = make(tmp_path, "gpt2")
    generator = random.Random(7)
    valid = "aé世😀".encode()
    for _ in range(50):
        spoilt = bytearray(valid * 4)
        for _ in range(5):
            spoilt[generator.randrange(len(spoilt))] = generator.randrange(256)
        path = tmp_path / "text"
        path.write_bytes(spoilt)
        done = coda("tokenize", "--model", tmp_path, "--file", path, "--json")
        text = spoilt.decode(errors="replace")
        assert json.loads(done.stdout)["ids"] == raw.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("options", [("--vocab", 700), ("--tokenizer", "bytes")], ids=str)
def test_a_run_has_the_ids_of_its_tokenizer_json(coda, same_ids, tmp_path, options):
    """What `coda train` writes: also where a text spells a control, begins with spaces, or has
    characters that are no piece."""
    (tmp_path / "text.txt").write_text("\n".join(corpus()[:100]))
    done = coda(
        "train", "--data", tmp_path / "text.txt", "--d-model", 16, "--layers", 1, "--heads", 2,
        "--seq", 16, "--batch", 1, "--steps", 1, "--out", tmp_path / "run", *options,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reader = AutoTokenizer.from_pretrained(tmp_path / "run")
    special = ["<s>", "</s>", "<unk>", " <s> ", "<0x0A>", "\u2581", "\u2581 "]

    def theirs(text):
        return reader(text, add_special_tokens=False).input_ids

    same_ids(tmp_path / "run", theirs, fuzzed(9, special))
    for text in special:
        same_ids(tmp_path / "run", theirs, [text])


MARKED = {
    "prepended": {"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}},
    "metaspace_first": {"normalizer": None, "pre_tokenizer": {
        "type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}},
    "metaspace_always": {"normalizer": None, "pre_tokenizer": {
        "type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}},
}  # fmt: skip


@pytest.mark.parametrize("name", MARKED)
def test_characters_with_byte_fallback(coda, same_ids, tmp_path, name):
    """SentencePiece models as transformers converts them: spaces are marks, rare characters bytes."""
    (tmp_path / "text.txt").write_text("\n".join(corpus()[:60]))
    done = coda("train", "--data", tmp_path / "text.txt", "--vocab", 600, "--d-model", 16, "--layers", 1,
                "--heads", 2, "--seq", 16, "--batch", 1, "--steps", 1, "--out", tmp_path / "run")  # fmt: skip
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "run" / "tokenizer.json").read_text())
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**content, **MARKED[name]}))
    raw = Tokenizer.from_file(str(path))
    texts = fuzzed(12, ["<s>", "</s>", " <s> x"], count=60)
    for text in ["", " a", "a  b", "<s> a", *texts[-5:]]:
        same_ids(tmp_path, lambda t: raw.encode(t, add_special_tokens=False).ids, [text])
    same_ids(tmp_path, lambda t: raw.encode(t, add_special_tokens=False).ids, texts)


def test_training_keeps_the_files_of_a_model(coda, tmp_path):
    """From a folder that has only tokenizer.json: train, evaluate, generate; the files stay as they
    are, and AutoTokenizer reads the run."""
    source, run, text = tmp_path / "source", tmp_path / "run", tmp_path / "text.txt"
    raw = make(source, "llama3")
    random_llama(source, seed=1, vocab_size=raw.get_vocab_size() + 7)
    text.write_text("\n".join(corpus()[:40]))
    train = ["train", "--model", source, "--data", text, "--seq", 16, "--batch", 1, "--steps", 1]
    done = coda(*train, "--out", run)
    assert done.returncode == 0, done.stderr
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (run / name).read_bytes() == (source / name).read_bytes(), name
    assert not (run / "tokenizer.model").exists()
    done = coda("eval", "--model", run, "--data", text, "--held-out", "--seq", 16, "--json")
    assert done.returncode == 0, done.stderr
    done = coda("generate", "--model", run, "--prompt", "the fox", "--tokens", 3, "--json")
    assert done.returncode == 0, done.stderr
    assert AutoModelForCausalLM.from_pretrained(run).config.vocab_size == raw.get_vocab_size() + 7
    assert AutoTokenizer.from_pretrained(run)("the fox").input_ids == raw.encode("the fox").ids
