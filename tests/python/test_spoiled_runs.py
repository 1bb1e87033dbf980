"""A run, or a model to begin from, in which one thing is wrong: exit code 2, one message that names
it, and nothing written."""

import json
import shutil
import struct

import pytest

TEXT = "The quick brown fox jumps over the lazy dog, and the dog does not mind it at all.\n"
MODEL, STATE = "model.safetensors", "optimizer.safetensors"
NORM = "model.norm.weight"


@pytest.fixture(scope="module")
def good(coda, tmp_path_factory):
    """A run that stopped after step 4 of 6."""
    folder = tmp_path_factory.mktemp("good")
    (folder / "text.txt").write_text(TEXT * 100)
    done = coda(
        "train", "--data", folder / "text.txt", "--tokenizer", "bytes", "--d-model", 32,
        "--layers", 1, "--heads", 2, "--d-ff", 64, "--seq", 16, "--batch", 2, "--steps", 6,
        "--stop-after", 4, "--out", folder / "run",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def changed_json(name, **changes):
    def spoil(run):
        content = json.loads((run / name).read_text())
        (run / name).write_text(json.dumps({**content, **changes}))

    return spoil


def options(**changes):
    return changed_json("options.json", **changes)


def config(**changes):
    return changed_json("config.json", **changes)


def tensors(change, name=MODEL):
    """Spoils a safetensors file: change(header, data) edits both in place."""

    def spoil(run):
        content = (run / name).read_bytes()
        end = 8 + struct.unpack("<Q", content[:8])[0]
        header, data = json.loads(content[8:end]), bytearray(content[end:])
        change(header, data)
        text = json.dumps(header).encode()
        (run / name).write_bytes(struct.pack("<Q", len(text)) + text + data)

    return spoil


def entry(name=NORM, **changes):
    return lambda header, data: header[name].update(changes)


def value(number, name=NORM):
    def change(header, data):
        struct.pack_into("<f", data, header[name]["data_offsets"][0], number)

    return change


def overlap(header, data):
    second = sorted((e["data_offsets"], k) for k, e in header.items() if k != "__metadata__")[1][1]
    header[second]["data_offsets"] = [at - 4 for at in header[second]["data_offsets"]]


def one_more(header, data):
    header["surplus"] = {"dtype": "F32", "shape": [1], "data_offsets": [len(data), len(data) + 4]}
    data += bytes(4)


def metadata(**changes):
    return lambda header, data: header["__metadata__"].update(changes)


def cut(name, size):
    return lambda run: (run / name).write_bytes((run / name).read_bytes()[:size])


def gone(name):
    return lambda run: (run / name).unlink()


# What is wrong with a model -> how to make it so, words of the message. All three commands that read
# a model must refuse it.
MODELS = {
    "nan": (tensors(value(float("nan"))), [MODEL, NORM, "finite", "nan at element 0"]),
    "infinite": (tensors(value(float("-inf"))), [MODEL, NORM, "-inf"]),
    "overlap": (tensors(overlap), [MODEL, "overlaps"]),
    "wrong_size": (tensors(entry(shape=[31])), [MODEL, NORM, "expected 124 bytes", "got 128"]),
    "negative_size": (tensors(entry(shape=[-32])), [MODEL, NORM, "got [-32]"]),
    "integers": (tensors(entry(dtype="I32")), [MODEL, NORM, "I32"]),
    "unknown_type": (tensors(entry(dtype="Q7")), [MODEL, NORM, '"Q7"']),
    "gap": (tensors(lambda h, d: h.pop(NORM)), [MODEL, "a gap"]),
    "extra": (tensors(one_more), [MODEL]),
    "cut": (cut(MODEL, 1000), [MODEL, "cut short"]),
    "empty": (cut(MODEL, 0), [MODEL, "got 0 bytes"]),
    "other_width": (config(hidden_size=64), [MODEL, "expected shape [258, 64]", "[258, 32]"]),
    "more_layers": (config(num_hidden_layers=3), [MODEL, "model.layers.1"]),
    "many_layers": (config(num_hidden_layers=9000), [MODEL, "model.layers.1"]),
    "huge_layers": (config(num_hidden_layers=10**7), ["config.json", "num_hidden_layers"]),
    "huge_vocabulary": (config(vocab_size=2**31), ["GB of memory"]),
    "huge_width": (config(hidden_size=2**31 - 1), ["config.json", "hidden_size 2147483647"]),
    "width_is_a_fraction": (config(hidden_size=32.5), ["config.json: hidden_size", "got 32.5"]),
    "width_is_text": (config(hidden_size="32"), ["config.json: hidden_size", 'got "32"']),
    "another_family": (config(model_type="gpt2"), ["config.json: model_type", '"gpt2"']),
    "no_config": (gone("config.json"), ["config.json"]),
}

RUNS = {
    "no_step": (tensors(lambda h, d: h.pop("__metadata__"), STATE), [STATE, "step", "nothing"]),
    "step_is_text": (tensors(metadata(step="x"), STATE), [STATE, "step", '"x"']),
    "other_step": (tensors(metadata(step="9"), STATE), [MODEL, "step 9", "another step"]),
    "infinite_moment": (
        tensors(value(float("inf"), f"first_moment.{NORM}"), STATE),
        [STATE, f"first_moment.{NORM}", "inf at element 0"],
    ),
    "surplus_state": (tensors(one_more, STATE), [STATE, "got 26"]),
    "cut_state": (cut(STATE, 5000), [STATE, "cut short"]),
    "no_state": (gone(STATE), [STATE, "--model"]),
    "no_weights": (gone(MODEL), [MODEL, "no such file"]),
    "no_options": (gone("options.json"), ["--resume", "options.json"]),
    "half_options": (cut("options.json", 40), ["options.json", "syntax error"]),
    "steps_below_zero": (options(steps=-3), ["options.json", "--steps", "got -3"]),
    "text_for_a_number": (options(seq="x"), ["options.json: seq", "a whole number", 'got "x"']),
    "huge_batch": (options(batch=2**40), ["options.json", "--batch", "1099511627776"]),
    "unknown_option": (options(sequence=3), ["options.json", '"sequence"']),
    "other_data": (lambda run: (run.parent / "text.txt").write_text(TEXT * 99), ["other data"]),
}


def content(folder):
    skipped = {".lock"}
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in skipped)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def assert_refused(coda, folder, words, *arguments):
    before = content(folder)
    done = coda(*arguments, timeout=60)
    assert done.returncode == 2, f"exit {done.returncode}\n{done.stdout}{done.stderr}"
    message = done.stderr.splitlines()[-1]
    assert message.startswith("coda: ") and message.endswith("."), done.stderr
    for word in words:
        assert word in message, done.stderr
    assert content(folder) == before


