"""Run by other Pythons, with the folder of `frame_walk`: the walks agree in random programs."""

import sys
import threading
import types
from pathlib import Path

built = Path(sys.argv[1])
sys.path[:0] = [str(built), str(Path(__file__).resolve().parents[1] / "support")]

import frame_walk  # noqa: E402
from random_frames import Program  # noqa: E402


class Module:
    def __call__(self, call):
        return call()


def check(seed, checks):
    Program.check_until(checks, seed, frame_walk.paths, [Module() for _ in range(3)], Module)


failed = []


def on_a_thread(seed):
    try:
        check(seed, 500)
    except BaseException as error:
        failed.append(error)


frame_walk.install(Module.__call__.__code__)
for seed in range(5):
    check(seed, 2000)
threads = [threading.Thread(target=on_a_thread, args=(seed,)) for seed in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failed, failed

calls = [frame_walk.paths, lambda: frame_walk.paths()]
calls.append(types.FunctionType(calls[1].__code__, {"frame_walk": frame_walk}))  # the same code in another namespace
different = {call() for call in calls}
print(f"{sys.version_info.major}.{sys.version_info.minor}: the walks agree; {len(different)} different paths")
