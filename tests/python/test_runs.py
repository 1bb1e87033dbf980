"""A run that somebody leaves alone: signals, crashes, full disks, two processes, odd steps."""

import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest

TEXT = "The quick brown fox jumps over the lazy dog, and the dog does not mind it at all.\n"
TINY = ["--tokenizer", "bytes", "--d-model", "32", "--layers", "1", "--heads", "2", "--d-ff", "64",
        "--seq", "16", "--batch", "2"]  # fmt: skip
TIMEOUT = 120
STATE = ("model.safetensors", "optimizer.safetensors")


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT * 100)
    return path


@pytest.fixture(scope="session")
def binary():
    root = pathlib.Path(__file__).resolve().parents[2]
    return os.environ.get("CODA_BINARY", str(root / "build" / "coda"))


def metrics(run, key="loss"):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if key in line]


def state(run):
    return [(run / name).read_bytes() for name in STATE]


def heed_signals():
    """What started these tests may ignore signals, which processes inherit."""
    for which in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(which, signal.SIG_DFL)


def begin(binary, data, run, *options, **keywords):
    """A run in a process of its own, once it has done its first step."""
    keywords.setdefault("preexec_fn", heed_signals)
    process = subprocess.Popen(
        [binary, "train", "--data", data, *TINY, "--out", run, "--json", *map(str, options)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **keywords,
    )  # fmt: skip
    assert '"step":1' in process.stdout.readline(), process.stderr.read()
    return process


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_run_that_resumes(coda, binary, data, tmp_path, which):
    options = ["--steps", "60", "--save-every", "0"]
    done = coda("train", "--data", data, *TINY, *options, "--out", tmp_path / "whole")
    assert done.returncode == 0, done.stderr

    run = tmp_path / "stopped"
    process = begin(binary, data, run, "--steps", 100000)
    process.send_signal(which)
    out, error = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, error
    last = json.loads(out.splitlines()[-1])
    assert last["done"] is False
    assert last["resume"] == f"coda train --resume {run}"
    assert last["step"] == metrics(run)[-1]["step"]

    run = tmp_path / "resumed"
    process = begin(binary, data, run, *options)
    process.send_signal(which)
    process.communicate(timeout=TIMEOUT)
    done = coda("train", "--resume", run, "--threads", 1)
    assert done.returncode == 0, done.stderr
    assert state(run) == state(tmp_path / "whole")


def test_nohup_keeps_a_run_going(binary, data, tmp_path):
    run = tmp_path / "run"
    process = begin(binary, data, run, "--steps", 1000000,
                    preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))  # fmt: skip
    process.send_signal(signal.SIGHUP)
    seen = [json.loads(process.stdout.readline()) for _ in range(50)]
    assert not any("done" in line for line in seen)
    process.terminate()
    out, error = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, error
    assert json.loads(out.splitlines()[-1])["done"] is False


def test_a_killed_run_loses_at_most_save_every(coda, binary, data, tmp_path):
    options = ["--steps", "40", "--save-every", "5"]
    done = coda("train", "--data", data, *TINY, *options, "--out", tmp_path / "whole")
    assert done.returncode == 0, done.stderr
    run = tmp_path / "killed"
    process = begin(binary, data, run, *options)
    while process.poll() is None and '"step":17' not in process.stdout.readline():
        pass
    process.kill()
    process.communicate(timeout=TIMEOUT)
    reached = metrics(run)[-1]["step"]
    done = coda("train", "--resume", run, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[0])["step"] > reached - 5
    assert state(run) == state(tmp_path / "whole")


def test_a_reader_who_leaves_stops_the_run(coda, binary, data, tmp_path):
    """`| head -1`: the step ends, is saved, and standard error says how to go on."""
    run = tmp_path / "run"
    process = begin(binary, data, run, "--steps", 1000000, "--save-every", 0)
    process.stdout.close()
    error = process.stderr.read()
    assert process.wait(TIMEOUT) == 0, error
    assert f"Continue with: coda train --resume {run}" in error
    steps = metrics(run)[-1]["step"]
    done = coda("train", "--resume", run, "--stop-after", steps + 1, "--json")
    assert [json.loads(line)["step"] for line in done.stdout.splitlines()] == [steps + 1] * 2


