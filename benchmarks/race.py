"""What the races against PyTorch share: processes that take turns, a step for each line they read."""

import json
import os
import resource
import subprocess
import sys
import time


class Worker:
    """A process that says when it is ready, runs one step for each line it is sent, and says at
    the end of its input how much memory it took."""

    def __init__(self, command, environment):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env=environment)
        assert json.loads(self.process.stdout.readline())["ready"]

    def step(self):
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def finish(self):
        self.process.stdin.close()
        return json.loads(self.process.stdout.readline())


def take_turns(workers, rounds, seconds, before=0):
    """Steps of each worker by name: `rounds` of them, or at least three once `seconds` are over. In each
    turn, `before` steps do not count: they run at the clock that the worker before has left."""
    start = time.perf_counter()
    steps = {name: [] for name in workers}
    for done in range(rounds):
        if done >= 3 and time.perf_counter() - start > seconds:
            break
        for name, worker in workers.items():
            for _ in range(before):
                worker.step()
            steps[name].append(worker.step())
        if sys.stderr.isatty():
            print(f"round {done + 1} of {rounds}", end="\r", file=sys.stderr)
    return steps


def environment(threads):
    """Idle OpenMP threads that spin would count as processor time and disturb the other's turn."""
    return dict(os.environ, OMP_WAIT_POLICY="passive", OMP_NUM_THREADS=str(threads))


def peak_mebibytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
