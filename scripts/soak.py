#!/usr/bin/env python3
"""Soak test of `coda train`: runs that are stopped and killed at random instants end in the same
bytes as runs that nobody disturbs.

    scripts/soak.py [--minutes 30] [--coda build/coda] [--seed 0]

Each round trains one model quietly and the same one with random SIGTERM and SIGKILL, resuming each
time, with other numbers of threads. Checked: exit codes; that after every kill the folder is a model
that `coda eval` reads; that a kill loses at most --save-every steps; that weights, optimiser state
and metrics of both runs agree. Exit code 0 if all rounds held, 1 with the round's folder kept if not.
"""

import argparse
import collections
import json
import pathlib
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
SPEED_KEYS = ("tokens_per_second", "memory_bytes", "mfu")


class Failed(Exception):
    pass


def demand(holds, what):
    if not holds:
        raise Failed(what)


def write_text(path, rng):
    words = ["the", "dog", "sleeps", "and", "a", "number", "follows", "it", "at", "night", "but"]
    lines = (" ".join(rng.choices(words, k=9)).capitalize() + ".\n" for _ in range(4000))
    path.write_text("".join(lines))


def options_of_round(rng):
    return [
        "--tokenizer", "bytes", "--d-model", "96", "--layers", "2", "--heads", "4",
        "--kv-heads", "2", "--seq", "64", "--batch", "4", "--steps", "900",
        "--eval-every", rng.choice(["40", "150"]), "--eval-tokens", "2000",
        "--save-every", rng.choice(["7", "20", "45"]), "--keep", rng.choice(["0", "3"]),
        "--accumulate", rng.choice(["1", "2"]), "--dtype", rng.choice(["f32", "bf16"]),
        "--on-spike", rng.choice(["ignore", "skip"]), "--spike", "0.02",
        "--seed", str(rng.randrange(1 << 30)),
    ]  # fmt: skip


def metrics_of(run):
    """Lines without what may differ; and that steps come once each, in order."""
    lines = []
    for text in (run / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        lines.append({key: line[key] for key in line if key not in SPEED_KEYS})
    steps = [line["step"] for line in lines if "loss" in line]
    demand(steps == list(range(1, len(steps) + 1)), f"{run}: steps of the metrics: {steps}")
    return lines


def steps_logged(run):
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b'"loss":') if path.exists() else 0


def saved_step(run):
    """The step that the optimiser's file carries; 0 before the first save."""
    path = run / "optimizer.safetensors"
    if not path.exists():
        return 0
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return int(header["__metadata__"]["step"])


class Round:
    def __init__(self, coda, folder, rng):
        self.coda, self.folder, self.rng = str(coda), folder, rng
        self.options = options_of_round(rng)
        self.counts = collections.Counter()
        write_text(folder / "text.txt", rng)

    def command(self, run):
        threads = ["--threads", str(self.rng.choice([1, 2, 3]))]
        if (run / "options.json").exists():
            return [self.coda, "train", "--resume", str(run), *threads]
        data = ["--data", str(self.folder / "text.txt"), "--out", str(run)]
        return [self.coda, "train", *data, *self.options, *threads]

    def quiet(self):
        run = self.folder / "quiet"
        start = time.monotonic()
        done = subprocess.run(self.command(run), capture_output=True, text=True)
        demand(done.returncode == 0, f"quiet run: exit {done.returncode}: {done.stderr}")
        return run, time.monotonic() - start

    def disturbed(self, seconds):
        """As many as about 15 disturbances in what the quiet run took `seconds` for."""
        run = self.folder / "disturbed"
        while True:
            process = subprocess.Popen(
                self.command(run), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            try:
                out, err = process.communicate(timeout=self.rng.expovariate(15 / seconds))
                demand(process.returncode == 0, f"exit {process.returncode}: {err}")
                if "Stopped after" not in out:
                    return run
            except subprocess.TimeoutExpired:
                self.disturb(process, run)

    def disturb(self, process, run):
        which = self.rng.choice([signal.SIGTERM, signal.SIGKILL, signal.SIGKILL])
        process.send_signal(which)
        out, err = process.communicate(timeout=60)
        code = process.returncode
        # Before the program handles signals, they end it as any other process.
        demand(code in (0, -which), f"{which.name}: exit {code}: {err}")
        # A new run that is asked to stop while it is set up has nothing to save.
        nothing = "nothing was written" in err
        demand(not nothing or not run.exists(), f"{run}: left by a run that wrote nothing")
        self.counts["asked to stop" if code == 0 else which.name] += 1
        if which == signal.SIGTERM and code == 0 and "Stopped after" in out:
            command = f"coda train --resume {shlex.quote(str(run))}"
            demand(command in out, f"no command to resume with: {out}")
            demand(saved_step(run) == steps_logged(run), f"{run}: a stop lost steps")
        if which == signal.SIGKILL:
            every = int(self.options[self.options.index("--save-every") + 1])
            lost = steps_logged(run) - saved_step(run)
            # A line is written before the save of its step, so the save itself may be cut.
            demand(lost <= every, f"{run}: a kill lost {lost} steps of --save-every {every}")
            self.read_as_model(run)

    def read_as_model(self, run):
        if not (run / "model.safetensors").exists():
            return
        command = [self.coda, "eval", "--model", str(run), "--data", str(self.folder / "text.txt"),
                   "--held-out", "--seq", "64"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        demand(done.returncode == 0, f"eval after a kill: exit {done.returncode}: {done.stderr}")
        self.counts["read after a kill"] += 1

    def compare(self, quiet, disturbed):
        for name in ("model.safetensors", "optimizer.safetensors"):
            same = (quiet / name).read_bytes() == (disturbed / name).read_bytes()
            demand(same, f"{name}: the disturbed run ended in other bytes")
        demand(metrics_of(quiet) == metrics_of(disturbed), "metrics.jsonl: other losses")
        left = [p.name for p in disturbed.rglob("*") if ".new" in p.name or ".tmp" in p.name]
        demand(not left, f"{disturbed}: left behind: {left}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--coda", type=pathlib.Path, default=ROOT / "build" / "coda")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    rounds, total = 0, collections.Counter()
    while rounds == 0 or time.monotonic() < end:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="coda-soak-"))
        this = Round(options.coda, folder, random.Random(f"{options.seed} {rounds}"))
        try:
            quiet, seconds = this.quiet()
            this.compare(quiet, this.disturbed(seconds))
        except (Failed, subprocess.TimeoutExpired) as failure:
            print(f"round {rounds + 1}: {failure}\noptions: {' '.join(this.options)}\n"
                  f"kept: {folder}", file=sys.stderr)  # fmt: skip
            return 1
        shutil.rmtree(folder)
        rounds += 1
        total += this.counts
        print(f"round {rounds}: the same bytes; {dict(this.counts)}", flush=True)
    print(f"{rounds} rounds held; {dict(total)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
