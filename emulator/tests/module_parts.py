"""What several tests of the parser share: a module around a few lines, and a module without its line numbers."""

from __future__ import annotations

from dataclasses import replace

from ptxemu.syntax.tree import Module, Variable

HEADER = ".version 8.0\n.target sm_80\n.address_size 64\n"  # lines 1 to 3


def entry(body: str, *, before: str = "", head: str = ".visible .entry k()") -> str:
    """A module with one entry: `before` begins on line 4, the body's first line is two lines after `before` ends.

    Registers: predicates p, q; 32 bits a, b, c; 64 bits %rd0 ... %rd3; all declared on the line of the brace.
    """
    registers = ".reg .pred p, q; .reg .b32 a, b, c; .reg .b64 %rd<4>;"
    return f"{HEADER}{before}{head}\n{{ {registers}\n{body}\n}}\n"


def without_lines(module: Module) -> Module:
    """The module with every line number 0, for comparisons."""

    def bare(variables: tuple[Variable, ...]) -> tuple[Variable, ...]:
        return tuple(replace(variable, line=0) for variable in variables)

    functions = tuple(
        replace(
            function,
            parameters=bare(function.parameters),
            returns=bare(function.returns),
            variables=bare(function.variables),
            body=tuple(replace(item, line=0) for item in function.body),
            line=0,
        )
        for function in module.functions
    )
    return replace(module, variables=bare(module.variables), functions=functions)
