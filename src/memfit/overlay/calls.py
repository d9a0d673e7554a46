"""Python's own file functions, led to the union of what was there and what the run has written.

::

    open, io.open, pathlib, tempfile, shutil, ...   ──>  os.open, os.stat, os.rename, ...  ──>  Union
    from os import remove                           ──>  the same: names that modules have imported are replaced too
    importlib                                       ──>  modules that the run writes and then imports

A path that the run has not changed goes to the operating system as it was given.
"""

from __future__ import annotations

import builtins
import functools
import glob
import importlib._bootstrap_external as importing
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from tempfile import _TemporaryFileCloser  # type: ignore[attr-defined]
from types import ModuleType
from typing import Any, Final

from numpy.lib._datasource import _file_openers  # type: ignore[attr-defined]

from memfit.overlay.union import Spot, Union
from memfit.torch_compat.patches import Patches

_READS: Final = ("stat", "access", "statvfs", "getxattr", "listxattr")
_READS_OF_LINKS: Final = ("lstat", "readlink")
_CHANGES: Final = ("truncate", "utime", "chmod", "chown", "setxattr", "removexattr")
_CHANGES_OF_LINKS: Final = ("lchown",)
_SETS: Final = ("supports_dir_fd", "supports_effective_ids", "supports_fd", "supports_follow_symlinks")

_KEEPS_ITS_OWN: Final = ("posix", "_io", "importlib._bootstrap_external", "memfit.overlay")
"""Modules whose names stay: the calls themselves."""


def install(patches: Patches, union: Union) -> None:
    calls = Calls(union)
    table = calls.table()
    replaced = {id(getattr(os, name)): stand_in for name, stand_in in table.items()}
    io_open, open_code = _named("open", calls.io_open, io), _named("open_code", calls.open_code, io)
    replaced[id(builtins.open)] = io_open
    replaced[id(io.open_code)] = open_code
    _keep_what_os_says_of_them(patches, table)
    for module, name, stand_in in _homes(replaced):
        patches.replace(module, name, stand_in)
    for globber, name, stand_in in _kept_by_glob(replaced):
        patches.replace(globber, name, stand_in)
    _replace_defaults(patches, replaced, vars(_TemporaryFileCloser).values())
    patches.replace_item(_file_openers._file_openers, None, io_open)  # np.savetxt, np.genfromtxt
    # It would follow directories by number, into one of the two trees.
    patches.replace(shutil, "_use_fd_functions", False)
    patches.replace(importing, "_os", _Instead(getattr(importing, "_os"), table))  # noqa: B009 (its types do not know it)
    patches.replace(importing, "_io", _Instead(getattr(importing, "_io"), {"open_code": open_code}))  # noqa: B009
    patches.replace(sys, "dont_write_bytecode", True)
    patches.finally_call(calls.stop)


def _homes(replaced: dict[int, Any]) -> list[tuple[ModuleType, str, Any]]:
    """Every module that knows one of the functions, under whatever name."""
    found = []
    for key, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and not key.startswith(_KEEPS_ITS_OWN):
            names = vars(module)
            found += [(module, name, replaced[id(value)]) for name, value in list(names.items()) if id(value) in replaced]
    return found


def _kept_by_glob(replaced: dict[int, Any]) -> list[tuple[type, str, Any]]:
    """In Python 3.13 classes have some of the functions as static methods: those behind ``Path.glob`` and ``Path.rglob``."""
    return [
        (globber, name, staticmethod(replaced[id(method.__func__)]))
        for globber in vars(glob).values()
        if isinstance(globber, type)
        for name, method in list(vars(globber).items())
        if isinstance(method, staticmethod) and id(method.__func__) in replaced
    ]


def _replace_defaults(patches: Patches, replaced: dict[int, Any], functions: Iterable[Any]) -> None:
    """Functions that have kept one of them as the default of an argument."""
    for function in functions:
        defaults = getattr(function, "__defaults__", None)
        if defaults and any(id(value) in replaced for value in defaults):
            patches.finally_call(functools.partial(setattr, function, "__defaults__", defaults))
            function.__defaults__ = tuple(replaced.get(id(value), value) for value in defaults)


def _keep_what_os_says_of_them(patches: Patches, table: dict[str, Any]) -> None:
    for kind in _SETS:
        functions: set[Any] = getattr(os, kind)
        ours = {stand_in for name, stand_in in table.items() if getattr(os, name) in functions}
        functions |= ours
        patches.finally_call(functools.partial(functions.difference_update, ours))


