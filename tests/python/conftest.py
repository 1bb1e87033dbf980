"""What the Python tests share: the reference models, and the `coda` program that was built.

Run by `scripts/test.sh --torch`. CODA_BINARY names the program; the default is build/coda.
"""

import os
import pathlib
import subprocess

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"


@pytest.fixture(scope="session", autouse=True)
def _two_threads():
    """The same sums in the same order on any machine, and no fight over few cores."""
    torch.set_num_threads(2)


@pytest.fixture(scope="session")
def coda_binary():
    binary = pathlib.Path(os.environ.get("CODA_BINARY", ROOT / "build" / "coda"))
    assert binary.exists(), f"{binary}: no such program. Build it, or set CODA_BINARY."
    return str(binary)


@pytest.fixture(scope="session")
def coda(coda_binary):
    """Runs the program: coda("verify", "--model", path) -> CompletedProcess with text output."""

    def run(*arguments, timeout=300):
        command = [coda_binary, *(a if isinstance(a, bytes) else str(a) for a in arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)

    return run
