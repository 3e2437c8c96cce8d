"""What is run plainly and watched: scripts without torch, as short as can be."""

from pathlib import Path

TEXTS = {
    "ends well": """
import os, sys
print(sys.argv, __file__, __name__, __spec__, sys.path[0], len(sys.path))
print(sorted(name for name in sys.modules if name.startswith(("sitecustomize", "torch", "typing"))))
print(sorted(set(vars()) - {"os", "sys"}))
sys.stderr.write("to stderr\\n")
""",
    "raises": """
def inner(number):
    return number / 0

def outer():
    try:
        inner(1)
    except ZeroDivisionError as error:
        raise ValueError("no such thing: \\u00e4") from error

print("before", flush=True)
outer()
""",
    "exits with 3": "import sys; print('three'); sys.exit(3)",
    "exits with words": "import sys; sys.exit('words')",
    "leaves without a goodbye": "import os; print('now', flush=True); os._exit(5)",
    "is no Python": "print('x'\n",
    "warns": "import warnings; warnings.warn('careful')",
    "reads": "import sys; print(sys.stdin.read().upper())",
    "aborts": "import os; print('now', flush=True); os.abort()",
    "forks": """
import os
pid = os.fork()
if not pid:
    print("child", flush=True)
    raise SystemExit(4)
print("parent", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""",
    "spawns": """
import multiprocessing, os

def square(number):
    return number * number, __name__, multiprocessing.current_process().name

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(square, [1, 2]))
""",
    "imports what fails": "from transformers.trainer import Trainer",
    "ends in atexit": "import atexit; atexit.register(print, 'goodbye'); print('hello')",
    "waits": """
import os, signal, time

def told(number, frame):
    os.write(1, f"told {signal.Signals(number).name}\\n".encode())  # print() may be just at work

signal.signal(signal.SIGUSR1, told)
print("ready", flush=True)
for _ in range(3000):
    time.sleep(0.02)
""",
}
BROKEN_TRANSFORMERS = {
    "transformers/__init__.py": "",
    "transformers/trainer.py": "def needs():\n    import no_such_module_at_all\n\nneeds()\n",
}


def script(folder: Path, name: str) -> str:
    path = folder / f"{name.replace(' ', '_')}.py"
    path.write_text(TEXTS[name])
    return path.name
