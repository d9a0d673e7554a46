"""Two trees of files seen as one: what was there before, which is never touched, and what a run has written over it.

::

    /home/me/ckpt/a.pt   ──> store/written/home/me/ckpt/a.pt          if the run has written it
                         ──> nothing                                  if the run has deleted it: store/gone/home/me/ckpt/a.pt/<mark>
                         ──> /home/me/ckpt/a.pt                       otherwise

    store/written/... as a link to "memfit-moved:/old/path"           a file of before, under a new name: it is not copied
    store/tmp/...        ──> itself: temporary files, which programs and libraries find under the same path

All of it is on disk, so that forked processes see each other's changes. A mark hides a path of before and everything below it; what
is written at the same place later is seen in spite of it.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

MARK: Final = ".memfit-gone"
MOVED: Final = "memfit-moved:"
"""How the target of a link begins that stands for a file of before."""

SYSTEM: Final = ("/proc", "/sys", "/dev", "/run")
"""Devices, sockets and what the kernel tells: always as they are."""
_NOT_SYSTEM: Final = ("/dev/shm", "/run/media")
"""Files of the user's all the same: shared memory, and disks that a desktop has mounted."""

_NAMES: Final = (
    *("access", "chdir", "chmod", "chown", "getcwd", "getcwdb", "getxattr", "lchown", "link", "listdir", "listxattr", "lstat"),
    *("mkdir", "mkfifo", "open", "readlink", "remove", "removexattr", "rename", "replace", "rmdir", "scandir", "setxattr", "stat"),
    *("statvfs", "symlink", "truncate", "unlink", "utime"),
)
_CHANGES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_UNNAMED: Final = getattr(os, "O_TMPFILE", 0) & ~getattr(os, "O_DIRECTORY", 0)


def real_calls() -> SimpleNamespace:
    """The operating system's calls as they are now, by name; what is missing on this system is missing."""
    return SimpleNamespace(**{name: getattr(os, name) for name in _NAMES if hasattr(os, name)})


@dataclass(frozen=True)
class Spot:
    """Where something is that a script calls by a path."""

    path: str
    """The path without links, as the script would see it."""
    actual: str
    """The file or directory that it is, or would be."""
    is_written: bool
    """Does it lie in the store?"""
    status: os.stat_result | None
    """Of the last name itself, links not followed; ``None`` if there is nothing."""
    is_changed: bool
    """Would the operating system find something else, or nothing, under the path as it was given?"""

    @property
    def is_directory(self) -> bool:
        return self.status is not None and stat.S_ISDIR(self.status.st_mode)