def test_closed_streams_take_nothing_from_the_files(coda, binary, data, tmp_path):
    """A program whose output is closed must not open a file under that number."""
    run = tmp_path / "run"
    command = [binary, "train", "--data", data, *TINY, "--steps", "6", "--json", "--out", run]
    done = subprocess.run(["sh", "-c", 'exec "$@" 0>&- 1>&- 2>&-', "sh", *map(str, command)],
                          timeout=TIMEOUT, check=False)  # fmt: skip
    assert done.returncode == 1  # what it had to print was lost
    whole = coda(*command[1:-1], tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    assert state(run) == state(tmp_path / "whole")


def test_two_processes_cannot_write_one_run(coda, binary, data, tmp_path):
    run = tmp_path / "run"
    process = begin(binary, data, run, "--steps", 100000)
    try:
        done = coda("train", "--resume", run, timeout=TIMEOUT)
        assert done.returncode == 2, done.stdout + done.stderr
        assert str(run) in done.stderr
    finally:
        process.kill()
        process.communicate()


def test_a_full_disk_leaves_the_checkpoint(coda, binary, data, tmp_path):
    run = tmp_path / "run"
    done = coda("train", "--data", data, *TINY, "--steps", 6, "--stop-after", 3, "--out", run)
    assert done.returncode == 0, done.stderr
    before = state(run)
    small = len(before[0]) // 2

    def limit_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (small, small))

    done = subprocess.run([binary, "train", "--resume", run], capture_output=True, text=True,
                          preexec_fn=limit_files, timeout=TIMEOUT, check=False)  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"coda train --resume {run}" in done.stderr
    assert state(run) == before
    done = coda("train", "--resume", run)
    assert done.returncode == 0, done.stderr


def test_older_saves_are_kept_whole(coda, data, tmp_path):
    run = tmp_path / "run"
    done = coda("train", "--data", data, *TINY, "--steps", 10, "--save-every", 2, "--keep", 2,
                "--out", run)  # fmt: skip
    assert done.returncode == 0, done.stderr
    kept = sorted((run / "checkpoints").iterdir())
    assert len(kept) == 2, kept
    for folder in kept:
        done = coda("eval", "--model", folder, "--data", data)
        assert done.returncode == 0, done.stderr


