"""Attention by coda and by PyTorch, on one GPU: error against float64, times.

    attention_torch.py build/src/backend/cuda/attention_cuda [--time] [--small] [--kinds own,cudnn]

Every case is drawn anew, given to both, and compared with a float64 reference of this file. Errors
are relative, by Frobenius norm; a ratio is coda's error over that of PyTorch's
scaled_dot_product_attention, which runs a sequence at a time.
"""

import argparse
import math
import pathlib
import subprocess
import sys
import tempfile

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

# dtype, heads, key-value heads, head_dim, lengths
CASES = [
    ("bf16", 4, 4, 64, [512]),
    ("bf16", 8, 2, 64, [257]),
    ("bf16", 32, 8, 64, [1024, 1024]),
    ("bf16", 8, 2, 128, [700, 1, 63, 64, 65, 500]),
    ("bf16", 6, 2, 64, [5, 0, 1, 134, 0]),
    ("bf16", 2, 1, 128, [2048]),
    ("f16", 8, 8, 64, [300, 33]),
    ("f16", 8, 1, 128, [1000]),
    ("bf16", 4, 2, 64, [1]),
    ("bf16", 16, 4, 128, [100] * 20),
]
TIMED = [
    ("bf16", 32, 8, 64, [8192, 8192]),
    ("bf16", 32, 8, 128, [8192, 8192]),
    ("bf16", 32, 8, 64, [512] * 32),
]
RESULTS = ("o", "lse", "d_q", "d_k", "d_v")


