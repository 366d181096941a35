"""Barriers of which ptxas may make two, in PTX.

`bar.red` is a barrier that returns whether a predicate holds for any or for all threads. Where the
predicate is a constant, ptxas may take the result for something that can be had again where it is
used, by another such barrier. If that is a branch of one thread, this thread waits for ever. (Seen
with ptxas of CUDA 12.9, 13.0 and 13.4 for sm_90.) So what threads agree on is a word of shared
memory, or a predicate that the compiler cannot know.
"""
import re

_FUNCTION = re.compile(r"^\s*(?:\.visible|\.weak|\.extern)?\s*\.(?:entry|func)\b", re.M)
_BARRIER = re.compile(r"\bbar(?:rier(?:\.cta)?)?\.red\.[\w.]+\s+[^;]*?(!?)(%p\d+)\s*;")
_MOVE = re.compile(r"mov\.\w+\s+%s\s*,\s*(-?\d+|0x[0-9a-fA-F]+)\s*;$")
_COMPARISON = re.compile(r"setp\.\w+\.\w+\s+%s\s*,\s*(%%\w+|-?\d+)\s*,\s*-?\d+\s*;$")


def _definitions(text, register):
    """The instructions that write `register`."""
    return re.findall(r"^\s*(?:@\S+\s+)?([a-z][\w.]*\s+%s\s*,[^;]*;)" % re.escape(register), text,
                      re.M)


def _is_constant(text, register):
    made = _definitions(text, register)
    return len(made) == 1 and re.match(_MOVE.pattern % re.escape(register), made[0]) is not None


def _has_constant_predicate(function, start, predicate):
    # Where nvcc puts it, the predicate has a scope of its own, and the text before the barrier has
    # the comparison that makes it.
    scope = function.rfind("{", 0, start)
    made = _definitions(function[scope:start], predicate) or _definitions(function, predicate)
    if len(made) != 1:
        return False
    comparison = re.match(_COMPARISON.pattern % re.escape(predicate), made[0])
    if comparison is None:
        return re.match(_MOVE.pattern % re.escape(predicate), made[0]) is not None
    value = comparison.group(1)
    return not value.startswith("%") or _is_constant(function, value)


def doubtful_barriers(ptx):
    """(line, instruction) of each barrier whose predicate is a constant."""
    starts = [match.start() for match in _FUNCTION.finditer(ptx)] + [len(ptx)]
    found = []
    for begin, end in zip(starts, starts[1:]):
        function = ptx[begin:end]
        for match in _BARRIER.finditer(function):
            if _has_constant_predicate(function, match.start(), match.group(2)):
                found.append((ptx.count("\n", 0, begin + match.start()) + 1, match.group(0)))
    return found


def barrier_count(ptx):
    return len(_BARRIER.findall(ptx))