def test_a_config_file_holds_any_option(coda, data, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    done = coda("train", "--data", data, *TINY, "--steps", 4, "--lr", 5e-3, "--out", first)
    assert done.returncode == 0, done.stderr
    done = coda("train", "--config", first / "options.json", "--out", second)
    assert done.returncode == 0, done.stderr
    assert state(first) == state(second)
    # What was derived from another option follows it.
    third = tmp_path / "third"
    done = coda("train", "--config", first / "options.json", "--lr", 1e-3, "--out", third)
    assert done.returncode == 0, done.stderr
    assert metrics(third)[-1]["lr"] == pytest.approx(1e-4)
    assert json.loads((third / "options.json").read_text())["min_lr"] is None
    (tmp_path / "odd.json").write_text('{"steps": 4, "setps": 5}')
    done = coda("train", "--config", tmp_path / "odd.json", "--data", data, "--out", tmp_path / "x")
    assert done.returncode == 2
    assert "odd.json" in done.stderr and "setps" in done.stderr
    assert not (tmp_path / "x").exists()


def test_a_diverging_run_stops_or_skips(coda, data, tmp_path):
    """Losses around one level, of which about half exceed a bound of 0 nats above their median;
    and a rate after which nothing is finite."""
    spikes = ["--data", data, *TINY, "--steps", 40, "--lr", 0, "--spike", 0]
    stops = coda("train", *spikes, "--on-spike", "stop", "--out", tmp_path / "a")
    assert stops.returncode == 1, stops.stdout + stops.stderr
    assert "got a spike of" in stops.stderr
    assert f"coda train --resume {tmp_path / 'a'} --on-spike skip" in stops.stderr
    goes_on = coda("train", "--resume", tmp_path / "a", "--on-spike", "skip")
    assert goes_on.returncode == 0, goes_on.stderr
    skips = coda("train", *spikes, "--on-spike", "skip", "--out", tmp_path / "b")
    assert any("skipped" in m for m in metrics(tmp_path / "b")), skips.stderr
    assert "skipped" in skips.stderr

    overflows = ["--data", data, *TINY, "--steps", 12, "--lr", 900, "--warmup", 0, "--clip", 0]
    stops = coda("train", *overflows, "--out", tmp_path / "c")
    assert stops.returncode == 1, stops.stdout + stops.stderr
    assert f"coda train --resume {tmp_path / 'c'} --on-nan skip" in stops.stderr
    skips = coda("train", *overflows, "--on-nan", "skip", "--out", tmp_path / "d")
    assert any("skipped" in m for m in metrics(tmp_path / "d")), skips.stderr


def test_a_run_may_lie_among_its_data(coda, data, tmp_path):
    run = tmp_path / "run"
    options = [*TINY, "--steps", "6"]
    stopped = coda("train", "--data", tmp_path, *options, "--stop-after", "3", "--out", run)
    assert stopped.returncode == 0, stopped.stderr
    resumed = coda("train", "--resume", run)
    assert resumed.returncode == 0, resumed.stderr
    assert len(metrics(run)) == 6

    named = coda("train", "--data", run, *options, "--out", tmp_path / "other")
    assert named.returncode == 2 and "got the folder of a run" in named.stderr
    assert not (tmp_path / "other").exists()


def test_a_model_has_its_own_sizes(coda, data, tmp_path):
    first = tmp_path / "first"
    made = coda("train", "--data", data, *TINY, "--steps", "2", "--out", first)
    assert made.returncode == 0, made.stderr

    begin = ["train", "--data", data, "--model", first, "--tokenizer", "bytes", "--seq", "16",
             "--steps", "2"]  # fmt: skip
    wider = coda(*begin, "--d-model", "64", "--out", tmp_path / "wider")
    assert wider.returncode == 2, wider.stderr
    assert "--d-model: expected 32" in wider.stderr and not (tmp_path / "wider").exists()

    second = tmp_path / "second"
    done = coda(*begin, "--d-model", "32", "--out", second)
    assert done.returncode == 0, done.stderr
    options = json.loads((second / "options.json").read_text())
    assert (options["d_model"], options["layers"], options["heads"], options["d_ff"]) == (32, 1, 2, 64)
    assert options["tokenizer"] == "bytes"
    pieces = coda(*[o if o != "bytes" else "bpe" for o in begin], "--out", tmp_path / "pieces")
    assert pieces.returncode == 2 and "--tokenizer: expected bytes" in pieces.stderr
    again = coda("train", "--config", second / "options.json", "--out", tmp_path / "third")
    assert again.returncode == 0, again.stderr
    assert state(tmp_path / "third") == state(second)


def test_a_batch_too_large_for_memory_is_refused_at_once(coda, data, tmp_path):
    refused = coda("train", "--data", data, *TINY[:-1], "100000000", "--out", tmp_path / "x")
    assert refused.returncode == 2, refused.stderr
    assert "--batch, --seq: expected a step that fits" in refused.stderr
    assert not (tmp_path / "x").exists()


def test_a_first_step_that_diverges_names_no_checkpoint(coda, data, tmp_path):
    run = tmp_path / "run"
    ended = coda("train", "--data", data, *TINY, "--steps", "20", "--lr", "1000", "--warmup", "0",
                 "--save-every", "0", "--out", run)  # fmt: skip
    assert ended.returncode == 1, ended.stderr
    assert "there is no checkpoint yet" in ended.stderr


def test_recomputing_changes_no_bit(coda, data, tmp_path):
    little = coda("train", "--data", data, *TINY, "--dtype", "bf16", "--memory", 1e-5, "--out",
                  tmp_path / "x")  # fmt: skip
    assert little.returncode == 2, little.stderr
    least = float(re.search(r"--memory: expected at least (\S+) GiB", little.stderr)[1])
    assert not (tmp_path / "x").exists()
    ways = {"held": [], "again": ["--recompute"], "little": ["--memory", least]}
    for name, more in ways.items():
        done = coda("train", "--data", data, *TINY, "--steps", 3, "--dtype", "bf16", *more,
                    "--out", tmp_path / name)  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert state(tmp_path / "held") == state(tmp_path / name)
    options = json.loads((tmp_path / "little" / "options.json").read_text())
    assert options["memory"] == least
    stopped = coda("train", "--config", tmp_path / "little" / "options.json", "--stop-after", 1,
                   "--out", tmp_path / "parts")  # fmt: skip
    assert stopped.returncode == 0, stopped.stderr
    assert coda("train", "--resume", tmp_path / "parts").returncode == 0
    assert state(tmp_path / "held") == state(tmp_path / "parts")


def test_the_plot_is_a_picture_of_every_step(coda, data, tmp_path):
    plot = tmp_path / "loss.svg"
    done = coda("train", "--data", data, *TINY, "--steps", 5, "--plot", plot, "--out",
                tmp_path / "run")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")
    for key in ("gradient_norm", "tokens_per_second", "memory_bytes"):
        assert all(line[key] > 0 for line in metrics(tmp_path / "run")), key
    assert all(line["mfu"] is None for line in metrics(tmp_path / "run"))  # no peak of a CPU is known


WRONG_OPTIONS = {
    "no_resume": (["--resume", ""], "--resume: expected a path, got an empty one"),
    "no_out": (["--data", "text.txt", "--out", ""], "--out: expected a path, got an empty one"),
    "no_config": (["--config", "", "--data", "text.txt"], "--config: expected a path"),
    "plot_name": (["--plot", "text.txt"], "--plot: text.txt: expected a file whose name ends in .svg"),
    "plot_folder": (["--plot", "none/a.svg"], "--plot: none/a.svg: expected a file in a folder"),
    "long_warmup": (["--warmup", "7"], "--warmup: expected a whole number from 0 to 6, got 7"),
    "bytes_in_a_name": (["--text-field", b"caf\xe9"], "--text-field: caf\ufffd: expected UTF-8"),
    "huge": (["--d-model", "16777216", "--heads", "8", "--d-ff", "16777216"],
             "--d-model, --layers, --d-ff, --vocab: expected sizes of at most 2^40 weights"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_OPTIONS)
def test_wrong_options_leave_nothing(coda, data, tmp_path, monkeypatch, name):
    options, message = WRONG_OPTIONS[name]
    monkeypatch.chdir(tmp_path)
    rest = [] if "" in options else ["--data", "text.txt", *TINY[:2], "--out", "run"]
    done = coda("train", *rest, "--steps", 6, *options)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr
    assert os.listdir(tmp_path) == ["text.txt"]


def test_a_plot_that_fails_later_does_not_end_the_run(binary, data, tmp_path):
    run, pictures = tmp_path / "run", tmp_path / "pictures"
    pictures.mkdir()
    process = subprocess.Popen(
        [binary, "train", "--data", data, *TINY, "--steps", "4000", "--eval-every", "0",
         "--plot", pictures / "a.svg", "--out", run],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while "step 1/" not in process.stderr.readline():
        pass
    (pictures / "a.svg").unlink()
    pictures.rmdir()
    _, error = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, error
    assert "--plot: " in error and "Training goes on without it" in error


def test_a_batch_beyond_the_plan_is_refused(binary, data, tmp_path):
    """Bounded by the limit on this process's addresses: the plan of a step takes more than that."""

    def limit_memory():
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))

    run = tmp_path / "run"
    done = subprocess.run(
        [binary, "train", "--data", data, *TINY[:-1], "100000", "--threads", "1", "--out", run],
        preexec_fn=limit_memory, capture_output=True, text=True, timeout=TIMEOUT, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "--batch, --seq: expected a step that fits into 2.1 GB of memory" in done.stderr
    assert not run.exists()


def test_steps_below_those_done_are_refused(coda, data, tmp_path):
    run = tmp_path / "run"
    done = coda("train", "--data", data, *TINY, "--steps", 6, "--stop-after", 4, "--out", run)
    assert done.returncode == 0, done.stderr
    options = json.loads((run / "options.json").read_text())
    (run / "options.json").write_text(json.dumps({**options, "steps": 3}))
    done = coda("train", "--resume", run)
    assert done.returncode == 2, done.stderr
    assert "options.json: steps: expected at least 4" in done.stderr
    assert len(metrics(run)) == 4


def test_a_config_of_another_model_gives_it_no_sizes(coda, data, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    begun = coda("train", "--data", data, *TINY, "--steps", 2, "--out", first)
    assert begun.returncode == 0, begun.stderr
    other = coda("train", "--data", data, *TINY[:2], "--d-model", 16, *TINY[4:], "--steps", 2,
                 "--out", second)  # fmt: skip
    assert other.returncode == 0, other.stderr
    done = coda("train", "--config", second / "options.json", "--model", first, "--out",
                tmp_path / "third")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "third" / "options.json").read_text())["d_model"] == 32
