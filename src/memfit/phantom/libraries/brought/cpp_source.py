"""What functions of a C++ extension allocate and return, read from their source.

::

    torch::Tensor scale(torch::Tensor x, double by) {          arguments get the values that Python gives
      const int n = x.numel();                                 ──> counted
      auto out = torch::empty_like(x);                         ──> allocated, on the phantom
      scale_kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), n);      ──> passed over, and named
      return out;                                              ──> what Python gets
    }

A function is a list of statements here: declarations, assignments, calls of functions of the same source, launches, ``return``.
Their expressions are written as Python and evaluated with torch's own functions. Blocks of ``if`` and ``for`` are passed over where
they make no tensor and return nothing. Anything else is ``CppError``: a figure that is not sure is not given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch


class CppError(ValueError):
    """C++ that this file cannot read."""


@dataclass(frozen=True)
class CppFunction:
    """A function of the source."""

    name: str
    parameters: tuple[str, ...]
    body: str
    functions: Mapping[str, CppFunction]
    """All of the source, for calls between them."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Allocates what the function would allocate; returns what it would return. Raises ``CppError``."""
        if len(args) + len(kwargs) > len(self.parameters):
            raise CppError(f"{self.name} takes {len(self.parameters)} arguments")
        names: dict[str, Any] = dict.fromkeys(self.parameters) | dict(zip(self.parameters, args, strict=False)) | kwargs
        for statement in _statements(self.body):
            if (found := re.match(r"return\b(.*)$", statement, re.S)) is not None:
                return self._value(found[1], names) if found[1].strip() else None
            self._run(statement, names)
        return None

    def _run(self, statement: str, names: dict[str, Any]) -> None:
        called = re.match(r"(\w+)\s*\((.*)\)$", statement, re.S)
        if "<<<" in statement or statement.startswith(_SKIPPED) or (called and called[1] not in self.functions):
            return
        if statement.startswith(_BLOCKS):
            if re.search(r"\breturn\b|(torch|at)::\w*(empty|zeros|ones|full|rand)|_like\(", statement):
                raise CppError(statement)
            return
        if called:
            self._value(statement, names)
            return
        assigned = re.match(r"(?:[\w:<>,\s&*]+?[\s&*]+)?(\w+)\s*=(?!=)(.*)$", statement, re.S)
        if assigned is None:
            if "::" in statement and "(" in statement:
                raise CppError(statement)
            return
        name, expression = assigned[1], assigned[2]
        if any(word in expression for word in _POINTERS):
            names[name] = None
            return
        names[name] = self._value(expression, names)

    def _value(self, expression: str, names: Mapping[str, Any]) -> Any:
        text = in_python(expression)
        known: dict[str, Any] = {**_NAMES, **self.functions, **names}
        try:
            return eval(compile(text, self.name, "eval"), {"__builtins__": {}}, known)
        except CppError:
            raise
        except Exception as problem:
            if isinstance(problem, (SyntaxError, NameError, AttributeError, TypeError, ValueError)):
                raise CppError(expression.strip()) from problem
            raise


_SKIPPED: Final = (
    "dim3 ",
    "const dim3 ",
    "using ",
    "typedef ",
    "#",
    "static_assert",
    "cudaStream_t",
    "const auto stream",
    "auto stream",
)
_BLOCKS: Final = ("if", "for", "while", "switch", "else", "{")
_POINTERS: Final = ("data_ptr", "packed_accessor", "Stream(", "::kernel", "getCurrentDeviceProperties")


def functions_in(source: str) -> dict[str, CppFunction]:
    """The functions that a source defines, by name; kernels (``__global__``, ``__device__``) are left out."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", source, flags=re.S)
    found: dict[str, CppFunction] = {}
    for head in re.finditer(r"([\w:<>,&*\s]+?)\b(\w+)\s*\(", text):
        is_kernel = "__global__" in head[1] or "__device__" in head[1]
        if is_kernel or not re.search(r"\b(Tensor|void|tuple|vector|int64_t|int|float|double|bool)\b", head[1]):
            continue
        end = _closing(text, head.end() - 1)
        rest = re.match(r"\s*\{", text[end + 1 :]) if end is not None else None
        if end is None or rest is None:
            continue
        start = end + rest.end()
        close = _closing(text, start)
        if close is not None and head[2] not in _BLOCKS:
            names = tuple(_parameter(each) for each in _split(text[head.end() : end], ",") if each.strip())
            found[head[2]] = CppFunction(head[2], names, text[start + 1 : close], found)
    return found


def names_for_python(source: str) -> dict[str, str]:
    """What ``m.def("forward", &forward_cuda)`` calls functions in Python."""
    return {found[1]: found[2] for found in re.finditer(r'm\.def\(\s*"(\w+)"\s*,\s*&?([\w:]+)', source)}


def in_python(expression: str) -> str:
    """An expression of C++ in Python's words."""
    text = expression.strip()
    for pattern, replacement in _WORDS:
        text = re.sub(pattern, replacement, text)
    return text


