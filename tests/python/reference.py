"""Reference results: what transformers computes for a model, in the form of tests/golden."""

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM


def float64_case(folder, input_ids, labels):
    """Runs the model in `folder` in float64 and returns the tensors of a case file.

    labels[b, t] is the target of logits[b, t] (no shift); -100 does not count.
    """
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager"
    )
    model.train()
    logits = model(input_ids=input_ids, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=-100
    )
    loss.backward()
    case = {
        "input_ids": input_ids,
        "labels": labels,
        "logits": logits.detach().float().contiguous(),
        "loss": loss.detach().reshape(1),
    }
    for name, parameter in model.named_parameters():
        case[f"grad.{name}"] = parameter.grad.float().contiguous()
    return case


def random_case(folder, vocab, batch, length, seed, ignored=0.15):
    """Like float64_case, on random tokens of which a share of `ignored` has no label."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocab, (batch, length + 1), generator=generator)
    labels = tokens[:, 1:].clone()
    labels[torch.rand(labels.shape, generator=generator) < ignored] = -100
    return float64_case(folder, tokens[:, :-1].contiguous(), labels)


def write_case(path, case):
    save_file(case, str(path))


def random_llama(folder, seed=0, shard_size="1GB", model_type="llama", **config):
    """Saves a small LlamaForCausalLM (or what `model_type` says) with random fp32 weights in `folder`; no weight is near its
    usual start (norm weights are away from 1), so that one that is left out shows."""
    sizes = {
        "vocab_size": 99,
        "hidden_size": 64,
        "intermediate_size": 144,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
    }
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(model_type, **{**sizes, **config}), dtype=torch.float32
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.3 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
    model.save_pretrained(folder, max_shard_size=shard_size)
    return model
