#!/usr/bin/env python3
"""Training steps of the same LLaMA on the CPU, coda and PyTorch taking turns.

    train_step_cpu.py CODA [--dtype f32|bf16] [--rounds 20] [--seconds 300] [--threads N] [--eager]

CODA is the coda binary; it runs as a process of its own (`coda bench train --stdin`) and steps when
told to. PyTorch: transformers' LlamaForCausalLM, fused AdamW, clipping by the global norm,
torch.compile; bf16 is autocast over fp32 weights. Neither computes while the other does. Prints the
medians of wall and processor time, and peak memory of each process.
"""

import argparse
import json
import os
import statistics
import sys
import time

from race import Worker, environment, peak_mebibytes, take_turns

SIZES = dict(d_model=256, layers=4, heads=4, d_ff=768, vocab=4096, seq=256, batch=8)


def torch_worker(arguments):
    """Steps for each line of stdin, and says how long they took."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    s = SIZES
    config = LlamaConfig(
        hidden_size=s["d_model"], num_hidden_layers=s["layers"], num_attention_heads=s["heads"],
        num_key_value_heads=s["heads"], intermediate_size=s["d_ff"], vocab_size=s["vocab"],
        max_position_embeddings=2048, tie_word_embeddings=False, attn_implementation="sdpa")
    model = LlamaForCausalLM(config)
    model.config.use_cache = False
    step_model = model if arguments.eager else torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=True)
    ids = torch.randint(0, s["vocab"], (s["batch"], s["seq"]))
    bf16 = arguments.dtype == "bf16"

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = step_model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    start = time.perf_counter()
    step()
    if time.perf_counter() - start < 60:  # compiled in there; without native bf16 a step takes long
        step()
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        start, processor = time.perf_counter(), time.process_time()
        loss = step()
        print(json.dumps({
            "loss": loss,
            "seconds": time.perf_counter() - start,
            "processor_seconds": time.process_time() - processor,
        }), flush=True)
    print(json.dumps({"peak_mebibytes": peak_mebibytes()}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("coda", nargs="?", default="build/coda")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=300,
                        help="begin no round after this time, but for three (default: 300)")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--eager", action="store_true", help="PyTorch without torch.compile")
    parser.add_argument("--torch-worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.torch_worker:
        return torch_worker(arguments)

    variables = environment(arguments.threads)
    common = ["--dtype", arguments.dtype, "--threads", str(arguments.threads)]
    eager = ["--eager"] if arguments.eager else []
    workers = {
        "coda": Worker([arguments.coda, "bench", "train", "--json", "--stdin", *common], variables),
        "torch": Worker([sys.executable, __file__, "--torch-worker", *common, *eager], variables),
    }
    steps = take_turns(workers, arguments.rounds, arguments.seconds)
    tokens = SIZES["seq"] * SIZES["batch"]
    medians = {}
    for name, worker in workers.items():
        last = worker.finish()
        wall, processor = (statistics.median(s[key] for s in steps[name])
                           for key in ("seconds", "processor_seconds"))
        medians[name] = wall, processor
        print(f"{name:<6} wall {wall * 1e3:8.1f} ms {tokens / wall:7.0f} tokens/s   processor "
              f"{processor * 1e3:8.1f} ms (least {min(s['processor_seconds'] for s in steps[name]) * 1e3:.1f})   "
              f"peak {last['peak_mebibytes']:.0f} MiB")
        for part, ms in last.get("milliseconds_of", {}).items():
            print(f"         {part:<28} {ms:8.2f} ms")
    ratios = [t / c for t, c in zip(medians["torch"], medians["coda"])]
    print(f"{arguments.dtype}, {arguments.threads} threads, {len(steps['coda'])} rounds: torch / coda = {ratios[0]:.2f} wall, "
          f"{ratios[1]:.2f} processor")
    return 0


if __name__ == "__main__":
    sys.exit(main())
