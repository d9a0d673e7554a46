"""What the controls of the page say, read once: a ``Question`` holds a configuration, or a script to be run."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from memfit.choices import AXES
from memfit.errors import ConfigError
from memfit.job import Configuration, PredictOptions, Subject
from memfit.job.axes import read_axes
from memfit.job.subject import check_arguments

KINDS: Final = ("model", "hf", "function", "script")
_MOST_CONFIG_BYTES: Final = 1 << 20
_ODD: Final = re.compile(r"[^A-Za-z0-9_-]")
_MOST_LETTERS: Final = 40
_DROPPED: Final = "config.json"
"""What the user has of a config that was dropped onto the page."""
_OPTIONS: Final = ("alloc_conf", "interconnect", "torch_version")


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question of the page."""

    options: PredictOptions
    configuration: Configuration | None = None
    """``None`` where a script is asked about."""
    script: tuple[str, ...] = ()
    """The script and its arguments."""
    words: Mapping[str, Any] = field(default_factory=dict)
    """What was said of the recipe; all else is as usual."""
    is_dropped: bool = False
    """The config was dropped onto the page: it is kept in a folder that goes with the server."""
    price: float = 0.0
    """Of one GPU for an hour, in whatever currency; 0 where none was given."""

    @property
    def asked(self) -> dict[str, Any]:
        """What it is about, in plain values."""
        if self.configuration is not None:
            return self.configuration.inputs
        script = shlex.join((Path(self.script[0]).name, *self.script[1:]))
        return {"script": script, "gpu": self.options.gpu, "world_size": self.options.world_size}

    @property
    def key(self) -> str:
        """The same for the same question, whatever it costs."""
        plain = self.configuration.to_json() if self.configuration is not None else {"asked": self.asked, "script": self.script}
        return hashlib.sha256(json.dumps(plain, sort_keys=True, default=list).encode()).hexdigest()[:32]

    @property
    def is_lasting(self) -> bool:
        """True if the answer is the same tomorrow. Configs, functions and scripts are files, which may have been edited since."""
        return self.configuration is not None and bool(self.configuration.subject.model)

    @property
    def command(self) -> str:
        """What to type for the same."""
        flags = [f"--gpu {self.options.gpu}"]
        if self.options.world_size > 1:
            flags.append(f"--world-size {self.options.world_size}")
        flags += [f"--{name.replace('_', '-')} {shlex.quote(value)}" for name in _OPTIONS if (value := getattr(self.options, name))]
        if self.configuration is None:
            return f"memfit run {' '.join(flags)} {shlex.join(self.script)}"
        subject = self.configuration.subject
        what = shlex.quote(subject.function) if subject.function else f"--{'model' if subject.model else 'hf'} {self._subject_word}"
        flags += [f"{_flag(name)} {shlex.quote(_word(value))}" for name, value in self.words.items()]
        return f"memfit predict {what} {' '.join(flags)}"

    @property
    def python(self) -> str:
        """The same in Python; empty for a script."""
        if self.configuration is None:
            return ""
        subject = self.configuration.subject
        given: dict[str, Any] = {"gpu": self.options.gpu}
        if self.options.world_size > 1:
            given["world_size"] = self.options.world_size
        given |= {name: value for name in _OPTIONS if (value := getattr(self.options, name))} | dict(self.words)
        plain = {"hf": _DROPPED} if self.is_dropped else subject.inputs
        first = next(repr(value) if name == "function" else f"{name}={value!r}" for name, value in plain.items())
        return f"memfit.predict({', '.join((first, *(f'{name}={value!r}' for name, value in given.items())))})"

    @property
    def _subject_word(self) -> str:
        assert self.configuration is not None
        if self.is_dropped:
            return _DROPPED
        return shlex.quote(self.configuration.subject.model or self.configuration.subject.hf)


