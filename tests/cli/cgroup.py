#!/usr/bin/env python3
"""A process in a control group with a memory limit: cgroup.py MAKE MOESAIC WORKDIR.

The model is several times as large as the limit. Whatever --ram says, the run ends well or with an error
that says what is missing; the kernel never kills it, page cache included. Exit code 77: control groups with
a memory limit cannot be made here."""
import os
import shutil
import subprocess
import sys

make, moesaic, work = sys.argv[1:4]
model = os.path.join(work, "model")
MIB = 1 << 20


class Denied(Exception):
    pass


class Group:
    """A child of this process's own group, cgroup v2 or v1."""

    def __init__(self):
        point, own, self.v2 = self.find()
        parent = os.path.join(point, own.lstrip("/"))
        if not os.path.isdir(parent):  # a container that sees its own group as the top
            parent = point
        self.dir = os.path.join(parent, f"moesaic-test-{os.getpid()}")
        try:
            if self.v2:
                with open(os.path.join(parent, "cgroup.subtree_control"), "w") as file:
                    file.write("+memory")
            os.mkdir(self.dir)
            self.limit(1 << 30)
        except OSError as error:
            raise Denied(f"{self.dir}: {error}") from error

    @staticmethod
    def find():
        groups = [line.split(":", 2) for line in open("/proc/self/cgroup").read().splitlines()]
        for line in open("/proc/self/mountinfo"):
            left, right = line.rstrip("\n").split(" - ")
            point, (kind, _, options) = left.split()[4], right.split(" ", 2)
            for _, controllers, path in groups:
                if kind == "cgroup" and "memory" in options.split(",") and "memory" in controllers.split(","):
                    return point, path, False
        for line in open("/proc/self/mountinfo"):
            left, right = line.rstrip("\n").split(" - ")
            for _, controllers, path in groups:
                if right.startswith("cgroup2 ") and controllers == "":
                    return left.split()[4], path, True
        raise Denied("no control groups are mounted")

    def write(self, name, value):
        with open(os.path.join(self.dir, name), "w") as file:
            file.write(str(value))

    def limit(self, size):
        self.write("memory.max" if self.v2 else "memory.limit_in_bytes", size)

    def kills(self):
        name = "memory.events" if self.v2 else "memory.oom_control"
        lines = open(os.path.join(self.dir, name)).read().split("\n")
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))

    def run(self, *args):
        enter = f'echo $$ > "{self.dir}/cgroup.procs" && exec "$@"'
        return subprocess.run(["sh", "-c", enter, "sh", *map(str, args)], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=120)

    def close(self):
        if os.path.isdir(self.dir):
            os.rmdir(self.dir)


def want(condition, what, done):
    if not condition:
        raise AssertionError(f"{what}\n  exit {done.returncode}\n  stdout {done.stdout!r}\n  stderr {done.stderr!r}")


def generate(group, *more):
    return group.run(moesaic, "run", model, "--ids", "1,2,3", "-n", 8, "--seed", 1, "--temp", 1, "--print-ids",
                     "--ignore-eos", "--ctx-size", 128, "--chunk", 8, "--threads", 2, "--heat", "none", *more)


def main():
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    try:
        group = Group()
    except Denied as error:
        print(f"skipped: no control group with a memory limit can be made here: {error}")
        return 77
    try:
        done = subprocess.run([make, "--small", "--quiet", "--layers", "2", "--experts-per-layer", "256", "--hidden",
                               "512", "--expert-inter", "512", model], capture_output=True, text=True, timeout=300)
        want(done.returncode == 0, "make_synthetic", done)
        experts = sum(os.path.getsize(os.path.join(model, name)) for name in os.listdir(model) if "experts" in name)
        free = generate(group)
        want(free.returncode == 0, "under a wide limit", free)
        for mib in (48, 96):
            assert experts > 2 * mib * MIB, f"{experts} bytes of experts"
            group.limit(mib * MIB)
            for more in ([], ["--ram", f"{mib - 24}M"], ["--ram", "1T"], ["--buffered"]):
                done = generate(group, *more)
                want(done.returncode == 0, f"limit of {mib} MiB, {more}", done)
                want(done.stdout == free.stdout, "the same tokens", done)
                want(("control group" in done.stderr) == ("1T" in more), "said where --ram is cut", done)
        refused = 0
        for mib in (32, 24, 20, 16, 12, 8):
            group.limit(mib * MIB)
            done = generate(group)
            if done.returncode == 0:
                want(done.stdout == free.stdout, f"the same tokens under {mib} MiB", done)
            else:
                want(done.returncode == 1 and "memory: at least" in done.stderr, f"an error under {mib} MiB", done)
                refused += 1
        assert refused > 0, "too little is an error"
        assert group.kills() == 0, f"{group.kills()} kills"
    finally:
        group.close()
        shutil.rmtree(work, ignore_errors=True)
    return 0


sys.exit(main())
