"""In bf16, coda's error against float64 is no larger than PyTorch's in bf16.

A layer and a head on the CPU, forward and every gradient, on the same bf16 inputs. An error is the
Frobenius norm of the difference, relative to that of the float64 result; a ratio is coda's error
over PyTorch's. Over 8 seeds the geometric mean of a tensor's ratios is at most 1.05 and none is
above 1.25. Ratios below 1 come from what an epilogue does not round: the product before the
residual is added, the norm's scale, the logits before the target's is picked.

PyTorch's side is as accurate as eager PyTorch gets: its fused rms_norm, a rotation in fp32 with one
rounding, and the loss in fp32.
"""

import math
import os
import pathlib
import subprocess

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT
from safetensors.torch import load_file, save_file

SEEDS = range(8)
EPS = 1e-6
HEAD_DIM = 64


@pytest.fixture(scope="module")
def run_case(tmp_path_factory):
    """run_case("layer", tensors) -> what the program coda_layer_case computes, as float64."""
    built = pathlib.Path(os.environ.get("CODA_BINARY", ROOT / "build" / "coda")).parent
    binary = built / "coda_layer_case"
    assert binary.exists(), f"{binary}: no such program. Build it (it is one of the tests' targets)."
    folder = tmp_path_factory.mktemp("cases")

    def run(kind, tensors):
        save_file({k: v.contiguous() for k, v in tensors.items()}, str(folder / "in"))
        command = [str(binary), kind, str(folder / "in"), str(folder / "out")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return {k: v.double() for k, v in load_file(str(folder / "out")).items()}

    return run


def normal(generator, *shape, scale=1.0):
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).bfloat16()


def rotate(x, pos):
    """Hugging Face's rotation (halves within a head), at least in fp32, rounded once."""
    wide = x if x.dtype == torch.float64 else x.float()
    inverse = 1e4 ** (-torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM)
    angle = pos.double()[:, None, None] * inverse
    cos, sin = angle.cos().to(wide.dtype), angle.sin().to(wide.dtype)
    a, b = wide.reshape(x.shape[0], -1, HEAD_DIM).chunk(2, dim=-1)
    y = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
    return y.reshape(x.shape).to(x.dtype)


def layer(t, pos):
    d = t["x0"].shape[1]
    x1 = F.linear(t["y0"], t["W0"]) + t["x0"]
    gate, up = F.linear(F.rms_norm(x1, (d,), t["n0"], EPS), t["W1"]).chunk(2, dim=-1)
    x2 = F.linear(F.silu(gate) * up, t["W2"]) + x1
    z = F.linear(F.rms_norm(x2, (d,), t["n1"], EPS), t["W3"])
    return {"x2": x2, "qkv": torch.cat([rotate(z[:, : 2 * d], pos), z[:, 2 * d :]], dim=-1)}


def head(t, targets):
    logits = F.linear(t["h"], t["Wl"])
    wide = logits if logits.dtype == torch.float64 else logits.float()  # as transformers does
    return {"loss": F.cross_entropy(wide, targets)}


def computed(function, inputs, extra, cotangents, dtype):
    """Outputs and gradients of all inputs, in `dtype`."""
    t = {k: v.detach().to(dtype, copy=True).requires_grad_() for k, v in inputs.items()}
    outputs = function(t, extra)
    total = sum((y * cotangents[k].to(y.dtype)).sum() for k, y in outputs.items())
    total.backward()
    result = {k: v.detach().double() for k, v in outputs.items()}
    return result | {f"d_{k}": v.grad.double() for k, v in t.items()}


def error(got, want):
    return ((got.reshape(want.shape) - want).norm() / want.norm()).item()


def check_ratios(cases):
    """cases: (coda's, torch's, float64's) of each seed."""
    names = cases[0][2].keys()
    lines, bad = [], []
    for name in names:
        ours = [error(c[name], x[name]) for c, _, x in cases]
        theirs = [error(p[name], x[name]) for _, p, x in cases]
        assert all(math.isfinite(e) for e in ours), f"{name}: {ours}"
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        mean = math.exp(sum(math.log(r) for r in ratios) / len(ratios))
        lines.append(
            f"{name}: coda {max(ours):.2e}, torch {max(theirs):.2e}, "
            f"ratio {mean:.3f} (at most {max(ratios):.3f})"
        )
        if mean > 1.05 or max(ratios) > 1.25:
            bad.append(lines[-1])
    print("\n".join(lines))
    assert not bad, "\n".join(bad)