def read_question(plain: Any, folder: Path, configs: Path) -> Question:
    """From what the page sent; ``ConfigError`` says what cannot be. Files must be in ``folder``, or in ``configs``, where those are
    that were dropped onto the page."""
    if not isinstance(plain, dict) or plain.get("kind") not in KINDS:
        raise ConfigError("ask about a model, a Hugging Face config, a function or a script")
    options = _read_options(plain)
    price = plain.get("price") or 0.0
    if not isinstance(price, int | float) or not 0 <= price < 1e6:
        raise ConfigError("a price is a number of at least 0: what one GPU costs for an hour")
    subject = str(plain.get("subject") or "").strip()
    if plain["kind"] == "script":
        words = shlex.split(subject)
        if not words:
            raise ConfigError("name a script of this folder: train.py --batch 16")
        return Question(options=options, script=(str(_inside(words[0], folder)), *words[1:]), price=float(price))
    given = {name: _value(name, value) for name, value in dict(plain.get("words") or {}).items() if value not in (None, "")}
    named = _subject(plain["kind"], subject, folder, configs)
    chosen = {name: values[0] for name, values in read_axes(given).items()}
    if named.function:
        check_arguments(named.function, chosen)
    elif unknown := [name for name in chosen if name not in AXES]:
        raise ConfigError(f"a recipe has no {unknown[0]!r}: it has {', '.join(AXES)}")
    return Question(
        options=options,
        configuration=Configuration.of(named, chosen, options),
        words=chosen,
        is_dropped=plain["kind"] == "hf" and subject.startswith("dropped:"),
        price=float(price),
    )


def keep_config(data: bytes, configs: Path) -> str:
    """Keeps a config that was dropped onto the page; gives the name under which it can be asked about."""
    if len(data) > _MOST_CONFIG_BYTES:
        raise ConfigError("a config.json has at most a megabyte")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"that is no config.json of Hugging Face: it cannot be read as JSON ({error})") from error
    if not isinstance(found, dict) or not any(isinstance(found.get(name), str | list) for name in ("model_type", "architectures")):
        raise ConfigError("that is no config.json of Hugging Face: it says neither model_type nor architectures")
    said = found.get("model_type") or next(iter(found["architectures"]), "")
    name = f"{_ODD.sub('', str(said))[:_MOST_LETTERS] or 'config'}-{hashlib.sha256(data).hexdigest()[:12]}.json"
    (configs / name).write_bytes(data)
    return f"dropped:{name}"


def _read_options(plain: Mapping[str, Any]) -> PredictOptions:
    world_size = plain.get("world_size") or 1
    if isinstance(world_size, bool) or not isinstance(world_size, int):
        raise ConfigError(f"the number of GPUs is a whole number, not {world_size!r}")
    texts: dict[str, Any] = {name: str(plain.get(name) or "") for name in _OPTIONS}
    return PredictOptions(gpu=str(plain.get("gpu") or "H200"), world_size=world_size, **texts)


def _subject(kind: str, subject: str, folder: Path, configs: Path) -> Subject:
    if not subject:
        raise ConfigError("say what is trained: a model by name, a config.json, or a function of this folder")
    if kind == "model":
        return Subject.of(model=subject)
    if kind == "function":
        path, _, name = subject.rpartition(":")
        return Subject.of(f"{_inside(path, folder)}:{name}")
    if subject.startswith("dropped:"):
        return Subject.of(hf=_inside(subject.removeprefix("dropped:"), configs))
    if (folder / subject).exists():
        return Subject.of(hf=_inside(subject, folder))
    return Subject.of(hf=subject if not Path(subject).is_absolute() else _inside(subject, folder))


def _inside(path: str, folder: Path) -> Path:
    """An existing file or folder below a folder; links out of it are not followed."""
    found = (folder / path).resolve()
    if not found.is_relative_to(folder.resolve()) or not found.exists():
        raise ConfigError(f"there is no {path} in {folder.name or folder}")
    return found


def _value(name: str, value: Any) -> Any:
    if name in AXES and AXES[name].is_number and isinstance(value, str):
        if not value.strip().isdecimal():
            raise ConfigError(f"{name} takes whole numbers of at least 1, not {value!r}")
        return int(value)
    return value


def _flag(name: str) -> str:
    return AXES[name].flags[0] if name in AXES else f"--axis {name}="


def _word(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
