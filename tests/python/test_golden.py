"""tests/golden still holds what transformers computes."""

import pytest
import torch
from conftest import GOLDEN
from reference import float64_case
from safetensors.torch import load_file

MODELS = sorted(path.parent.name for path in GOLDEN.glob("*/config.json"))


def test_both_models_are_there():
    assert MODELS == ["llama-gqa", "llama-mha-odd"]


@pytest.mark.parametrize("name", MODELS)
def test_case_is_what_transformers_computes(name):
    recorded = load_file(GOLDEN / name / "case.safetensors")
    fresh = float64_case(GOLDEN / name, recorded["input_ids"], recorded["labels"])
    assert fresh.keys() == recorded.keys()
    for key, value in recorded.items():
        # The float64 model keeps norm, softmax and RoPE steps in fp32, whose rounding (eps 6e-8,
        # over sums of up to 176 terms, two layers) may differ between processors.
        scale = value.abs().max().double()
        error = (fresh[key].double() - value.double()).abs().max()
        assert error <= 5e-6 * scale, f"{key}: error {error:.2e}, scale {scale:.2e}"