class _Instead:
    """A module with some of its functions replaced."""

    def __init__(self, module: Any, table: dict[str, Any]) -> None:
        self._module = module
        self.__dict__.update(table)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class Calls:
    """Stand-ins with the signatures of the originals; after ``stop`` they only pass calls on, for code that has kept one."""

    def __init__(self, union: Union) -> None:
        self._union, self._real = union, union.real
        self._open, self._open_code = builtins.open, io.open_code
        self._is_stopped = False

    def stop(self) -> None:
        self._is_stopped = True

    def table(self) -> dict[str, Any]:
        """By their names in ``os``."""
        union = self._union
        table: dict[str, Any] = {name: self._reading(name, follow=True) for name in _READS}
        table |= {name: self._reading(name, follow=False) for name in _READS_OF_LINKS}
        table |= {name: self._changing(name, follow=True) for name in _CHANGES if hasattr(os, name)}
        table |= {name: self._changing(name, follow=False) for name in _CHANGES_OF_LINKS if hasattr(os, name)}
        table |= {"remove": self._doing("remove", union.unlink), "unlink": self._doing("unlink", union.unlink)}
        table |= {name: self._doing(name, getattr(union, name)) for name in ("mkdir", "rmdir")}
        table |= {name: self._doing_with_two(name, union.rename, follow=False) for name in ("rename", "replace")}
        table["link"] = self._doing_with_two("link", union.link, follow=True)
        table |= {
            name: getattr(self, name) for name in ("open", "symlink", "mkfifo", "listdir", "scandir", "chdir", "getcwd", "getcwdb")
        }
        return {name: _named(name, stand_in) for name, stand_in in table.items() if hasattr(self._real, name)}

    # -- open ----------------------------------------------------------------------------------------------------------------

    def io_open(self, file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
        opener = kwargs.get("opener") or (args[5] if len(args) > 5 else None)
        if self._is_stopped or opener is not None or not self._is_path(file):
            return self._open(file, mode, *args, **kwargs)
        if isinstance(mode, str) and not set(mode) & set("wax+") and self._union.is_untouched():
            return self._open(file, mode, *args, **kwargs)
        return self._open(file, mode, *args[:5], **kwargs | {"opener": self._opener})

    def _opener(self, path: str | bytes, flags: int) -> int:
        with _told(path):
            return self._union.open(os.fsdecode(path), flags, 0o666)

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if self._is_stopped:
            return int(self._real.open(path, flags, mode, dir_fd=dir_fd))
        with _told(path):
            return self._union.open(self._path(path, dir_fd), flags, mode)

    def open_code(self, path: str) -> Any:
        spot = None if self._is_stopped else self._union.find(path)
        return self._open_code(spot.actual if spot is not None and spot.is_changed else path)

    # -- kinds of functions --------------------------------------------------------------------------------------------------

    def _reading(self, name: str, follow: bool) -> Callable[..., Any]:
        real = getattr(self._real, name, None)

        def call(path: Any = None, *args: Any, **kwargs: Any) -> Any:
            spot = self._changed(path, kwargs.get("dir_fd"), kwargs.get("follow_symlinks", follow))
            if spot is None:
                return real(path, *args, **kwargs)  # type: ignore[misc]
            with _told(path):
                found = real(spot.actual, *args, **{key: value for key, value in kwargs.items() if key != "dir_fd"})  # type: ignore[misc]
                return os.fsencode(found) if isinstance(found, str) and isinstance(path, bytes) else found

        return call

    def _changing(self, name: str, follow: bool) -> Callable[..., Any]:
        """What changes a file in place: the run's own copy of it."""
        real = getattr(self._real, name)

        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            follows = kwargs.get("follow_symlinks", follow)
            said = self._path_or_none(path, kwargs.get("dir_fd"))
            if said is None or self._union.find(said, follow=follows) is None:
                return real(path, *args, **kwargs)
            with _told(path):
                return real(
                    self._union.own(said, follow=follows), *args, **{key: value for key, value in kwargs.items() if key != "dir_fd"}
                )

        return call

    def _doing(self, name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        real = getattr(self._real, name)

        def call(path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> Any:
            said = self._path_or_none(path, dir_fd)
            if said is None or self._union.find(said, follow=False) is None:
                return real(path, *args, dir_fd=dir_fd, **kwargs)
            with _told(path):
                return act(said, *args, **kwargs)

        return call

    def _doing_with_two(self, name: str, act: Callable[..., Any], follow: bool) -> Callable[..., Any]:
        real = getattr(self._real, name)

        def call(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None, **kwargs: Any) -> Any:
            source, target = self._path_or_none(src, src_dir_fd), self._path_or_none(dst, dst_dir_fd)
            if source is None or target is None or self._union.find(source, follow=follow) is None:
                return real(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, **kwargs)
            with _told(src, dst):
                return act(source, target)

        return call

    # -- functions of their own ----------------------------------------------------------------------------------------------

    def symlink(self, src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None) -> None:
        said = self._path_or_none(dst, dir_fd)
        if said is None:
            self._real.symlink(src, dst, target_is_directory, dir_fd=dir_fd)
            return
        with _told(src, dst):
            self._union.create(said, lambda actual: self._real.symlink(os.fsdecode(src), actual))

    def mkfifo(self, path: Any, mode: int = 0o666, *, dir_fd: int | None = None) -> None:
        said = self._path_or_none(path, dir_fd)
        if said is None:
            self._real.mkfifo(path, mode, dir_fd=dir_fd)
            return
        with _told(path):
            self._union.create(said, lambda actual: self._real.mkfifo(actual, mode))

    def listdir(self, path: Any = ".") -> list[Any]:
        spot = self._changed_directory(path)
        if spot is None:
            found: list[Any] = self._real.listdir(path)
            return found
        names = self._union.names(spot.path)
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else list(names)

    def scandir(self, path: Any = ".") -> Any:
        spot = self._changed_directory(path)
        if spot is None:
            return self._real.scandir(path)
        return DirectoryEntries([self._entry(path, name) for name in self._union.names(spot.path)])

    def _entry(self, directory: Any, name: str) -> Entry:
        if isinstance(directory, int):
            return Entry(name, name, os.path.join(self._path(directory, None), name))
        prefix = os.fspath(directory)
        shown: Any = os.fsencode(name) if isinstance(prefix, bytes) else name
        path = os.path.join(prefix, shown)
        return Entry(shown, path, path)

    def chdir(self, path: Any) -> None:
        said = self._path_or_none(path, None)
        if said is None or self._union.find(said) is None:
            self._real.chdir(path)
            return
        with _told(path):
            self._union.chdir(said)

    def getcwd(self) -> str:
        return self._union.outside(self._real.getcwd())

    def getcwdb(self) -> bytes:
        return os.fsencode(self.getcwd())

    # -- paths ---------------------------------------------------------------------------------------------------------------

    def _is_path(self, path: Any) -> bool:
        return isinstance(path, (str, bytes, os.PathLike))

    def _path(self, path: Any, dir_fd: int | None) -> str:
        """As one string, also where a directory is given by its number."""
        if isinstance(path, int):
            return self._union.outside(self._real.readlink(f"/proc/self/fd/{path}"))
        said = os.fsdecode(path)
        if "\0" in said:
            raise ValueError("embedded null byte")
        return said if dir_fd is None or os.path.isabs(said) else os.path.join(self._path(dir_fd, None), said)

    def _path_or_none(self, path: Any, dir_fd: int | None) -> str | None:
        """``None`` for what is no path at all: the original says what is wrong with it, or knows the number."""
        if self._is_stopped or not isinstance(path, (str, bytes, os.PathLike, int)):
            return None
        try:
            said = self._path(path, dir_fd)
        except (OSError, ValueError):
            return None
        return said if said and not (isinstance(path, int) and not os.path.isabs(said)) else None

    def _changed(self, path: Any, dir_fd: int | None, follow: bool) -> Spot | None:
        """Where to read; ``None`` if the original finds the same."""
        if isinstance(path, int) or self._is_stopped or self._union.is_untouched():
            return None
        said = self._path_or_none(path, dir_fd)
        spot = None if said is None else self._union.find(said, follow=follow)
        return spot if spot is not None and spot.is_changed else None

    def _changed_directory(self, path: Any) -> Spot | None:
        """A directory in which something is, or is missing, that was not before."""
        if self._is_stopped or self._union.is_untouched():
            return None
        said = self._path_or_none("." if path is None else path, None)
        spot = None if said is None else self._union.find(said)
        if spot is None:
            return None
        if spot.status is None or not spot.is_directory:
            if spot.is_changed:
                with _told(path):
                    self._real.listdir(spot.actual)  # raises what there is to say
            return None
        return spot


class Entry:
    """What ``os.scandir`` gives for a name in a directory."""

    def __init__(self, name: Any, path: Any, whole: Any) -> None:
        self.name, self.path = name, path
        self._whole = whole

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def inode(self) -> int:
        return os.lstat(self._whole).st_ino

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isdir(self._whole) and (follow_symlinks or not self.is_symlink())

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isfile(self._whole) and (follow_symlinks or not self.is_symlink())

    def is_symlink(self) -> bool:
        return os.path.islink(self._whole)

    def is_junction(self) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self._whole, follow_symlinks=follow_symlinks)


class DirectoryEntries:
    """What ``os.scandir`` returns: an iterator that can be closed."""

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Entry]:
        return self

    def __next__(self) -> Entry:
        return next(self._entries)

    def __enter__(self) -> DirectoryEntries:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


@contextmanager
def _told(path: Any, second: Any = None) -> Iterator[None]:
    """Errors name the paths that the run has named."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = path, second
        raise


def _named(name: str, function: Any, home: ModuleType = os) -> Any:
    """Named as the original, for code that reads a function's name."""

    @functools.wraps(getattr(home, name))
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__module__ = home.__name__  # where pickle finds it, in other processes too
    return call
