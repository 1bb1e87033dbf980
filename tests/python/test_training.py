"""What `coda train` writes is a Hugging Face folder, and transformers computes the same with it."""

import pytest
import torch
from reference import random_case, write_case
from transformers import LlamaForCausalLM

TEXT = "The quick brown fox jumps over the lazy dog, and the dog does not mind it at all.\n"


@pytest.fixture(scope="module", params=[(), ("--dtype", "bf16")], ids=["f32", "bf16"])
def trained(request, coda, tmp_path_factory):
    """The run folder of two steps on a few sentences, and the model folder in it."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "text.txt").write_text(TEXT * 100)
    done = coda(
        "train", "--data", folder / "text.txt", "--tokenizer", "bytes", "--d-model", 32,
        "--layers", 2, "--heads", 4, "--kv-heads", 2, "--d-ff", 80, "--seq", 24, "--batch", 3,
        "--steps", 2, "--lr", 1e-3, "--seed", 7, "--out", folder / "run", *request.param,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (config,) = (folder / "run").rglob("config.json")
    return config.parent


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
