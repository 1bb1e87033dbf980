"""`coda verify`: logits, loss and every gradient of a model folder, against transformers in float64.

An fp32 run of these models is within 2e-5 of float64 in the measure of `coda verify`: transformers'
own fp32 run is within 1.3e-6 on tests/golden, and a different order of summation costs less than ten
times that.
"""

import json

import pytest
from conftest import GOLDEN
from reference import random_case, random_llama, write_case

TOLERANCE = 2e-5
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def verify(coda, model, case):
    return coda("verify", "--model", model, "--case", case, "--tol", TOLERANCE)


def assert_verified(coda, folder, vocab=99, seed=1):
    case = folder / "case.safetensors"
    write_case(case, random_case(folder, vocab, batch=2, length=21, seed=seed))
    done = verify(coda, folder, case)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["llama-gqa", "llama-mha-odd"])
def test_golden_model(coda, name):
    done = verify(coda, GOLDEN / name, GOLDEN / name / "case.safetensors")
    assert done.returncode == 0, done.stdout + done.stderr


CONFIGS = {
    "grouped_queries": {"num_attention_heads": 8, "num_key_value_heads": 2},
    "one_key_value_head": {"num_key_value_heads": 1},
    "tied_embeddings": {"tie_word_embeddings": True},
    "wide_heads": {"head_dim": 32},
    "narrow_heads": {"head_dim": 8},
    "odd_sizes": {"hidden_size": 60, "intermediate_size": 101, "num_attention_heads": 3,
                  "num_key_value_heads": 3, "vocab_size": 53},
    "rope_theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    "rope_llama3": {"rope_parameters": {**LLAMA3, "rope_theta": 500000.0}},
    "norm_epsilon": {"rms_norm_eps": 1e-2},
    "window": {"model_type": "mistral", "sliding_window": 5},
    "window_of_two": {"model_type": "mistral", "sliding_window": 2},
    "wide_window": {"model_type": "mistral", "sliding_window": 64},
    "mistral_without_window": {"model_type": "mistral", "sliding_window": None},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_config(coda, tmp_path, name):
    random_llama(tmp_path, seed=len(name), **CONFIGS[name])
    assert_verified(coda, tmp_path, vocab=CONFIGS[name].get("vocab_size", 99))


@pytest.mark.parametrize("scaling", [None, LLAMA3], ids=["theta", "llama3"])
def test_rope_in_the_older_spelling(coda, tmp_path, scaling):
    """Before version 5 transformers wrote rope_theta and rope_scaling at the top level."""
    random_llama(tmp_path, rope_parameters={**(scaling or {"rope_type": "default"}),
                                            "rope_theta": 20000.0})
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config["rope_parameters"]
    path.write_text(json.dumps({**config, "rope_theta": 20000.0, "rope_scaling": scaling}))
    assert_verified(coda, tmp_path)


def test_rope_scaling_beside_rope_parameters(coda, tmp_path):
    """transformers lets rope_scaling hold, whole, where both stand."""
    random_llama(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 500000.0}
    config["rope_scaling"] = LLAMA3
    path.write_text(json.dumps(config))
    assert_verified(coda, tmp_path)


def test_sharded_weights(coda, tmp_path):
    random_llama(tmp_path, shard_size="60KB")
    assert not (tmp_path / "model.safetensors").exists()
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert_verified(coda, tmp_path)


def test_a_wrong_weight_is_found(coda, tmp_path):
    """`coda verify` must be able to fail: the case was made with another norm epsilon."""
    random_llama(tmp_path)
    case = tmp_path / "case.safetensors"
    write_case(case, random_case(tmp_path, 99, batch=2, length=21, seed=1))
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
    done = verify(coda, tmp_path, case)
    assert done.returncode == 1, done.stdout + done.stderr
