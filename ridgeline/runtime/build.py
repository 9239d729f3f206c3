"""From loop programs to callables: modules of a few programs, compiled side by side, kept in the cache.

`build(programs, target)` gives one Entry a program, in order. Sources go to the target's compiler in threads that only
wait for it; nothing is started at import, and a process forked later builds like any other.
"""

import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ridgeline.base.errors import BuildFailed
from ridgeline.codegen.target import Entry, Target
from ridgeline.ir.program import Program
from ridgeline.runtime.cache import Cache, key_of, open_cache

MODULE_PROGRAMS = 20  # at most so many programs in one module


def modules(programs: Sequence[Program], workers: int) -> list[list[Program]]:
    """Programs dealt out evenly: as many modules as workers, more when they grow too long; names differ in each."""
    count = max(-(-len(programs) // MODULE_PROGRAMS), min(workers, -(-len(programs) // 4)), 1)
    dealt: list[list[Program]] = [[] for _ in range(count)]
    for k, program in enumerate(programs):
        place = next(
            (m for m in dealt[k % count :] + dealt[: k % count] if all(p.name != program.name for p in m)), None
        )
        if place is None:
            dealt.append([program])
        else:
            place.append(program)
    return [m for m in dealt if m]


def build_module(programs: Sequence[Program], target: Target, cache: Cache) -> dict[int, Entry]:
    """Entries of one module, by identity of the program."""
    source = target.emit(programs)
    key = key_of((target.name, target.version, source))
    folder = cache.find(key)
    if folder is None:
        fresh = cache.start()
        try:
            entries = target.compile(source, fresh)
        except BuildFailed:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        cache.keep(key, fresh)
    else:
        entries = target.compile(source, folder)
    return {id(p): entries[p.name] for p in programs}


def build(programs: Sequence[Program], target: Target, cache: Cache | None = None) -> list[Entry]:
    """A callable for each program. Raises BuildFailed: no compiler, or a program that the target cannot spell.

    Programs may share a name; one that occurs twice is built once.
    """
    if not programs:
        return []
    cache = cache or open_cache()
    workers = os.cpu_count() or 1
    unique = list({id(p): p for p in programs}.values())
    parts = modules(unique, workers)
    found: dict[int, Entry] = {}
    if len(parts) == 1:
        found = build_module(parts[0], target, cache)
    else:
        with ThreadPoolExecutor(min(workers, len(parts))) as pool:
            for made in pool.map(lambda part: build_module(part, target, cache), parts):
                found |= made
    return [found[id(p)] for p in programs]