def test_layer(run_case):
    m, d, f = 130, 192, 512
    cases = []
    for seed in SEEDS:
        g = torch.Generator().manual_seed(seed)
        inputs = {
            "x0": normal(g, m, d),
            "y0": normal(g, m, d),
            "W0": normal(g, d, d, scale=d**-0.5),
            "n0": 1 + normal(g, d, scale=0.1),
            "W1": normal(g, 2 * f, d, scale=d**-0.5),
            "W2": normal(g, d, f, scale=f**-0.5),
            "n1": 1 + normal(g, d, scale=0.1),
            "W3": normal(g, 3 * d, d, scale=d**-0.5),
        }
        cotangents = {"x2": normal(g, m, d), "qkv": normal(g, m, 3 * d)}
        pos = torch.randint(0, 2048, (m,), generator=g)
        given = inputs | {f"d_{k}": v for k, v in cotangents.items()} | {"pos": pos}
        cases.append(
            (
                run_case("layer", given),
                computed(layer, inputs, pos, cotangents, torch.bfloat16),
                computed(layer, inputs, pos, cotangents, torch.float64),
            )
        )
    check_ratios(cases)


def head_inputs(generator, m, d, vocab, p):
    """h and Wl such that the target has probability p in the median row (None: as they come)."""
    h, w = normal(generator, m, d), normal(generator, vocab, d, scale=d**-0.5)
    targets = torch.randint(0, vocab, (m,), generator=generator)
    if p is None:
        return h, w, targets
    toward = w[targets].double()
    noise = h.double()
    low, high = 0.0, 200.0
    for _ in range(40):  # how far along the target's weight h must go
        share = (low + high) / 2
        logits = (noise + share * toward) @ w.double().T
        median = logits.softmax(-1).gather(1, targets[:, None]).median().item()
        low, high = (share, high) if median < p else (low, share)
    return (noise + share * toward).bfloat16(), w, targets


@pytest.mark.parametrize("p", [None, 0.9, 0.999])
def test_head(run_case, p):
    m, d, vocab = 128, 192, 1000
    cases = []
    for seed in SEEDS:
        g = torch.Generator().manual_seed(100 + seed)
        h, w, targets = head_inputs(g, m, d, vocab, p)
        targets[::7] = -100
        inputs = {"h": h, "Wl": w}
        one = {"loss": torch.ones(())}
        cases.append(
            (
                run_case("head", inputs | {"targets": targets}),
                computed(head, inputs, targets, one, torch.bfloat16),
                computed(head, inputs, targets, one, torch.float64),
            )
        )
    check_ratios(cases)


def test_head_at_an_offset(run_case):
    """Logits near 1e6, on bf16's grid there, with the target among the largest.

    The loss, log of the number of largest logits, is then a matter of fp32: within its rounding.
    """
    m, d, vocab, grid = 64, 32, 1000, 4096.0
    cases = []
    for seed in SEEDS:
        g = torch.Generator().manual_seed(200 + seed)
        h = torch.zeros(m, d, dtype=torch.float64)
        h[:, 0] = 244 * grid
        h[:, 1:3] = grid * torch.randint(0, 2, (m, 2), generator=g)
        w = torch.randint(-1, 2, (vocab, d), generator=g).double()
        w[:, 0] = 1
        targets = (h @ w.T).argmax(dim=-1)
        targets[::7] = -100
        inputs = {"h": h.bfloat16(), "Wl": w.bfloat16()}
        one = {"loss": torch.ones(())}
        ours = run_case("head", inputs | {"targets": targets})
        theirs = computed(head, inputs, targets, one, torch.bfloat16)
        exact = computed(head, inputs, targets, one, torch.float64)
        assert error(ours.pop("loss"), exact.pop("loss")) < 2**-20
        cases.append((ours, theirs, exact))
    check_ratios(cases)
