"""The Jinja environment of chat templates: what transformers offers them, made bounded.

A template comes with the model, so it is not trusted. Jinja's immutable sandbox keeps it from Python's internals but
not from looping for hours or filling the memory, so work is counted (`chat_limits`): every pass of a loop, macro, call,
filter and test is a step, every character that it looks at or makes counts, and what would grow at once by a product
(repetition, padding, replacement) is refused before it is made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from outpace.models.text.chat_limits import (
    MAX_DATE_FORM,
    NODE_CHARACTERS,
    budget_of,
    check_format,
    check_product,
    length_of,
)

_DROPPED_FILTERS = ("pprint", "striptags", "urlize", "xmlattr")
_BRIEF_FILTERS = ("count", "d", "default", "first", "last", "length")
"""Filters that do not look through the value; what they return is counted."""
_TYPE_TESTS = (
    *("boolean", "callable", "defined", "false", "float", "integer", "iterable", "mapping", "none", "number"),
    *("sequence", "string", "true", "undefined"),
)
"""Tests that do not look into the value."""
_COMPILED_IN = ("_block_vars", "_loop_vars")
"""Arguments that Jinja's compiler adds to calls."""


class Verbatim(str):
    """A text that `tojson` leaves as it is, but for one within other JSON: what a model wrote where JSON should be."""

    __slots__ = ()


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Renders as transformers' `apply_chat_template` does, within the `Budget` that the context holds."""

    intercepted_binops = frozenset(("+", "-", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Bounds, loopcontrols], finalize=_finalize)
        self.filters["tojson"] = _tojson
        self.filters = {
            name: _counted(name, function, brief=name in _BRIEF_FILTERS)
            for name, function in self.filters.items()
            if name not in _DROPPED_FILTERS
        }
        self.tests |= {name: _counted(name, test) for name, test in self.tests.items() if name not in _TYPE_TESTS}
        del self.globals["lipsum"]
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "dict": _Dict(),
            "namespace": _Namespace,
        }

    def compile_counted(self, source: str) -> jinja2.Template:
        """Compiles a template with the counting built into its loops, macros, lists, slices and comparisons."""
        tree = _Counting().visit(self.parse(source))
        return self.from_string(tree.set_environment(self))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        lengths = length_of(left) + length_of(right)
        if operator == "*" and lengths:
            check_product(lengths, max((abs(n) for n in (left, right) if isinstance(n, int)), default=0))
        elif operator == "**" and (_magnitude(left) >> 64 or _magnitude(right) > 64):
            raise SecurityError("the template raises to a power that is too large")
        elif operator == "%" and isinstance(left, str):
            check_format(left, right if isinstance(right, tuple) else (right,))
        budget_of(context).spend(1, lengths)
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int) and abs(result) >> 64:
            raise SecurityError(f"the template computes a number of more than 64 bits with {operator}")
        budget_of(context).spend(0, length_of(result))
        return result

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget, owner = budget_of(__context), getattr(__obj, "__self__", None)
        given = {name: value for name, value in kwargs.items() if name not in _COMPILED_IN}
        if isinstance(owner, _Bounds):
            return __obj(__context, *args, **given)
        if not isinstance(__obj, Macro):  # a macro's work is counted inside it
            args = tuple(map(_listed, args))
            budget.call(getattr(__obj, "__name__", ""), _searched(owner), (*args, *given.values()))
        result = super().call(__context, __obj, *args, **kwargs)
        budget.weigh(result)
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            check_format(value.__self__, (*args, *kwargs.values()))
            return wrapped(*args, **kwargs)

        return checked


