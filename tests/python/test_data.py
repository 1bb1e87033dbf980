"""What `coda train` reads: files, folders and JSON lines, of any size, the same after a stop."""

import json
import os
import subprocess
import sys

import pytest

SIZES = ["--tokenizer", "bytes", "--d-model", 16, "--layers", 1, "--heads", 2, "--seq", 32,
         "--batch", 2, "--threads", 1]  # fmt: skip
SENTENCE = "In the beginning there was a sentence, and it was not the last one.\n"


def train(coda, data, run, *more):
    return coda("train", "--data", data, "--out", run, *SIZES, *more)


def test_lines_of_json(coda, tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"body": SENTENCE, "n": i}) + "\n" for i in range(50)))
    done = train(coda, path, tmp_path / "run", "--steps", 1, "--text-field", "body")
    assert done.returncode == 0, done.stderr
    assert "50 documents in 1 file," in done.stderr
    with path.open("a") as file:
        file.write('{"body": 3}\n')
    done = train(coda, path, tmp_path / "other", "--steps", 1, "--text-field", "body")
    assert done.returncode == 2
    assert "data.jsonl:51: expected a JSON object with a text" in done.stderr
    assert "--text-field" in done.stderr
    path.write_text('{"body": "good"}\nplain text\n')
    done = train(coda, path, tmp_path / "other", "--steps", 1, "--text-field", "body")
    assert done.returncode == 2
    assert "data.jsonl:2: " in done.stderr and "got no JSON. Mend the line" in done.stderr
    assert not (tmp_path / "other").exists()


def test_folders_skip_binary_files_and_replace_what_is_no_utf8(coda, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"caf\xe9 " + SENTENCE.encode() * 20)
    (folder / "b.bin").write_bytes(b"\x7fELF\0\0")
    os.mkfifo(folder / "c.fifo")
    (folder / "d").symlink_to(tmp_path / "nowhere")
    (folder / "e").symlink_to(tmp_path)  # the folder above: a ring
    done = train(coda, folder, tmp_path / "run", "--steps", 1)
    assert done.returncode == 0, done.stderr
    assert "4 files skipped (binary, or no regular file), the first: " in done.stderr
    assert "1 document in 1 file," in done.stderr
    assert "1 ill-formed part of UTF-8 replaced with U+FFFD in 1 file," in done.stderr
    done = train(coda, folder / "b.bin", tmp_path / "other", "--steps", 1)
    assert done.returncode == 2
    assert "b.bin: expected UTF-8 text" in done.stderr


def touch(data, _):
    os.utime(data)


def damage(_, tokens):
    content = bytearray(tokens.read_bytes())
    content[3000] ^= 4
    tokens.write_bytes(content)


@pytest.mark.parametrize("trouble", [None, touch, damage, lambda _, tokens: tokens.unlink()],
                         ids=["kept", "touched", "damaged", "gone"])  # fmt: skip
def test_a_resumed_run_reads_the_same_tokens(coda, tmp_path, trouble):
    data = tmp_path / "text.txt"
    data.write_text("".join(f"{i} {SENTENCE}" for i in range(200)))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert train(coda, data, whole, "--steps", 4).returncode == 0
    assert train(coda, data, parts, "--steps", 4, "--stop-after", 2).returncode == 0
    if trouble:
        trouble(data, parts / "tokens.bin")
    done = coda("train", "--resume", parts)
    assert done.returncode == 0, done.stderr
    assert ("1 document in" in done.stderr) == bool(trouble)
    assert ("not those that were written" in done.stderr) == (trouble is damage)
    for name in ("model.safetensors", "optimizer.safetensors", "tokens.bin"):
        if name != "tokens.bin" or trouble is not touch:  # the key holds the time of change
            assert (whole / name).read_bytes() == (parts / name).read_bytes(), name


MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, capture_output=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def peak_kib(coda_binary, *arguments):
    command = [sys.executable, "-c", MEASURE, coda_binary, *map(str, arguments)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_memory_does_not_grow_with_the_data(coda_binary, tmp_path):
    """40 MB of text are 160 MB of tokens. Both the pass that counts them and the draws touch all of
    the file."""
    small, large = tmp_path / "small.txt", tmp_path / "large.txt"
    small.write_text(SENTENCE * 5000)
    large.write_text(SENTENCE * 600_000)

    def peak(data):
        return peak_kib(coda_binary, "train", "--data", data, "--out", tmp_path / data.stem, *SIZES,
                        "--steps", 3)  # fmt: skip

    assert peak(large) - peak(small) < 12 << 10  # a million tokens between releases, and buffers