def reference(q, k, v, d_o, lengths):
    """o, lse, d_q, d_k, d_v in float64, head by head."""
    out = [torch.zeros_like(t, dtype=torch.float64) for t in (q, q[..., 0], q, k, v)]
    group = q.shape[1] // k.shape[1]
    scale = 1 / math.sqrt(q.shape[2])
    begin = 0
    for length in lengths:
        rows = slice(begin, begin + length)
        begin += length
        mask = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        for h in range(q.shape[1]):
            qh, gh = q[rows, h].double(), d_o[rows, h].double()
            kh, vh = k[rows, h // group].double(), v[rows, h // group].double()
            s = (qh @ kh.T * scale).masked_fill(mask, -math.inf)
            lse = torch.logsumexp(s, 1)
            p = torch.exp(s - lse[:, None])
            o = p @ vh
            ds = p * (gh @ vh.T - (o * gh).sum(1, keepdim=True))
            out[0][rows, h], out[1][rows, h] = o, lse
            out[2][rows, h] = scale * (ds @ kh)
            out[3][rows, h // group] += scale * (ds.T @ qh)
            out[4][rows, h // group] += p.T @ gh
    return out


def by_torch(q, k, v, d_o, lengths, backend=None):
    """The same by scaled_dot_product_attention; no lse."""
    out = [torch.zeros_like(t) for t in (q, q, k, v)]
    begin = 0
    for length in lengths:
        rows = slice(begin, begin + length)
        begin += length
        if length == 0:
            continue
        args = [t[rows].transpose(0, 1)[None].detach().requires_grad_() for t in (q, k, v)]
        with sdpa_kernel(backend or [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION,
                                     SDPBackend.MATH]):
            o = torch.nn.functional.scaled_dot_product_attention(
                *args, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        o.backward(d_o[rows].transpose(0, 1)[None])
        for to, value in zip(out, (o, *(a.grad for a in args))):
            to[rows] = value[0].transpose(0, 1)
    return [out[0], None, *out[1:]]


def make(case, seed):
    dtype, heads, kv_heads, head_dim, lengths = case
    torch.manual_seed(seed)
    kind = torch.bfloat16 if dtype == "bf16" else torch.float16

    def draw(h, spread):
        return (spread * torch.randn(sum(lengths), h, head_dim, device="cuda")).to(kind)

    return draw(heads, 2), draw(kv_heads, 1), draw(kv_heads, 1), draw(heads, 1)


def by_coda(program, kind, case, tensors, turns):
    """Results, times, whether bits repeat; or None and why not."""
    dtype, heads, kv_heads, head_dim, lengths = case
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = pathlib.Path(name)
        offsets = [0]
        for length in lengths:
            offsets.append(offsets[-1] + length)
        most = offsets[-1] if turns else offsets[-1] + 77
        (folder / "case.txt").write_text(
            " ".join(map(str, [dtype, heads, kv_heads, head_dim, most, *offsets])))
        for file, tensor in zip(("q", "k", "v", "d_o"), tensors):
            flat = tensor.contiguous().cpu().view(torch.uint8)
            (folder / file).write_bytes(flat.numpy().tobytes())
        done = subprocess.run([program, name, kind] + ([str(turns)] if turns else []),
                              capture_output=True, text=True)
        if done.returncode:
            return None, done.stderr.strip(), None
        words = dict(line.split() for line in done.stdout.splitlines())
        shapes = (tensors[0], None, tensors[0], tensors[1], tensors[2])
        results = []
        for file, like in zip(RESULTS, shapes):
            data = bytearray((folder / file).read_bytes())
            value = torch.frombuffer(data, dtype=torch.float32 if like is None else like.dtype)
            shape = tensors[0].shape[:2] if like is None else like.shape
            results.append(value.reshape(shape).cuda())
        return results, words, words["repeats"] == "1"


def error(got, want):
    difference = (got.double() - want).norm() / want.norm().clamp_min(1e-300)
    return difference.item()


def time_torch(case, tensors, backend, turns=10):
    """Milliseconds of forward and backward: equal lengths, one batch."""
    lengths = case[4]

    def shape(t):
        return t.view(len(lengths), lengths[0], *t.shape[1:]).transpose(1, 2)

    args = [shape(t).detach().requires_grad_() for t in tensors[:3]]
    d_o = shape(tensors[3])
    times = ([], [])
    for turn in range(turns + 3):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        with sdpa_kernel(backend):
            events[0].record()
            o = torch.nn.functional.scaled_dot_product_attention(*args, is_causal=True,
                                                                 enable_gqa=True)
            events[1].record()
            o.backward(d_o)
            events[2].record()
        torch.cuda.synchronize()
        if turn >= 3:
            times[0].append(events[0].elapsed_time(events[1]))
            times[1].append(events[1].elapsed_time(events[2]))
    return [sorted(t)[len(t) // 2] for t in times]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--kinds", default="own,cudnn")
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "cuDNN",
          torch.backends.cudnn.version())
    failed = False
    logs = {kind: [] for kind in kinds}
    for number, case in enumerate(CASES):
        tensors = make(case, number)
        want = reference(*tensors, case[4])
        torchs = by_torch(*tensors, case[4])
        for kind in kinds:
            got, why, repeats = by_coda(options.program, kind, case, tensors, 0)
            text = f"{kind:6} {case}"
            if got is None:
                print(text, "not run:", why)
                continue
            ratios = []
            for name, g, w, t in zip(RESULTS, got, want, torchs):
                e = error(g, w)
                if t is None:
                    text += f" {name} {e:.1e}"
                    continue
                other = error(t, w)
                ratio = e / other if other > 0 else (1 if e == 0 else math.inf)
                if case[4] == [1] and name in ("d_q", "d_k"):  # zero but for rounding
                    ratio = 1 if g.double().norm() < 1e-2 * tensors[0].double().norm() else math.inf
                ratios.append(ratio)
                text += f" {name} {e:.1e} ({ratio:.3f})"
            logs[kind] += [math.log(r) for r in ratios if math.isfinite(r) and r > 0]
            bad = not repeats or any(not r <= 1.25 for r in ratios)
            failed = failed or bad
            text += " repeats" if repeats else " DOES NOT REPEAT"
            print(text, "BAD" if bad else "", flush=True)
    for kind, values in logs.items():
        if values:
            print(f"{kind}: geometric mean of ratios {math.exp(sum(values) / len(values)):.4f},"
                  f" largest {math.exp(max(values)):.3f}")
    if options.time:
        for case in TIMED:
            tensors = make(case, 1)
            for kind in kinds:
                got, words, repeats = by_coda(options.program, kind, case, tensors, 20)
                print(f"{kind:6}", case[:4], f"{len(case[4])} x {case[4][0]}", words, flush=True)
            for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
                try:
                    print("torch", case[:4], backend, time_torch(case, tensors, backend), flush=True)
                except RuntimeError as problem:
                    print("torch", backend, "not run:", str(problem)[:200])
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
