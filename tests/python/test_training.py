"""What `coda train` writes is a Hugging Face folder, and transformers computes the same with it."""

import json
import shutil

import pytest
import torch
from conftest import GOLDEN
from reference import random_case, write_case
from transformers import AutoTokenizer, LlamaForCausalLM

TEXT = "The quick brown fox jumps over the lazy dog, and the dog does not mind it at all.\n"
SIZES = ["--d-model", 32, "--layers", 2, "--heads", 4, "--kv-heads", 2, "--d-ff", 80]


FIRST_LETTER = 0x4E00  # a letter for each id, none of which a tokenizer changes


def letter(i):
    return chr(FIRST_LETTER + i)


def write_letter_tokenizer(folder, vocab):
    """A tokenizer.json in which id i is a letter of its own."""
    from tokenizers import Tokenizer, decoders, models

    reader = Tokenizer(models.BPE(vocab={letter(i): i for i in range(vocab)}, merges=[]))
    reader.decoder = decoders.Fuse()
    reader.save(str(folder / "tokenizer.json"))


def train(coda, folder, *options, run="run"):
    """Trains a tiny model on a repeated sentence; returns its folder."""
    (folder / "text.txt").write_text(TEXT * 100)
    done = coda(
        "train", "--data", folder / "text.txt", *SIZES, "--seq", 24, "--batch", 3,
        "--seed", 7, "--out", folder / run, *options,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / run


@pytest.fixture(scope="module", params=["f32", "bf16"])
def trained(request, coda, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    return train(coda, folder, "--tokenizer", "bytes", "--steps", 2, "--dtype", request.param)


def test_transformers_loads_it(trained):
    model, report = LlamaForCausalLM.from_pretrained(trained, output_loading_info=True)
    for trouble in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[trouble], f"{trouble}: {report[trouble]}"
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_transformers_computes_the_same(coda, trained, tmp_path):
    config = LlamaForCausalLM.from_pretrained(trained).config
    case = tmp_path / "case.safetensors"
    write_case(case, random_case(trained, config.vocab_size, batch=2, length=17, seed=5))
    done = coda("verify", "--model", trained, "--case", case, "--tol", 2e-5)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("tokenizer", [("--tokenizer", "bytes"), ("--vocab", 330)], ids=str)
def test_most_likely_continuation_is_that_of_transformers(coda, tmp_path, tokenizer):
    """Tokenizer, weights and greedy choice together. After 150 steps on one sentence the model is
    sure of every token, so that rounding decides none."""
    run = train(coda, tmp_path, *tokenizer, "--steps", 150, "--lr", 1e-2)
    prompt = "The quick brown"
    done = coda("generate", "--model", run, "--prompt", prompt, "--tokens", 8,
                "--temperature", 0, "--json")  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    text = json.loads(done.stdout)["text"]

    reader = AutoTokenizer.from_pretrained(run)
    ids = reader(prompt, return_tensors="pt").input_ids
    model = LlamaForCausalLM.from_pretrained(run, dtype=torch.float32)
    every = model.generate(ids, max_new_tokens=8, do_sample=False)[0]
    assert prompt + text == reader.decode(every, skip_special_tokens=True)
    assert (prompt + text) in TEXT * 2


@pytest.mark.parametrize("name", ["llama-gqa", "llama-mha-odd"])
def test_most_likely_continuation_of_a_golden_model(coda, tmp_path, name):
    """Greedy tokens of a random model, read from the bytes that its ids stand for. The prompt is
    prefilled, the rest decoded with the cache; transformers runs in float64 and without one. Where
    its two best logits are closer than rounding (2e-5 of the largest), either choice is right."""
    for file in ("config.json", "model.safetensors"):
        shutil.copy(GOLDEN / name / file, tmp_path / file)
    config = json.loads((tmp_path / "config.json").read_text())
    config.update(eos_token_id=None, bos_token_id=None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    vocab = config["vocab_size"]
    write_letter_tokenizer(tmp_path, vocab)
    prompt_ids = [(7 * i + 3) % vocab for i in range(9)]
    count = min(40, config["max_position_embeddings"] - len(prompt_ids))
    prompt = "".join(letter(i) for i in prompt_ids)
    done = coda("generate", "--model", tmp_path, "--prompt", prompt, "--tokens", count,
                "--temperature", 0, "--json")  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    written = [ord(c) - FIRST_LETTER for c in json.loads(done.stdout)["text"]]
    assert len(written) == count

    model = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    ids = torch.tensor([prompt_ids + written])
    logits = model(ids, use_cache=False).logits[0, len(prompt_ids) - 1 : -1]
    for position, (row, token) in enumerate(zip(logits, written)):
        assert row.max() - row[token] <= 2e-5 * row.abs().max(), (position, token)


def test_a_resumed_run_equals_one_that_did_not_stop(coda, tmp_path):
    options = ["--tokenizer", "bytes", "--steps", 6, "--accumulate", 2]
    whole = train(coda, tmp_path, *options, run="whole")
    parts = train(coda, tmp_path, *options, "--stop-after", 2, run="parts")
    done = coda("train", "--resume", parts, "--threads", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    for file in ("model.safetensors", "optimizer.safetensors"):
        assert (whole / file).read_bytes() == (parts / file).read_bytes(), file