class Union:
    """The two trees. Paths are absolute or relative strings, as the run has them; errors name them."""

    def __init__(self, store: str) -> None:
        self.store = os.path.realpath(store)
        self.written, self.gone = os.path.join(self.store, "written"), os.path.join(self.store, "gone")
        self.temporary = os.path.join(self.store, "tmp")
        self.real = real_calls()
        self.lock = threading.RLock()

    # -- finding -------------------------------------------------------------------------------------------------------------

    def find(self, path: str, *, follow: bool = True) -> Spot | None:
        """Where a path leads; ``None`` if that is for the operating system alone: devices, and the store itself."""
        cwd = self.real.getcwd() if not os.path.isabs(path) else ""
        logical, is_changed = self._canonical(os.path.join(self.outside(cwd), path) if cwd else path, follow)
        if (_is_below(logical, self.store) and not _is_below(logical, self.temporary)) or is_system(logical):
            return None
        actual, is_written, status = self._look(logical)
        is_changed = is_changed or cwd != self.outside(cwd) or actual != logical
        return Spot(logical, actual, is_written, status, is_changed)

    def outside(self, path: str) -> str:
        """The path by which the run knows a place in the store."""
        return path[len(self.written) :] or os.sep if _is_below(path, self.written) else path

    def is_untouched(self) -> bool:
        return _missing(self.real.lstat, self.written) and _missing(self.real.lstat, self.gone)

    def _canonical(self, path: str, follow: bool) -> tuple[str, bool]:
        """The path without links and dots, and whether a link that the run has made or removed was on the way."""
        names = path.rstrip(os.sep).split(os.sep)[::-1]
        current, links, is_changed = os.sep, 0, False
        while names:
            name = names.pop()
            if name in ("", "."):
                continue
            if name == "..":
                current = os.path.dirname(current)
                continue
            current = os.path.join(current, name)
            if is_system(current):
                return os.path.join(current, *names[::-1]), is_changed
            if not names and not follow:
                break
            target, is_ours = self._link(current)
            is_changed = is_changed or is_ours
            if target is None:
                continue
            links += 1
            if links > 40:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            current = os.path.dirname(current)
            if os.path.isabs(target):
                current = os.sep
            names += target.split(os.sep)[::-1]
        return current, is_changed

    def _link(self, path: str) -> tuple[str | None, bool]:
        """Where a link leads, ``None`` if it is none, and whether the run has made or removed it."""
        above = self._above(path)
        try:
            target = self.real.readlink(above)
            return (None, True) if target.startswith(MOVED) else (target, True)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return None, True
        is_hidden = self.is_hidden(path)
        try:
            return (None, True) if is_hidden else (self.real.readlink(path), False)
        except OSError:
            return None, is_hidden

    def _above(self, path: str) -> str:
        return path if _is_below(path, self.temporary) else self.written + path

    def _look(self, path: str) -> tuple[str, bool, os.stat_result | None]:
        above = self._above(path)
        try:
            status = self.real.lstat(above)
        except OSError:
            pass
        else:
            if stat.S_ISLNK(status.st_mode) and (target := self.real.readlink(above)).startswith(MOVED):
                before = target.removeprefix(MOVED)
                return before, False, self.real.lstat(before)
            return above, True, status
        if not self.is_hidden(path):
            try:
                return path, False, self.real.lstat(path)
            except OSError:
                return path, False, None
        return above, True, None

    def is_hidden(self, path: str) -> bool:
        """Has the run deleted what was there before, or a directory above it?"""
        place = self.gone
        for name in path.split(os.sep):
            place = os.path.join(place, name) if name else place
            if _missing(self.real.lstat, place):
                return False
            if not _missing(self.real.lstat, os.path.join(place, MARK)):
                return True
        return False

    def names(self, path: str) -> list[str]:
        """The names in a directory (without links), first those of before."""
        found: list[str] = []
        if not self.is_hidden(path):
            try:
                found = [name for name in self.real.listdir(path) if not self.is_hidden(os.path.join(path, name))]
            except (FileNotFoundError, NotADirectoryError):
                found = []
        try:
            known = set(found)
            found += [name for name in self.real.listdir(self._above(path)) if name not in known]
        except FileNotFoundError:
            pass
        return found

    # -- changing ------------------------------------------------------------------------------------------------------------

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        spot = self.find(path, follow=not flags & getattr(os, "O_NOFOLLOW", 0) and flags & _EXCLUSIVE != _EXCLUSIVE)
        if spot is None:
            return int(self.real.open(path, flags, mode))
        if not flags & _CHANGES or (_UNNAMED and flags & _UNNAMED):
            return int(self.real.open(spot.actual, flags, mode))
        with self.lock:
            if spot.status is None:
                if not flags & os.O_CREAT:
                    raise _error(errno.ENOENT, path)
                self._make_room(spot.path, path)
            elif flags & _EXCLUSIVE == _EXCLUSIVE:
                raise _error(errno.EEXIST, path)
            elif spot.is_directory:
                raise _error(errno.EISDIR, path)
            elif not spot.is_written:
                if not stat.S_ISREG(spot.status.st_mode):
                    return int(self.real.open(spot.actual, flags, mode))  # a pipe or a device
                self._copy_up(spot, path, with_data=not flags & os.O_TRUNC)
            return int(self.real.open(self._above(spot.path), flags, mode))

    def own(self, path: str, *, follow: bool = True) -> str:
        """Where the run's own copy of something is, made now if there is none."""
        spot = self._existing(path, follow)
        with self.lock:
            return self._copy_up(spot, path)

    def writable(self, path: str) -> str:
        """The path to pass to code that will open a file for writing: the run's own copy, or the place for a new one."""
        spot = self.find(path)
        if spot is None or spot.status is not None:
            return path if spot is None else self.own(path)
        with self.lock:
            self._make_room(spot.path, path)
        return self._above(spot.path)

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        spot = self._fresh(path)
        self.real.mkdir(self._above(spot.path), mode)

    def create(self, path: str, make: Any) -> None:
        """``make(actual)`` makes something where there is nothing yet: a link, a pipe."""
        make(self._above(self._fresh(path).path))

    def unlink(self, path: str) -> None:
        spot = self._existing(path, follow=False)
        if spot.is_directory:
            raise _error(errno.EISDIR, path)
        with self.lock:
            self._check_directory(os.path.dirname(spot.path), path)
            self._take_away(spot.path)

    def rmdir(self, path: str) -> None:
        spot = self._existing(path, follow=False)
        if not spot.is_directory:
            raise _error(errno.ENOTDIR, path)
        with self.lock:
            if self.names(spot.path):
                raise _error(errno.ENOTEMPTY, path)
            self._check_directory(os.path.dirname(spot.path), path)
            self._take_away(spot.path)

    def rename(self, path: str, to: str) -> None:
        source, target = self._existing(path, follow=False), self._wanted(to)
        if source.path == target.path:
            return
        if _is_below(target.path, source.path):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path, None, to)
        if target.status is not None and target.is_directory != source.is_directory:
            raise _error(errno.EISDIR if target.is_directory else errno.ENOTDIR, to)
        with self.lock:
            if target.is_directory and self.names(target.path):
                raise _error(errno.ENOTEMPTY, to)
            self._check_directory(os.path.dirname(source.path), path)
            self._make_room(target.path, to)
            self._move(source.path, target.path)

    def link(self, path: str, to: str) -> None:
        source = self._existing(path, follow=True)
        if source.is_directory:
            raise _error(errno.EPERM, path)
        target = self._above(self._fresh(to).path)
        if source.is_written:
            try:
                self.real.link(source.actual, target)
            except OSError as error:
                self._copy_if_apart(error, source.actual, target)
        else:
            self.real.symlink(MOVED + source.actual, target)

    def chdir(self, path: str) -> None:
        spot = self._existing(path, follow=True)
        self.real.chdir(spot.path if not self.is_hidden(spot.path) and self._is_directory(spot.path) else spot.actual)

    # -- how -----------------------------------------------------------------------------------------------------------------

    def _wanted(self, path: str) -> Spot:
        spot = self.find(path, follow=False)
        if spot is None:
            raise OSError(errno.EXDEV, f"{os.strerror(errno.EXDEV)} (a dry run changes nothing there)", path)
        return spot

    def _existing(self, path: str, follow: bool) -> Spot:
        spot = self.find(path, follow=follow)
        if spot is None or spot.status is None:
            raise _error(errno.ENOENT, path)
        return spot

    def _fresh(self, path: str) -> Spot:
        """A path at which there is nothing, with room made for it."""
        spot = self._wanted(path)
        if spot.status is not None:
            raise _error(errno.EEXIST, path)
        with self.lock:
            self._make_room(spot.path, path)
        return spot

    def _make_room(self, path: str, said: str) -> None:
        """The directory of a new name, in the store."""
        directory = os.path.dirname(path)
        self._check_directory(directory, said)
        self._raise_directory(directory)

    def _check_directory(self, directory: str, said: str) -> None:
        """As a real run would find it: it must be there, and this user must be allowed to write in it."""
        actual, _, status = self._look(directory)
        if status is None:
            raise _error(errno.ENOENT, said)
        if not stat.S_ISDIR(status.st_mode):
            raise _error(errno.ENOTDIR, said)
        if not self.real.access(actual, os.W_OK):
            raise _error(errno.EACCES, said)

    def _raise_directory(self, path: str) -> None:
        """A directory of before, in the store too, for what is written into it."""
        above = self._above(path) if path != os.sep else self.written
        if self._is_directory(above):
            return
        if path == os.sep:
            self._make_directory(self.written)
            return
        self._raise_directory(os.path.dirname(path))
        self._make_directory(above)
        status = self.real.lstat(path)
        self.real.chmod(above, stat.S_IMODE(status.st_mode) | 0o700)
        self.real.utime(above, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _make_directory(self, path: str) -> None:
        """Also where a forked process has made it in the meantime."""
        with suppress(FileExistsError):
            self.real.mkdir(path)

    def _is_directory(self, path: str) -> bool:
        try:
            return stat.S_ISDIR(self.real.lstat(path).st_mode)
        except OSError:
            return False

    def _copy_up(self, spot: Spot, said: str, *, with_data: bool = True) -> str:
        """The run's own copy of what was there before; without its data, an empty file."""
        above = self._above(spot.path)
        if spot.is_written:
            return above
        status = spot.status
        assert status is not None
        if stat.S_ISDIR(status.st_mode):
            self._raise_directory(spot.path)
            return above
        if not stat.S_ISLNK(status.st_mode) and not self.real.access(spot.actual, os.W_OK):
            raise _error(errno.EACCES, said)
        self._raise_directory(os.path.dirname(spot.path))
        fresh = os.path.join(self.store, f"copying-{os.getpid()}-{threading.get_ident()}")
        if stat.S_ISLNK(status.st_mode):
            self.real.symlink(self.real.readlink(spot.actual), fresh)
        else:
            self._copy(spot.actual, fresh, status, with_data)
        self._put(fresh, above)
        return above

    def _put(self, path: str, to: str) -> None:
        """Renames a file or a link within the store."""
        try:
            self.real.replace(path, to)
        except OSError as error:
            self._copy_if_apart(error, path, to)
            self.real.unlink(path)

    def _copy_if_apart(self, error: OSError, path: str, to: str) -> None:
        """Behind a fence of Linux before 5.19 files get no new name in another directory of the store; other errors are raised."""
        if error.errno != errno.EXDEV:
            raise error
        status = self.real.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            with suppress(FileNotFoundError):
                self.real.unlink(to)
            self.real.symlink(self.real.readlink(path), to)
        else:
            self._copy(path, to, status, with_data=True)

    def _copy(self, source: str, target: str, status: os.stat_result, with_data: bool) -> None:
        # Opened by number, because the open() of this process may be ours.
        with open(self.real.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as writer:
            if with_data:
                with open(self.real.open(source, os.O_RDONLY), "rb") as reader:
                    shutil.copyfileobj(reader, writer, 1 << 20)
        self.real.chmod(target, stat.S_IMODE(status.st_mode) | 0o600)
        self.real.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _take_away(self, path: str) -> None:
        """A file or an empty directory."""
        above = self._above(path)
        if self._is_directory(above):
            self.real.rmdir(above)
        elif not _missing(self.real.lstat, above):
            self.real.unlink(above)
        if not _missing(self.real.lstat, path) and not self.is_hidden(path):
            mark = self.gone
            for name in path.split(os.sep):
                mark = os.path.join(mark, name)
                self._make_directory(mark.rstrip(os.sep))
            os.close(self.real.open(os.path.join(mark, MARK), os.O_WRONLY | os.O_CREAT, 0o600))

    def _move(self, source: str, target: str) -> None:
        """What was there before gets a second name and is hidden under its first; a directory is made anew around its files."""
        actual, is_written, status = self._look(source)
        assert status is not None
        above = self._above(target)
        if not stat.S_ISDIR(status.st_mode):
            if is_written:
                self._put(actual, above)
            else:
                self._take_away(target)
                if stat.S_ISLNK(status.st_mode):
                    self.real.symlink(self.real.readlink(actual), above)
                else:
                    self.real.symlink(MOVED + actual, above)
            self._take_away(source)
            return
        if not _missing(self.real.lstat, target) or not _missing(self.real.lstat, above):
            self._take_away(target)
        self._make_directory(above)
        for name in self.names(source):
            self._move(os.path.join(source, name), os.path.join(target, name))
        self._take_away(source)
        self.real.chmod(above, stat.S_IMODE(status.st_mode) | 0o700)
        self.real.utime(above, ns=(status.st_atime_ns, status.st_mtime_ns))


_EXCLUSIVE: Final = os.O_CREAT | os.O_EXCL


def is_system(path: str) -> bool:
    """Is it a device, or something that the kernel or a service tells?"""
    return any(_is_below(path, place) for place in SYSTEM) and not any(_is_below(path, place) for place in _NOT_SYSTEM)


def _is_below(path: str, place: str) -> bool:
    return path == place or path.startswith(place + os.sep)


def _missing(lstat: Any, path: str) -> bool:
    try:
        lstat(path)
    except OSError:
        return True
    return False


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
