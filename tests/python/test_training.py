"""What `coda train` writes is a Hugging Face folder, and transformers computes the same with it."""

import json

import pytest
import torch
from reference import random_case, write_case
from transformers import AutoTokenizer, LlamaForCausalLM

TEXT = "The quick brown fox jumps over the lazy dog, and the dog does not mind it at all.\n"
SIZES = ["--d-model", 32, "--layers", 2, "--heads", 4, "--kv-heads", 2, "--d-ff", 80]


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
    done = coda("generate", "--model", run, "--prompt", prompt, "--tokens", 12,
                "--temperature", 0, "--json")  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    text = json.loads(done.stdout)["text"]

    reader = AutoTokenizer.from_pretrained(run)
    ids = reader(prompt, return_tensors="pt").input_ids
    model = LlamaForCausalLM.from_pretrained(run, dtype=torch.float32)
    every = model.generate(ids, max_new_tokens=12, do_sample=False)[0]
    assert prompt + text == reader.decode(every, skip_special_tokens=True)
    assert (prompt + text) in TEXT * 2


def test_a_resumed_run_equals_one_that_did_not_stop(coda, tmp_path):
    options = ["--tokenizer", "bytes", "--steps", 6, "--accumulate", 2]
    whole = train(coda, tmp_path, *options, run="whole")
    parts = train(coda, tmp_path, *options, "--stop-after", 2, run="parts")
    done = coda("train", "--resume", parts, "--threads", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    for file in ("model.safetensors", "optimizer.safetensors"):
        assert (whole / file).read_bytes() == (parts / file).read_bytes(), file
