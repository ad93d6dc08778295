"""Jobs that behave badly, each in its own way. Run in workers by test_worker and test_pool."""

import ctypes
import os
import signal
import subprocess
import sys
import time


def succeed(value=1):
    return {"value": value}


def process_id():
    return os.getpid()


def variable(name):
    return os.environ.get(name)


def fail():
    raise ValueError("seventeen is not divisible by eight")


def leave():
    sys.exit(7)


def leave_hard():
    os._exit(3)


def segfault():
    os.kill(os.getpid(), signal.SIGSEGV)


def segfault_really():
    ctypes.string_at(0)


def divide_by_zero_in_c():
    os.kill(os.getpid(), signal.SIGFPE)


def killed_from_outside():
    os.kill(os.getpid(), signal.SIGKILL)


def hang(seconds=1000):
    time.sleep(seconds)


def hang_with_child(pid_file):
    child = subprocess.Popen(["sleep", "1000"])
    with open(pid_file, "w") as f:
        f.write(f"{os.getpid()} {child.pid}")
    time.sleep(1000)


def hang_and_tell(pid_file):
    with open(pid_file, "w") as f:
        f.write(str(os.getpid()))
    time.sleep(1000)


def eat_memory(megabytes):
    eaten = []
    for _ in range(megabytes):
        eaten.append(b"x" * 2**20)
        time.sleep(0.001)
    return len(eaten)


def write_from_c(text):
    ctypes.CDLL(None).write(2, text.encode(), len(text))
    return "done"


def print_to_stdout(text):
    print(text)
    os.write(1, text.encode() + b"\n")
    return "done"


def read_stdin():
    return sys.stdin.read()


def read_own_stderr(text):
    from jaxplan.compile.job import captured_stderr

    os.write(2, text.encode())
    return captured_stderr()


def not_plain_data():
    return {1, 2}


def large(count):
    return ["x" * 100] * count
