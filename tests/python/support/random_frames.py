"""Random programs for tests of the walk over frames. They need no torch: other Pythons run them, too."""

import contextlib
import random


class Called:
    def __init__(self, call):
        self.call = call

    def __eq__(self, other):
        self.call()
        return True

    __hash__ = None

    def __del__(self):
        self.call()


class Program:
    """A random one: frames come and go in every way that Python has, with walks between.

    paths: the paths of the frames here, found in several ways; they must be equal. modules: objects whose call takes a
    function and calls it; new_module() makes one more.
    """

    def __init__(self, seed, paths, modules, new_module):
        self.random = random.Random(seed)
        self.paths = paths
        self.modules = modules
        self.make_module = new_module
        self.held = []
        self.checks = 0
        self.ways = [
            self.recursion, self.recursion, self.generator, self.delegation, self.coroutine, self.held_generator,
            self.handler, self.through_c, self.comparison, self.death, self.module, self.module, self.new_module,
        ]  # fmt: skip

    def run(self, depth):
        self.check()
        for _ in range(self.random.choice((0, 1, 1, 2, 3))):
            if depth > 0:
                self.random.choice(self.ways)(lambda: self.run(depth - 1))
            self.check()

    def check(self):
        for _ in range(self.random.choice((0, 0, 1, 2))):
            found = self.paths()
            assert len(set(found)) == 1, found
            self.checks += 1

    def recursion(self, call):
        def deeper(depth):
            return call() if depth == 0 else deeper(depth - 1)

        deeper(self.random.choice((1, 2, 40)))

    def generator(self, call):
        sum(call() or 0 for _ in range(2))

    def delegation(self, call):
        def inner():
            yield 1
            call()

        def outer():
            yield from inner()

        list(outer())

    def coroutine(self, call):
        async def inner():
            call()

        async def outer():
            await inner()
            call()

        with contextlib.suppress(StopIteration):
            outer().send(None)

    def held_generator(self, call):
        def endless():
            while True:
                call()
                yield

        if len(self.held) < 3:
            self.held.append(endless())
        chosen = self.random.choice(self.held)
        if not chosen.gi_running:
            next(chosen)

    def handler(self, call):
        try:
            raise ValueError
        except ValueError:
            call()

    def through_c(self, call):
        sorted([1, 2], key=lambda one: (call(), one)[1])

    def comparison(self, call):
        _ = [Called(call)].index(3)

    def death(self, call):
        Called(call)

    def module(self, call):
        self.random.choice(self.modules)(call)

    def new_module(self, call):
        self.make_module()(call)

    @classmethod
    def check_until(cls, checks, seed, *rest):
        program = cls(seed, *rest)
        while program.checks < checks:
            program.run(5)
