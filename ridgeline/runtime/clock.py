"""Times repeated work on the processor or on an accelerator, for the measurement of this machine.

Takes functions that do some work once; gives the median seconds of one call. Samples of several functions are
interleaved, so that a change in the machine's speed meets all of them. Also the two settings that a measurement
changes and puts back: the number of threads, and whether fp32 matmuls may use TF32.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

Run = Callable[[int], object]  # does the work once; the number rotates inputs

SAMPLE_S, TIMING_S, MOST_SAMPLES, FEWEST_SAMPLES = 2e-3, 0.15, 15, 5
BUSY_S, WAIT_S = 0.2, 10.0


class Clock:
    """Times work on the processor."""

    device = "cpu"
    rotations = 1  # sets of inputs that work should take in turn

    def medians(self, *runs: Run) -> list[float]:
        """Median seconds of one call of each; the samples of all are interleaved."""
        timers = [self._timer(run) for run in runs]
        samples: list[list[float]] = [[] for _ in runs]
        started = time.perf_counter()
        for count in range(MOST_SAMPLES):
            if count >= FEWEST_SAMPLES and time.perf_counter() - started > TIMING_S * len(runs):
                break
            for timer, series in zip(timers, samples, strict=True):
                series.append(timer())
        return [statistics.median(series) for series in samples]

    def median(self, run: Run) -> float:
        return self.medians(run)[0]

    def _timer(self, run: Run) -> Callable[[], float]:
        """A function that takes one sample: seconds a call, over as many calls as last SAMPLE_S."""
        run(0)
        calls = _calls(seconds_of(run, 1))

        def sample() -> float:
            return seconds_of(run, calls) / calls

        return sample


class CudaClock(Clock):
    """Times work on an accelerator between two events: calls captured in one graph, or issued one by one."""

    device = "cuda"
    rotations = 3  # so that no call finds its inputs in the cache of the one before

    def __init__(self, capture: bool = True) -> None:
        self.capture = capture

    def _timer(self, run: Run) -> Callable[[], float]:
        for number in range(3):
            run(number)
        torch.cuda.synchronize()
        calls = min(500, _calls(self._elapsed(lambda: run(0))))

        def issue() -> None:
            for number in range(calls):
                run(number)

        work = issue
        if self.capture:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                issue()
            work = graph.replay
        self._elapsed(work)
        return lambda: self._elapsed(work) / calls

    def _elapsed(self, work: Callable[[], object]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


def seconds_of(run: Run, calls: int) -> float:
    """Wall-clock seconds of so many calls together."""
    start = time.perf_counter()
    for number in range(calls):
        run(number)
    return time.perf_counter() - start


def _calls(seconds: float) -> int:
    return max(1, round(SAMPLE_S / max(seconds, 1e-7)))


def busy_share(threads: int) -> float:
    """Share of the processor that other programs take just now: what is missing of our threads' processor time."""
    numbers = torch.rand(threads * 2**18)
    wall, ours = time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < BUSY_S:
        numbers.sin_()
    return max(0.0, 1 - (time.process_time() - ours) / (time.perf_counter() - wall) / threads)


def wait_for_rest(threads: int, enough: float) -> float:
    """Wait for other programs to take less than `enough` of the processor, WAIT_S at most; the share at the end."""
    started = time.perf_counter()
    while (share := busy_share(threads)) > enough and time.perf_counter() - started < WAIT_S:
        time.sleep(0.5)
    return share


@contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Whether fp32 matmuls may use TF32 ("high") or not ("highest")."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
