"""Scripts that write, delete, rename and change files in every way there is, in a dry run: the files stay as they were."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

from attack.protocol import Attack, Fell, Limits, Tried
from memfit.predict.scripts.dry_run import in_dry_run, protecting_keepers

WAYS = {
    "open": "open('a.txt', 'w').write('x')",
    "append": "open('a.txt', 'a').write('x')",
    "update": "open('a.txt', 'r+').write('x')",
    "FileIO": "io.FileIO('a.txt', 'w').write(b'x')",
    "_io": "_io.open('new.txt', 'w').write('x')",
    "os.open": "os.write(os.open('a.txt', os.O_WRONLY | os.O_TRUNC), b'x')",
    "dir_fd": "os.unlink('a.txt', dir_fd=os.open('.', os.O_RDONLY))",
    "posix": "posix.unlink('a.txt')",
    "truncate": "os.truncate('a.txt', 1)",
    "reading truncates": "os.open('a.txt', os.O_RDONLY | os.O_TRUNC)",
    "remove": "os.remove('sub/b.txt')",
    "rmtree": "shutil.rmtree('sub')",
    "rename": "os.rename('sub', 'gone')",
    "replace": "os.replace('a.txt', 'sub/b.txt')",
    "link": "os.link('a.txt', 'hard'); open('hard', 'a').write('x')",
    "symlink": "os.symlink('a.txt', 's'); open('s', 'w').write('x')",
    "through a link": "open('link', 'w').write('x')",
    "mkdir": "os.makedirs('new/deep')",
    "mknod": "os.mknod('node')",
    "mkfifo": "os.mkfifo('pipe')",
    "chmod": "os.chmod('a.txt', 0)",
    "fchmod": "os.fchmod(os.open('a.txt', os.O_RDONLY), 0)",
    "utime": "os.utime('a.txt', (1, 1))",
    "xattr": "os.setxattr('a.txt', 'user.x', b'1')",
    "mmap": "f = open('a.txt', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[:1] = b'X'; m.flush()",
    "/proc/self/cwd": "open('/proc/self/cwd/a.txt', 'w').write('x')",
    "/dev/fd": "open(f'/dev/fd/{os.open(\"a.txt\", os.O_RDONLY)}', 'w').write('x')",
    "numpy": "np.save('a.txt', np.ones(3)); np.savetxt('sub/b.txt', [1.0]); np.ones(3).tofile('a.txt')",
    "memmap": "np.memmap('a.txt', mode='w+', dtype='u1', shape=(10,))[:] = 3",
    "torch": "torch.save({'a': torch.ones(2)}, 'a.txt')",
    "torch's writer": "w = torch._C.PyTorchFileWriter('a.txt'); w.write_end_of_file()",
    "a mapped storage": "torch.UntypedStorage.from_file('a.txt', True, 3)[0] = 9",
    "safetensors": "safetensors.torch.save_file({'a': torch.ones(2)}, 'a.txt')",
    "sqlite3": "c = sqlite3.connect('data.db'); c.execute('create table z (a)'); c.commit()",
    "sqlite3, an address": "c = sqlite3.connect('file:data.db?mode=rwc', uri=True); c.execute('create table z (a)'); c.commit()",
    "sqlite3, attached": "c = sqlite3.connect(':memory:'); c.execute(\"attach 'data.db' as d\"); c.execute('create table d.z (a)')",
    "C": "C.unlink(b'a.txt')",
    "C opens": "C.open(b'a.txt', os.O_WRONLY | os.O_TRUNC)",
    "C renames": "C.rename(b'a.txt', b'b.txt')",
    "rm": "subprocess.run(['rm', '-rf', 'sub', 'a.txt'], **quiet)",
    "a shell": "subprocess.run('echo x > a.txt; mv sub gone; chmod 0 link; touch new; ln -sf / a.txt', shell=True, **quiet)",
    "os.system": "os.system('rm a.txt 2> /dev/null')",
    "python": "subprocess.run([sys.executable, '-S', '-c', 'import os; os.remove(\"a.txt\")'], **quiet)",
    "fork": "(os.fork() or (os.remove('a.txt'), os._exit(0))) and os.wait()",
    "a thread": "t = threading.Thread(target=os.remove, args=('a.txt',)); t.start(); t.join()",
    "later": "threading.Timer(0.05, os.remove, (os.path.abspath('a.txt'),)).start()",
    "a daemon": "subprocess.Popen('sleep 0.1; rm a.txt', shell=True, start_new_session=True, **quiet)",
    "a temporary file": "import tempfile; open(tempfile.mkstemp(dir='.')[1], 'w').write('x')",
    "a socket": "import socket; socket.socket(socket.AF_UNIX).bind('sock')",
}

LATE = ("later", "a daemon")
"""They act when the run may be over."""

MODULES = ("io", "_io", "mmap", "os", "posix", "shutil", "sqlite3", "subprocess", "sys", "threading", "torch", "safetensors.torch")


class DryRuns(Attack):
    name = "dry runs"
    promise = "whatever way a script takes to write, its files stay as they were"
    share = 1.0
    limits = Limits(cpu_seconds=30.0, memory_bytes=6 * 2**30)
    runs_programs = True

    def prepare(self, folder: Path) -> None:
        import ctypes

        import numpy as np

        self.keepers = list(protecting_keepers())
        if not self.keepers:
            raise Fell("this system has neither mount namespaces nor Landlock: nothing can be tried")
        names = {name.partition(".")[0]: __import__(name) for name in MODULES}
        quiet = {"stdout": -3, "stderr": -3}
        self.names: dict[str, Any] = names | {"np": np, "C": ctypes.CDLL(None), "quiet": quiet}
        self.count = 0

    def attempt(self, chance: Random, folder: Path) -> Tried:
        self.count += 1
        place, keeper = folder / f"case{self.count}", chance.choice(self.keepers)
        ways = [chance.choice(sorted(WAYS)) for _ in range(chance.randint(1, 5))]
        _fill(place)
        before = _state(place)
        stopped = in_dry_run(lambda: self._go(place, ways), keeper)
        if {*ways} & {*LATE}:
            time.sleep(0.3)
        if (after := _state(place)) != before:
            changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
            raise Fell(f"{keeper.before}\nafter {ways}: {changed} changed")
        return Tried(files=len(ways), refused=stopped)

    def _go(self, place: Path, ways: list[str]) -> int:
        """In the dry run; how many of the ways were refused."""
        os.chdir(place)
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        stopped = 0
        for way in ways:
            try:
                exec(WAYS[way], dict(self.names))
            except Exception:
                stopped += 1
        return stopped


def _fill(place: Path) -> None:
    import sqlite3

    (place / "sub").mkdir(parents=True)
    for name in ("a.txt", "sub/b.txt"):
        (place / name).write_text("precious")
    (place / "link").symlink_to("a.txt")
    connection = sqlite3.connect(place / "data.db")
    connection.execute("create table t (a)")
    connection.commit()
    connection.close()


def _state(place: Path) -> dict[str, object]:
    found = {}
    for path in (place, *place.rglob("*")):
        status = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(status.st_mode) else ""
        link = os.readlink(path) if path.is_symlink() else ""
        found[str(path.relative_to(place))] = (
            content,
            link,
            status.st_mode,
            status.st_mtime_ns,
            tuple(os.listxattr(path, follow_symlinks=False)),
        )
    return found


ATTACK = DryRuns()
