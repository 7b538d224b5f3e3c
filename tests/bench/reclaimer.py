"""Times the reclaimer of openhands-agent-server on a directory of docker runtimes, for BenchmarkReclaimBesidePython.

reclaimer.py read|caches STATE prints one JSON object: milliseconds by what was timed, and the most memory in bytes. It drives
the released package's own classes over the layout that its docker registry has, without a Docker engine.
"""

import asyncio
import json
import os
import resource
import statistics
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

from openhands.agent_server.storage.model import StoredRuntime, Tier
from openhands.agent_server.storage.reclaimer import Reclaimer, _select


class Stopped:
    """Runtimes of which none runs."""

    def __init__(self, root):
        self.root = root

    def runtime(self, conversation_id):
        at = self.root / conversation_id.hex
        return StoredRuntime(conversation_id, at.stat().st_mtime, home=at / "persistence", workspaces=(at / "workspace",))

    def runtimes(self):
        return [self.runtime(UUID(hex=name)) for name in sorted(os.listdir(self.root)) if len(name) == 32]

    @asynccontextmanager
    async def idle(self, conversation_id):
        yield True


def used(path):
    """What du -s counts: allocated blocks, hard links once."""
    seen, total = set(), 0
    stack = [path]
    while stack:
        with os.scandir(stack.pop()) as entries:
            for entry in entries:
                info = entry.stat(follow_symlinks=False)
                if info.st_nlink > 1 and not entry.is_dir(follow_symlinks=False):
                    if (info.st_dev, info.st_ino) in seen:
                        continue
                    seen.add((info.st_dev, info.st_ino))
                total += info.st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    stack.append(entry.path)
    return total


def milliseconds(times, do):
    took = []
    for _ in range(times):
        began = time.perf_counter()
        do()
        took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)


async def empty_caches(storage):
    reclaimer = Reclaimer(storage)
    for runtime in storage.runtimes():
        await reclaimer.reclaim(runtime, Tier.CACHES)
    reclaimer.trash.empty_soon()
    await reclaimer.trash.drain()


def main():
    what, state = sys.argv[1:]
    storage = Stopped(Path(state) / "runtime-data")
    if what == "read":
        told = {
            "walk": milliseconds(3, lambda: [used(storage.root / r.id.hex) for r in storage.runtimes()]),
            "plan": milliseconds(3, lambda: [_select(r, Tier.DEPENDENCIES) for r in storage.runtimes()]),
        }
    else:
        told = {"caches": milliseconds(1, lambda: asyncio.run(empty_caches(storage)))}
    told["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(told))


main()
