#!/usr/bin/env python3
"""Training steps of the same LLaMA on one GPU, coda and transformers taking turns.

    train_step_cuda.py STEP_CUDA [--coda "MORE"]... [--rounds 10] [--peer liger|eager] [--attention sdpa|cudnn]

STEP_CUDA is the program benchmarks/step_cuda.cpp (target step_cuda); MORE are options for it, --coda
again is one more racer. Each runs as a process of its own and steps when told to. The peer:
transformers' LlamaForCausalLM in bf16, gradients and moments too, fused AdamW, clipping by the global
norm, with Liger's kernels (the package liger-kernel) unless `eager`; --attention cudnn asks SDPA for
cuDNN's kernels in place of its own choice. None computes while another does; of the two steps of a turn
the second counts. A step is forward, backward, norm, clipping and update. Prints medians, and memory:
what the device lost to the process (its context included), and of the peer also the most that PyTorch
had allocated.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import time

from race import Worker, take_turns

SIZES = dict(d=2048, layers=16, heads=32, kv_heads=8, d_ff=8192, vocab=128256, seq=8192, batch=2)


def torch_worker(arguments):
    """Steps for each line of stdin, and says how long they took."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    s = SIZES
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=s["d"], num_hidden_layers=s["layers"], num_attention_heads=s["heads"],
        num_key_value_heads=s["kv_heads"], head_dim=s["d"] // s["heads"],
        intermediate_size=s["d_ff"], vocab_size=s["vocab"], max_position_embeddings=s["seq"],
        tie_word_embeddings=True, rms_norm_eps=1e-5, attn_implementation="sdpa")
    if arguments.peer == "liger":
        from liger_kernel.transformers import apply_liger_kernel_to_llama
        apply_liger_kernel_to_llama()
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.config.use_cache = False
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.9, 0.95), fused=True)
    ids = torch.randint(0, s["vocab"], (s["batch"], s["seq"]), device="cuda")
    if arguments.attention == "cudnn":
        from torch.nn.attention import SDPBackend, sdpa_kernel
        kernels = lambda: sdpa_kernel(SDPBackend.CUDNN_ATTENTION)
    else:
        kernels = contextlib.nullcontext

    def step():
        start = time.perf_counter()
        with kernels():
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
        loss = loss.item()
        middle = time.perf_counter()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        return {"loss": loss, "seconds": time.perf_counter() - start,
                "passes_seconds": middle - start}

    for _ in range(3):
        step()
    torch.cuda.reset_peak_memory_stats()
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(step()), flush=True)
    free, total = torch.cuda.mem_get_info()
    print(json.dumps({"lost_bytes": total - free,
                      "allocated_bytes": torch.cuda.max_memory_allocated()}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step_cuda")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=120,
                        help="begin no round after this time, but for three (default: 120)")
    parser.add_argument("--peer", choices=["liger", "eager"], default="liger")
    parser.add_argument("--attention", choices=["sdpa", "cudnn"], default="sdpa")
    parser.add_argument("--torch-worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--coda", action="append", metavar="MORE",
                        help='options for STEP_CUDA (default: "--held-price 1.5")')
    arguments = parser.parse_args()
    if arguments.torch_worker:
        return torch_worker(arguments)

    sizes = [text for name, value in SIZES.items()
             for text in ("--" + name.replace("_", "-"), str(value))]
    # One after the other: each says what the device has lost when it is ready.
    racers = arguments.coda or ["--held-price 1.5"]
    workers = {}
    for options in racers:
        name = "coda" + (f" {options}" if len(racers) > 1 else "")
        workers[name] = Worker([arguments.step_cuda, "--stdin", *sizes, *options.split()],
                               dict(os.environ))
    workers[arguments.peer] = Worker(
        [sys.executable, __file__, "--torch-worker", "--peer", arguments.peer, "--attention",
         arguments.attention, arguments.step_cuda], dict(os.environ))
    steps = take_turns(workers, arguments.rounds, arguments.seconds, before=1)
    tokens = SIZES["seq"] * SIZES["batch"]
    medians = {}
    lost = 0
    memory = {}
    # The last first, while the others hold theirs.
    for name in reversed(workers):
        memory[name] = workers[name].finish()
    for name in workers:
        own = memory[name]["lost_bytes"] - lost
        lost = memory[name]["lost_bytes"]
        allocated = memory[name].get("allocated_bytes")
        times = [s["seconds"] for s in steps[name]]
        passes = statistics.median(s["passes_seconds"] for s in steps[name])
        medians[name] = statistics.median(times)
        print(f"{name:<6}: step {medians[name] * 1e3:7.1f} ms (least {min(times) * 1e3:.1f}), of it "
              f"forward and backward {passes * 1e3:7.1f}   {tokens / medians[name] * 1e-3:5.1f}k "
              f"tokens/s   memory {own / 2**30:.1f} GiB"
              + (f", allocated {allocated / 2**30:.1f}" if allocated else "")
              + f"   loss {steps[name][-1]['loss']:.3f}")
    print(f"{len(steps[arguments.peer])} rounds, attention {arguments.attention}")
    for name in list(workers)[:-1]:
        print(f"{arguments.peer} / {name} = {medians[arguments.peer] / medians[name]:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
