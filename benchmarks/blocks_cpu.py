#!/usr/bin/env python3
"""One block, forward and backward, on the CPU: coda and PyTorch taking turns.

    blocks_cpu.py CODA head      [--dtype f32|bf16] [--tokens 1024] [--d-model 512] [--vocab 16384]
    blocks_cpu.py CODA attention [--dtype f32|bf16] [--tokens 4096] [--d-model 256]

head: mean cross-entropy of hidden W^T, against torch.nn.functional.linear_cross_entropy, plain and
chunked. attention: causal, one sequence, heads of 64, against scaled_dot_product_attention. Prints
medians of wall and processor time and how far the peak memory of each process grew over its inputs
and outputs.
"""

import argparse
import json
import os
import statistics
import sys
import time

from race import Worker, environment, peak_mebibytes, take_turns


def torch_worker(arguments):
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    dtype = torch.bfloat16 if arguments.dtype == "bf16" else torch.float32
    tokens, d = arguments.tokens, arguments.d_model
    if arguments.block == "head":
        hidden = torch.randn(tokens, d, dtype=dtype, requires_grad=True)
        head = (torch.randn(arguments.vocab, d) / d**0.5).to(dtype).requires_grad_()
        targets = torch.randint(0, arguments.vocab, (tokens,))
        options = torch.nn.LinearCrossEntropyOptions() if arguments.chunked else None
        inputs = [hidden, head]

        def forward():
            return F.linear_cross_entropy(hidden, head, targets, options=options)

        upstream = None
    else:
        shape = (1, d // 64, tokens, 64)
        inputs = [torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3)]

        def forward():
            return F.scaled_dot_product_attention(*inputs, is_causal=True)

        upstream = torch.randn(shape, dtype=dtype)

    gradients = [torch.zeros_like(x) for x in inputs]
    for x, gradient in zip(inputs, gradients):
        x.grad = gradient

    def step():
        for x in inputs:
            x.grad = None
        start = time.perf_counter()
        result = forward()
        middle = time.perf_counter()
        result.backward(upstream)
        return middle - start, time.perf_counter() - middle

    before = peak_mebibytes()
    del gradients
    step()
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        processor = time.process_time()
        forward_seconds, backward_seconds = step()
        print(json.dumps({
            "seconds": forward_seconds + backward_seconds,
            "forward_seconds": forward_seconds,
            "processor_seconds": time.process_time() - processor,
        }), flush=True)
    peak = peak_mebibytes()
    print(json.dumps({"peak_mebibytes": peak, "extra_mebibytes": peak - before}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("coda")
    parser.add_argument("block", choices=["head", "attention"])
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--d-model", type=int)
    parser.add_argument("--vocab", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=300,
                        help="begin no round after this time, but for three (default: 300)")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--torch-worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--chunked", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    is_head = arguments.block == "head"
    arguments.tokens = arguments.tokens or (1024 if is_head else 4096)
    arguments.d_model = arguments.d_model or (512 if is_head else 256)
    if arguments.torch_worker:
        return torch_worker(arguments)

    variables = environment(arguments.threads)
    common = ["--dtype", arguments.dtype, "--threads", str(arguments.threads), "--tokens",
              str(arguments.tokens), "--d-model", str(arguments.d_model)]
    name = "llama-head" if is_head else "attention"
    coda = [arguments.coda, "bench", name, "--json", "--stdin", "--head-dim", "64", *common]
    torch = [sys.executable, __file__, arguments.coda, arguments.block, "--torch-worker", *common]
    if is_head:
        coda += ["--vocab", str(arguments.vocab)]
        torch += ["--vocab", str(arguments.vocab)]
    workers = {"coda": Worker(coda, variables), "torch": Worker(torch, variables)}
    if is_head:
        workers["torch, chunked"] = Worker([*torch, "--chunked"], variables)
    steps = take_turns(workers, arguments.rounds, arguments.seconds)
    print(f"{arguments.block}, {arguments.dtype}, {arguments.threads} threads, {arguments.tokens} x "
          f"{arguments.d_model}, {len(steps['coda'])} rounds")
    times = {}
    for name, worker in workers.items():
        last = worker.finish()
        wall, forward, times[name] = (
            statistics.median(s[key] for s in steps[name]) * 1e3
            for key in ("seconds", "forward_seconds", "processor_seconds"))
        least = min(s["processor_seconds"] for s in steps[name]) * 1e3
        print(f"{name:<15} wall {wall:8.1f} ms (forward {forward:7.1f})   processor "
              f"{times[name]:8.1f} ms (least {least:.1f})   {times[name] / times['coda']:.2f} x coda's   "
              f"extra memory {last['extra_mebibytes']:.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