class _Bounds(Extension):
    """What the compiled template calls to count, and the tag `{% generation %}`, which marks answers."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("answer"), [], [], body).set_lineno(line)

    def answer(self, context: Context, caller: Macro) -> str:
        return caller()

    def step(self, context: Context, characters: int) -> str:
        budget_of(context).spend(1, characters)
        return ""

    def measured(self, context: Context, value: Any) -> Any:
        budget_of(context).weigh(value)
        return value

    def searched(self, context: Context, value: Any) -> Any:
        budget_of(context).weigh(_searched(value))
        return value

    def sized(self, context: Context, value: Any) -> Any:
        budget_of(context).spend(1, length_of(value))
        return value

    def concat(self, context: Context, *parts: Any) -> str:
        budget_of(context).weigh(parts)
        return "".join(map(str, parts))


class _Counting(NodeTransformer):
    """Puts calls of `_Bounds` where Jinja has no hook of its own."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self._stepping(node)
        if node.test is not None:  # it is asked of all that it leaves out, too
            node.test = nodes.Or(_call("step", [nodes.Const(_size_of(node.test))], node), node.test)
        return node

    def visit_Block(self, node: nodes.Block) -> nodes.Node:
        return self._stepping(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._stepping(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._stepping(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("concat", node.nodes, node)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return self._counted("measured", node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return self._counted("measured", node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self._counted("measured", node) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        if isinstance(node.arg, nodes.Slice):
            return self._counted("sized", node)
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Const):
            node.arg = _call("measured", [node.arg], node)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _call("measured", [node.expr], node)
        for operand in node.ops:
            operand.expr = _call("searched" if operand.op in ("in", "notin") else "measured", [operand.expr], node)
        return node

    def _counted(self, method: str, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return _call(method, [node], node)

    def _stepping(self, node: Any) -> nodes.Node:
        size = sum(map(_size_of, node.body))
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("step", [nodes.Const(size)], node)).set_lineno(node.lineno))
        return node  # type: ignore[no-any-return]


def _size_of(node: nodes.Node) -> int:
    """What one pass through it counts: its text, and all of its parts."""
    return NODE_CHARACTERS + sum(
        NODE_CHARACTERS + (len(part.data) if isinstance(part, nodes.TemplateData) else 0)
        for part in node.find_all(nodes.Node)
    )


def _call(method: str, args: list[nodes.Expr], near: nodes.Node) -> nodes.Call:
    call = nodes.Call(nodes.ExtensionAttribute(_Bounds.identifier, method), args, [], None, None)
    call.set_lineno(near.lineno)
    return call


def _counted(name: str, function: Any, *, brief: bool = False) -> Callable[..., Any]:
    """A filter or test that counts what it is given and what it makes; a `brief` one only glances at the value."""
    wants = getattr(function, "jinja_pass_arg", None)

    @jinja2.pass_context
    def counted(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget = budget_of(context)
        value = value if brief else _listed(value)
        budget.call(name, None if brief else value, (*args, *kwargs.values()))
        given = {} if wants is None else {"context": context, "eval_context": context.eval_ctx}
        first = () if wants is None else (given.get(wants.name, context.environment),)
        result = function(*first, value, *args, **kwargs)
        budget.weigh(result)
        return result

    return counted


def _listed(value: Any) -> Any:
    """What is made piece by piece is made at once, since nobody knows its size before."""
    return list(value) if isinstance(value, Iterator) and not isinstance(value, LoopContext) else value


def _searched(value: Any) -> Any:
    """What a look-up in the value goes through: in a dictionary, nothing."""
    return None if isinstance(value, dict) else value


def _magnitude(number: Any) -> int:
    return int(abs(number)) if isinstance(number, int | float) and abs(number) < 1e300 else 0


@jinja2.pass_context
def _finalize(context: Context, value: Any) -> Any:
    """Every value that is printed."""
    budget_of(context).weigh(value)
    return value


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    if len(form) > MAX_DATE_FORM:
        raise SecurityError(f"the template writes a date in a form of more than {MAX_DATE_FORM} characters")
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is; Jinja's own filter would escape it for HTML."""
    if (indent or 0) > 16 or any(len(separator) > 16 for separator in separators or ()):
        raise SecurityError("the template indents or separates JSON by more than 16 characters")
    if isinstance(value, Verbatim):
        return str(value)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Dict:
    """`dict`, without the attributes of the class itself."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """`namespace`, refusing names that begin with an underscore, as transformers does."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *given = args
        attributes = dict(*given, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a chat template may not store {name!r}: it begins with an underscore")