@pytest.fixture
def copy(good, tmp_path):
    """The good run, with options that point at a text beside it."""
    shutil.copytree(good, tmp_path, dirs_exist_ok=True)
    options(data=[str(tmp_path / "text.txt")])(tmp_path / "run")
    return tmp_path


@pytest.mark.parametrize("command", ["eval", "resume", "model"])
@pytest.mark.parametrize("name", MODELS)
def test_spoiled_model(coda, copy, name, command):
    spoil, words = MODELS[name]
    run, text = copy / "run", copy / "text.txt"
    spoil(run)
    arguments = {
        "eval": ["eval", "--model", run, "--data", text],
        "resume": ["train", "--resume", run],
        "model": ["train", "--model", run, "--data", text, "--tokenizer", "bytes", "--seq", 16,
                  "--batch", 2, "--steps", 2, "--out", copy / "new"],
    }  # fmt: skip
    assert_refused(coda, copy, words, *arguments[command])


@pytest.mark.parametrize("name", RUNS)
def test_spoiled_run(coda, copy, name):
    spoil, words = RUNS[name]
    spoil(copy / "run")
    assert_refused(coda, copy, words, "train", "--resume", copy / "run")


def test_the_unspoiled_run_goes_on(coda, copy):
    done = coda("train", "--resume", copy / "run", timeout=60)
    assert done.returncode == 0, done.stderr