_WORDS: Final = (
    (r"std::make_tuple|std::tie", "tuple_of"),
    (r"std::vector<[\w:]+>\s*(?=\{)|std::tuple<[^{]*>\s*(?=\{)", ""),
    (r"static_cast<[^>]*>|\(\s*(?:int|int64_t|size_t|float|double)\s*\)\s*(?=[\w(])", ""),
    (r"std::(max|min)(?:<[^>]*>)?", r"\1"),
    (r"\b(?:torch|at|c10)::k(\w+)", r"types.\1"),
    (r"\b(?:torch|at)::TensorOptions\(\)", "CppOptions()"),
    (r"\b(?:torch|at)::", "torch."),
    (r"(\w+)\.options\(\)", r"CppOptions(\1)"),
    (r"\.sizes\(\)", ".shape"),
    (r"\.(?:dtype|scalar_type)\(\)", ".dtype"),
    (r"\.device\(\)", ".device"),
    (r"\.size\((-?\w+)\)", r".shape[\1]"),
    (r"\.(sum|mean|max|min)\(\)", r".\1()"),
    (r"&&", " and "),
    (r"\|\|", " or "),
    (r"\btrue\b", "True"),
    (r"\bfalse\b", "False"),
    (r"\b(?:nullptr|torch\.nullopt)\b", "None"),
    (r"(\d)[fFlLuU]+\b", r"\1"),
    (r"(?<![/])/(?![/])", "//"),
    (r"\{", "["),
    (r"\}", "]"),
)


class CppOptions:
    """``torch::TensorOptions``: where a new tensor is, and its type."""

    def __init__(self, like: torch.Tensor | None = None) -> None:
        self._chosen: dict[str, Any] = {} if like is None else {"dtype": like.dtype, "device": like.device}

    def keywords(self) -> dict[str, Any]:
        return self._chosen

    def dtype(self, dtype: torch.dtype) -> CppOptions:
        return self._with(dtype=dtype)

    def device(self, device: Any, index: int | None = None) -> CppOptions:
        return self._with(device=device)

    def requires_grad(self, wanted: bool) -> CppOptions:
        return self

    def layout(self, layout: Any) -> CppOptions:
        return self

    def _with(self, **chosen: Any) -> CppOptions:
        changed = CppOptions()
        changed._chosen = self._chosen | chosen
        return changed


class _Torch:
    """``torch::``: torch's functions, with options as C++ gives them."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(torch, name)

        def call(*args: Any) -> Any:
            options = {key: value for arg in args if isinstance(arg, CppOptions) for key, value in arg.keywords().items()}
            plain = [arg for arg in args if not isinstance(arg, (CppOptions, torch.dtype))]
            for dtype in (arg for arg in args if isinstance(arg, torch.dtype)):
                options["dtype"] = dtype
            return function(*plain, **options)

        return call

    def dtype(self, dtype: torch.dtype) -> CppOptions:
        return CppOptions().dtype(dtype)

    def device(self, device: Any) -> CppOptions:
        return CppOptions().device(device)


class _Types:
    """``torch::kFloat32``, ``at::kCUDA``."""

    _OTHERS: Final = {"Half": torch.float16, "Byte": torch.uint8, "Char": torch.int8, "CUDA": "cuda", "CPU": "cpu"}

    def __getattr__(self, name: str) -> Any:
        return self._OTHERS[name] if name in self._OTHERS else getattr(torch, name.lower())


_NAMES: Final[dict[str, Any]] = {
    "torch": _Torch(),
    "types": _Types(),
    "CppOptions": CppOptions,
    "tuple_of": lambda *parts: parts,
    "max": max,
    "min": min,
    "None": None,
}


def _statements(body: str) -> Iterator[str]:
    """Statements of a body, without the semicolons; a block with its head is one."""
    depth, start = 0, 0
    for index, sign in enumerate(body):
        depth += (sign in "({[") - (sign in ")}]")
        is_block_end = sign == "}" and depth == 0 and body[start:index].lstrip().startswith(_BLOCKS)
        if depth == 0 and (sign == ";" or is_block_end):
            text = body[start : index + is_block_end].strip()
            start = index + 1
            if text:
                yield text


def _closing(text: str, opening: int) -> int | None:
    depth = 0
    for index in range(opening, len(text)):
        depth += (text[index] in "({[") - (text[index] in ")}]")
        if depth == 0:
            return index
    return None


def _split(text: str, sign: str) -> Sequence[str]:
    """At signs that are not inside brackets."""
    parts, depth, start = [], 0, 0
    for index, each in enumerate(text):
        depth += (each in "({[<") - (each in ")}]>")
        if each == sign and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [*parts, text[start:]]


def _parameter(text: str) -> str:
    """The name in ``const torch::Tensor& x = {}``."""
    found = re.search(r"(\w+)\s*$", text.partition("=")[0])
    if found is None:
        raise CppError(text)
    return found[1]
