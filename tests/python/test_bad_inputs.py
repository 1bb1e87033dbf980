"""Bad files end the program with exit code 2 and one message that names the file at fault."""

import json
import struct

import pytest
import torch
from reference import random_case, random_llama, write_case
from safetensors.torch import load_file, save_file

TIMEOUT = 60


@pytest.fixture
def model(tmp_path):
    """A good model folder with its case; each test spoils one thing in it."""
    random_llama(tmp_path)
    write_case(tmp_path / "case.safetensors", random_case(tmp_path, 99, 1, 9, seed=3))
    return tmp_path


def change_config(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for key, value in changes.items():
        if value is None:
            config.pop(key)
        else:
            config[key] = value
    path.write_text(json.dumps(config))


def change_tensors(path, change):
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def spoil_header(path, length):
    content = bytearray(path.read_bytes())
    content[:8] = struct.pack("<Q", length)
    path.write_bytes(content)


def reshape_norm(tensors):
    tensors["model.norm.weight"] = torch.ones(63)


def token_out_of_range(tensors):
    tensors["input_ids"][0, 3] = 99


def label_out_of_range(tensors):
    tensors["labels"][0, 3] = 99


# name -> (what to do to the model folder, the file or tensor that the message must name). A weight
# that is in no file has no file to name: the message names the weight and the folder.
SPOILED = {
    "no_config": (lambda m: (m / "config.json").unlink(), "config.json"),
    "config_is_not_json": (lambda m: (m / "config.json").write_text('{"a": '), "config.json"),
    "config_is_a_list": (lambda m: (m / "config.json").write_text("[1]"), "config.json"),
    "no_hidden_size": (lambda m: change_config(m, hidden_size=None), "config.json"),
    "hidden_size_is_text": (lambda m: change_config(m, hidden_size="wide"), "config.json"),
    "hidden_size_is_negative": (lambda m: change_config(m, hidden_size=-64), "config.json"),
    "layers_are_negative": (lambda m: change_config(m, num_hidden_layers=-1), "config.json"),
    "heads_are_zero": (lambda m: change_config(m, num_attention_heads=0), "config.json"),
    "kv_heads_do_not_divide": (lambda m: change_config(m, num_key_value_heads=3), "config.json"),
    "another_family": (
        lambda m: change_config(m, model_type="gpt2", architectures=["GPT2LMHeadModel"]),
        "config.json",
    ),
    "unknown_rope": (
        lambda m: change_config(m, rope_parameters={"rope_type": "spiral", "rope_theta": 1e4}),
        "config.json",
    ),
    "no_weights": (lambda m: (m / "model.safetensors").unlink(), "model.safetensors"),
    "weights_are_empty": (
        lambda m: (m / "model.safetensors").write_bytes(b""),
        "model.safetensors",
    ),
    "weights_are_cut": (
        lambda m: (m / "model.safetensors").write_bytes(
            (m / "model.safetensors").read_bytes()[:-100]
        ),
        "model.safetensors",
    ),
    "header_longer_than_file": (
        lambda m: spoil_header(m / "model.safetensors", 1 << 40),
        "model.safetensors",
    ),
    "header_length_overflows": (
        lambda m: spoil_header(m / "model.safetensors", (1 << 64) - 1),
        "model.safetensors",
    ),
    "header_is_not_json": (
        lambda m: spoil_header(m / "model.safetensors", 17),
        "model.safetensors",
    ),
    "a_weight_is_missing": (
        lambda m: change_tensors(m / "model.safetensors", lambda t: t.pop("model.norm.weight")),
        "model.norm.weight",
    ),
    "a_weight_has_another_shape": (
        lambda m: change_tensors(m / "model.safetensors", reshape_norm),
        "model.norm.weight",
    ),
    "no_case": (lambda m: (m / "case.safetensors").unlink(), "case.safetensors"),
    "case_without_tokens": (
        lambda m: change_tensors(m / "case.safetensors", lambda t: t.pop("input_ids")),
        "case.safetensors",
    ),
    "token_out_of_range": (
        lambda m: change_tensors(m / "case.safetensors", token_out_of_range),
        "input_ids",
    ),
    "label_out_of_range": (
        lambda m: change_tensors(m / "case.safetensors", label_out_of_range),
        "labels",
    ),
}


CULPRIT_FILE = {
    "model.norm.weight": "model.safetensors",
    "input_ids": "case.safetensors",
    "labels": "case.safetensors",
}


def assert_refused(done, *words):
    assert done.returncode == 2, f"exit {done.returncode}\n{done.stdout}{done.stderr}"
    for word in words:
        assert word in done.stderr, done.stderr


@pytest.mark.parametrize("name", SPOILED)
def test_spoiled_model(coda, model, name):
    spoil, culprit = SPOILED[name]
    spoil(model)
    done = coda(
        "verify", "--model", model, "--case", model / "case.safetensors", timeout=TIMEOUT
    )
    file = model.name if name == "a_weight_is_missing" else CULPRIT_FILE.get(culprit, culprit)
    assert_refused(done, culprit, file)


def test_index_names_a_shard_that_is_missing(coda, tmp_path):
    random_llama(tmp_path, shard_size="60KB")
    write_case(tmp_path / "case.safetensors", random_case(tmp_path, 99, 1, 9, seed=3))
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    shard.unlink()
    done = coda(
        "verify", "--model", tmp_path, "--case", tmp_path / "case.safetensors", timeout=TIMEOUT
    )
    assert_refused(done, shard.name)


def train(coda, tmp_path, data, *more):
    options = {"--data": data, "--tokenizer": "bytes", "--d-model": 32, "--layers": 1, "--heads": 2,
               "--d-ff": 64, "--seq": 16, "--batch": 2, "--steps": 2}  # fmt: skip
    options.update(zip(more[::2], more[1::2], strict=True))
    words = [word for option in options.items() for word in option]
    return coda("train", *words, "--out", tmp_path / "run", timeout=TIMEOUT)


def test_data_is_missing(coda, tmp_path):
    assert_refused(train(coda, tmp_path, tmp_path / "no_such.txt"), "no_such.txt")


def test_data_is_empty(coda, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    assert_refused(train(coda, tmp_path, tmp_path / "empty.txt"), "empty.txt")


def test_resume_from_nothing(coda, tmp_path):
    done = coda("train", "--resume", tmp_path / "nowhere", timeout=TIMEOUT)
    assert_refused(done, "nowhere")


OUT_OF_RANGE = [("--d-model", 33), ("--heads", 3), ("--steps", -1), ("--batch", 2**31)]


@pytest.mark.parametrize("option", OUT_OF_RANGE)
def test_option_out_of_range(coda, tmp_path, option):
    (tmp_path / "text.txt").write_text("In the beginning there was a sentence. " * 200)
    done = train(coda, tmp_path, tmp_path / "text.txt", *option)
    assert_refused(done, option[0], str(option[1]))
    assert not (tmp_path / "run").exists()


def test_a_block_that_no_memory_holds(coda):
    done = coda("bench", "llama-layer", "--d-model", 2**19, "--tokens", 8, timeout=TIMEOUT)
    assert_refused(done, "block: expected operands and results that fit into", "Lower --d-model")


def test_a_temporary_folder_that_is_not_there(coda, tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("In the beginning there was a sentence. " * 200)
    made = train(coda, tmp_path, tmp_path / "text.txt")
    assert made.returncode == 0, made.stderr
    more = tmp_path / "more.txt"
    more.write_text("Other text. " * 20)
    blank = tmp_path / "a b"
    blank.mkdir()
    evaluate = ["eval", "--model", tmp_path / "run", "--data", more]
    monkeypatch.setenv("TMPDIR", str(blank))
    done = coda(*evaluate, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    assert_refused(coda(*evaluate, timeout=TIMEOUT), "TMPDIR", "nowhere", "Set TMPDIR")


def test_unknown_subcommand(coda):
    assert_refused(coda("trian", timeout=TIMEOUT), "trian")
