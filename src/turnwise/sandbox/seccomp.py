"""A seccomp filter as a list of rules, and its way into the kernel.

A filter is a BPF program over (number, architecture, arguments) of a call. Ours is a chain: foreign architectures are
killed, each rule looks at one call and decides, what no rule names is refused.
"""

import ctypes
import errno
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnwise.sandbox.syscall_numbers import audit_arch, numbers
from turnwise.sandbox.syscalls import syscall

SECCOMP_SET_MODE_FILTER = 1
KILL = 0x80000000
ALLOW = 0x7FFF0000
ERRNO = 0x00050000
X32_BIT = 0x40000000
FIRST_NEW_CALL = 424
"""Calls from here on are younger than the C libraries' fallbacks: they are told ENOSYS and take the older way."""

_LOAD = 0x20
_AND = 0x54
_RETURN = 0x06
_IF_EQUAL = 0x15
_IF_AT_LEAST = 0x35
_NUMBER_AT = 0
_ARCH_AT = 4
_ARGUMENTS_AT = 16


def refuse(code: int) -> int:
    """The action that makes a call fail with `code`; 0 pretends that it worked."""
    return ERRNO | code


@dataclass(frozen=True, kw_only=True, slots=True)
class Test:
    """`argument & mask` is one of `values`. The low 32 bits alone: all arguments tested here are ints to the kernel."""

    __test__ = False
    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF
    negated: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A call that passes all tests gets `action`, else `otherwise`."""

    name: str
    tests: tuple[Test, ...] = ()
    action: int = ALLOW
    otherwise: int = ERRNO | errno.EPERM


def program(rules: Sequence[Rule], *, default: int = ERRNO | errno.EPERM) -> bytes:
    """The filter's instructions. A rule for a call that this machine never had is left out."""
    known: Mapping[str, int] = numbers()
    code = [
        _instruction(_LOAD, _ARCH_AT),
        _instruction(_IF_EQUAL, audit_arch(), yes=1),
        _instruction(_RETURN, KILL),
        _instruction(_LOAD, _NUMBER_AT),
        _instruction(_IF_AT_LEAST, X32_BIT, no=1),
        _instruction(_RETURN, KILL),
    ]
    for rule in rules:
        if rule.name in known:
            code += _rule(known[rule.name], rule)
    new = default if default == ALLOW else ERRNO | errno.ENOSYS
    code += [
        _instruction(_IF_AT_LEAST, FIRST_NEW_CALL, no=1),
        _instruction(_RETURN, new),
        _instruction(_RETURN, default),
    ]
    return b"".join(code)


def install(filter_program: bytes) -> None:
    """For this thread and all that it starts, for good; no-new-privs must be set."""
    count = len(filter_program) // 8
    buffer = ctypes.create_string_buffer(filter_program, len(filter_program))
    described = struct.pack("HxxxxxxQ", count, ctypes.addressof(buffer))
    syscall("install the seccomp filter", "seccomp", SECCOMP_SET_MODE_FILTER, 0, ctypes.c_char_p(described))


def _rule(number: int, rule: Rule) -> list[bytes]:
    if not rule.tests:
        return [_instruction(_IF_EQUAL, number, no=1), _instruction(_RETURN, rule.action)]
    body: list[bytes] = []
    for test in rule.tests:
        body += _test(test, rule.otherwise)
    body.append(_instruction(_RETURN, rule.action))
    return [_instruction(_IF_EQUAL, number, no=len(body)), *body]


def _test(test: Test, otherwise: int) -> list[bytes]:
    """Falls through when the test is passed, returns `otherwise` when not.

    [load] [and] v1? v2? ... [return otherwise]: a value that matches jumps behind the return; negated, it jumps onto
    it.
    """
    code = [_instruction(_LOAD, _ARGUMENTS_AT + 8 * test.argument), _instruction(_AND, test.mask)]
    count = len(test.values)
    for index, value in enumerate(test.values):
        to_return = count - index - 1
        last = index == count - 1
        if test.negated:
            code.append(_instruction(_IF_EQUAL, value, yes=to_return, no=1 if last else 0))
        else:
            code.append(_instruction(_IF_EQUAL, value, yes=to_return + 1))
    code.append(_instruction(_RETURN, otherwise))
    return code


def _instruction(code: int, operand: int, *, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, operand)
