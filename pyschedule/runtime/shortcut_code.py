"""Machine code that calls machine code: what a call does where its arguments are those of a call before.

`lookup()` is the address of a function that CPython calls where a builtin function is called (`METH_FASTCALL` in
the Python/C API reference, "Common object structures").  It reads the arguments as C code that includes NumPy's
headers does (`PyArrayObject_fields` in `numpy/ndarraytypes.h`, whose layout is part of NumPy's ABI), compares them
with the records of a table, and calls what the record that fits says.  Tables and records are words of 64 bits:

    table    callable for what fits no record | number of arguments | number of records | their addresses
    record   `Field`s, then a description of `WORDS` words for each argument

`NEW` is a callable that makes an array, which then is one more argument and is returned, or 0; `RESULT` the
argument to return, or -1.  In a description the first word is the class of an array, or 0 for what is no array:
then the second is the argument itself, and the third its class where one that is equal will do, or 0.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from functools import cache
from typing import Any, Final, NamedTuple

from llvmlite import ir

I8, I32, I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
PTR = I64.as_pointer()

#: Where CPython and NumPy keep what is read here, in bytes from the start of an object.
CLASS, DATA, NDIM, SHAPE, STRIDES, DTYPE, FLAGS = 8, 16, 24, 32, 40, 56, 64

#: At most: records of a table, words that compiled code is given, arguments of a call, axes of an array.
RECORDS: Final = 8
SLOTS: Final = 256
ARGUMENTS: Final = 31
AXES: Final = 6
#: Words of the description of an argument: class, object or dtype, flags, axes, and their extents and strides.
WORDS: Final = 4 + 2 * AXES
#: Words of a pair of arrays that may not meet: (argument, first byte, one past the last byte) of either.
PAIR: Final = 6
#: Words of a place in the slots that is filled in a call: (slot, argument, bytes to add to where its data lie).
PATCH: Final = 3


class Table(IntEnum):
    OTHERWISE, ARGUMENTS, RECORDS, FIRST = range(4)


class Field(IntEnum):
    THUNK, SLOTS, SLOT_COUNT, PATCHES, PATCH_COUNT, PAIRS, PAIR_COUNT, NEW, RESULT, RELEASE, FAILED, ARGUMENTS = (
        range(12)
    )


#: `Py_EQ` of CPython's object.h.
_EQUAL: Final = 2
#: What a compiled function returns where nothing is wrong (`numba/core/callconv.py`).
_GOOD: Final = (0, -2)


def _python(b: ir.IRBuilder, name: str, result: ir.Type, *arguments: ir.Type) -> Any:
    """A function of the Python/C API."""
    address = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
    return b.inttoptr(ir.Constant(I64, address), ir.FunctionType(result, arguments).as_pointer())


class _Writer:
    """A builder with the few forms that are needed here."""

    def __init__(self, function: ir.Function) -> None:
        self.function = function
        self.builder = ir.IRBuilder(function.append_basic_block("entry"))

    def word(self, base: Any, index: Any) -> Any:
        """A word of a table or record."""
        place = self.builder.gep(base, [I64(index) if isinstance(index, int) else index])
        return self.builder.load(place)

    def field(self, thing: Any, offset: int, kind: ir.Type = I64) -> Any:
        """A field of an object, by its offset in bytes; extended to a word."""
        b = self.builder
        place = b.gep(b.bitcast(thing, I8.as_pointer()), [I64(offset)])
        value = b.load(b.bitcast(place, kind.as_pointer()))
        return value if kind is I64 else b.sext(value, I64)

    def pointer(self, word: Any) -> Any:
        return self.builder.inttoptr(word, PTR)

    def unless(self, condition: Any, elsewhere: ir.Block) -> None:
        """Goes on where the condition holds."""
        onward = self.function.append_basic_block()
        self.builder.cbranch(condition, onward, elsewhere)
        self.builder.position_at_end(onward)

    def loop(self, count: Any) -> _Loop:
        return _Loop(self, count)


class _Loop:
    """`for index in range(count)`; a body may leave for other blocks."""

    def __init__(self, writer: _Writer, count: Any) -> None:
        self._writer, self._count = writer, count

    def __enter__(self) -> Any:
        b, function = self._writer.builder, self._writer.function
        before = b.block
        self._head, body, self.after = (function.append_basic_block(name) for name in ("head", "body", "after"))
        b.branch(self._head)
        b.position_at_end(self._head)
        self._index = b.phi(I64)
        self._index.add_incoming(I64(0), before)
        b.cbranch(b.icmp_signed("<", self._index, self._count), body, self.after)
        b.position_at_end(body)
        return self._index

    def __exit__(self, *_: object) -> None:
        self.next()
        self._writer.builder.position_at_end(self.after)

    def next(self) -> None:
        """Goes on to the next index, from the block that is written."""
        b = self._writer.builder
        self._index.add_incoming(b.add(self._index, I64(1)), b.block)
        b.branch(self._head)


class _Scratch(NamedTuple):
    """Places on the stack."""

    arguments: Any  # of the call, and a new array
    slots: Any
    description: Any  # of an exception
    state: Any  # of the thread, while others may run
    values: Any  # of a call


@cache
def lookup() -> int:
    """The address of the function, for this process; tables are the data of an array that is its `self`."""
    module = ir.Module("pyschedule_shortcuts")
    kind = ir.FunctionType(PTR, [PTR, PTR, I64])
    function = ir.Function(module, kind, "pyschedule_lookup")
    _write_lookup(function)
    return compiled(module, function.name)


def _write_lookup(function: ir.Function) -> None:
    w = _Writer(function)
    b = w.builder
    this, arguments, given = function.args
    scratch = _Scratch(
        b.alloca(I64, ARGUMENTS + 1), b.alloca(I64, SLOTS), b.alloca(PTR), b.alloca(PTR), b.alloca(I64, 2)
    )
    table = w.pointer(w.field(this, DATA))
    otherwise = function.append_basic_block("otherwise")
    w.unless(b.icmp_signed("==", given, w.word(table, Table.ARGUMENTS)), otherwise)

    tries = w.loop(w.word(table, Table.RECORDS))
    with tries as number:
        record = w.pointer(w.word(table, b.add(number, I64(Table.FIRST))))
        other = function.append_basic_block("other")
        _compare(w, record, arguments, given, scratch.arguments, other)
        _run(w, record, given, scratch, otherwise)
        b.position_at_end(other)
    b.branch(otherwise)

    b.position_at_end(otherwise)
    call = _python(b, "PyObject_Vectorcall", PTR, PTR, PTR, I64, PTR)
    b.ret(b.call(call, [w.pointer(w.word(table, Table.OTHERWISE)), arguments, given, ir.Constant(PTR, None)]))


def _compare(w: _Writer, record: Any, arguments: Any, given: Any, copies: Any, other: ir.Block) -> None:
    """Copies the arguments, and leaves for `other` where one is not as the record has it."""
    b = w.builder
    with w.loop(given) as place:
        start = b.add(b.mul(place, I64(WORDS)), I64(Field.ARGUMENTS))
        expected = b.gep(record, [start])
        value = w.word(arguments, place)
        b.store(value, b.gep(copies, [place]))
        thing = w.pointer(value)
        kind = w.word(expected, 0)
        array, done = w.function.append_basic_block("array"), w.function.append_basic_block("done")
        same = w.function.append_basic_block("same")
        b.cbranch(b.icmp_signed("==", kind, I64(0)), same, array)

        b.position_at_end(same)
        unlike = w.function.append_basic_block("unlike")
        b.cbranch(b.icmp_signed("==", value, w.word(expected, 1)), done, unlike)
        b.position_at_end(unlike)
        w.unless(b.icmp_signed("==", w.field(thing, CLASS), w.word(expected, 2)), other)
        equal = _python(b, "PyObject_RichCompareBool", I32, PTR, PTR, I32)
        result = b.call(equal, [thing, w.pointer(w.word(expected, 1)), I32(_EQUAL)])
        b.cbranch(b.icmp_signed("==", result, I32(1)), done, other)

        b.position_at_end(array)
        w.unless(b.icmp_signed("==", w.field(thing, CLASS), kind), other)
        w.unless(b.icmp_signed("==", w.field(thing, DTYPE), w.word(expected, 1)), other)
        w.unless(b.icmp_signed("==", w.field(thing, FLAGS, I32), w.word(expected, 2)), other)
        axes = w.word(expected, 3)
        w.unless(b.icmp_signed("==", w.field(thing, NDIM, I32), axes), other)
        shape, strides = w.pointer(w.field(thing, SHAPE)), w.pointer(w.field(thing, STRIDES))
        with w.loop(axes) as axis:
            w.unless(b.icmp_signed("==", w.word(shape, axis), w.word(expected, b.add(axis, I64(4)))), other)
            w.unless(
                b.icmp_signed("==", w.word(strides, axis), w.word(expected, b.add(axis, I64(4 + AXES)))), other
            )
        b.branch(done)
        b.position_at_end(done)


def _run(w: _Writer, record: Any, given: Any, scratch: _Scratch, otherwise: ir.Block) -> None:
    """Enters the compiled code and returns; leaves for `otherwise` where arrays overlap that may not."""
    b, arguments, slots, description = w.builder, scratch.arguments, scratch.slots, scratch.description

    def data(argument: Any) -> Any:
        return w.field(w.pointer(w.word(arguments, argument)), DATA)

    pairs = w.pointer(w.word(record, Field.PAIRS))
    with w.loop(w.word(record, Field.PAIR_COUNT)) as number:
        pair = b.gep(pairs, [b.mul(number, I64(PAIR))])
        one, other = data(w.word(pair, 0)), data(w.word(pair, 3))
        before = b.icmp_unsigned("<=", b.add(one, w.word(pair, 2)), b.add(other, w.word(pair, 4)))
        behind = b.icmp_unsigned("<=", b.add(other, w.word(pair, 5)), b.add(one, w.word(pair, 1)))
        w.unless(b.or_(before, behind), otherwise)

    make = w.word(record, Field.NEW)
    is_new = b.icmp_signed("!=", make, I64(0))
    with b.if_then(is_new):
        nothing = ir.Constant(PTR, None)
        call = _python(b, "PyObject_Vectorcall", PTR, PTR, PTR, I64, PTR)
        new = b.call(call, [w.pointer(make), nothing, I64(0), nothing])
        with b.if_then(b.icmp_signed("==", b.ptrtoint(new, I64), I64(0)), likely=False):
            b.ret(nothing)
        b.store(b.ptrtoint(new, I64), b.gep(arguments, [given]))

    known = w.pointer(w.word(record, Field.SLOTS))
    with w.loop(w.word(record, Field.SLOT_COUNT)) as slot:
        b.store(w.word(known, slot), b.gep(slots, [slot]))
    patches = w.pointer(w.word(record, Field.PATCHES))
    with w.loop(w.word(record, Field.PATCH_COUNT)) as number:
        patch = b.gep(patches, [b.mul(number, I64(PATCH))])
        b.store(b.add(data(w.word(patch, 1)), w.word(patch, 2)), b.gep(slots, [w.word(patch, 0)]))

    # What is still needed of the record once other threads may run, and replace it.
    result, failed = w.word(record, Field.RESULT), w.word(record, Field.FAILED)
    release = b.icmp_signed("!=", w.word(record, Field.RELEASE), I64(0))
    thunk = b.inttoptr(w.word(record, Field.THUNK), ir.FunctionType(I32, [PTR, PTR.as_pointer()]).as_pointer())
    b.store(ir.Constant(PTR, None), description)
    with b.if_then(release):
        b.store(b.call(_python(b, "PyEval_SaveThread", PTR), []), scratch.state)
    status = b.call(thunk, [slots, description])
    with b.if_then(release):
        b.call(_python(b, "PyEval_RestoreThread", ir.VoidType(), PTR), [b.load(scratch.state)])

    good = b.or_(*(b.icmp_signed("==", status, I32(code)) for code in _GOOD))
    with b.if_then(b.not_(good), likely=False):
        with b.if_then(is_new):
            b.call(_python(b, "Py_DecRef", ir.VoidType(), PTR), [w.pointer(w.word(arguments, given))])
        b.ret(_raised(w, status, scratch, failed))
    with b.if_then(is_new):  # the caller gets the one reference
        b.ret(w.pointer(w.word(arguments, given)))
    with b.if_then(b.icmp_signed(">=", result, I64(0))):
        _return_also(b, w.word(arguments, result))
    _return_also(b, I64(id(None)))


def _return_also(b: ir.IRBuilder, word: Any) -> None:
    """Returns an object that others refer to."""
    returned = b.inttoptr(word, PTR)
    b.call(_python(b, "Py_IncRef", ir.VoidType(), PTR), [returned])
    b.ret(returned)


def _raised(w: _Writer, status: Any, scratch: _Scratch, failed: Any) -> Any:
    """Calls the record's `failed(status, address of the description)`, which raises."""
    b = w.builder
    number = _python(b, "PyLong_FromLongLong", PTR, I64)
    values = scratch.values
    parts = (b.sext(status, I64), b.ptrtoint(b.load(scratch.description), I64))
    for place, part in enumerate(parts):
        b.store(b.ptrtoint(b.call(number, [part]), I64), b.gep(values, [I64(place)]))
    call = _python(b, "PyObject_Vectorcall", PTR, PTR, PTR, I64, PTR)
    return b.call(call, [w.pointer(failed), values, I64(2), ir.Constant(PTR, None)])


def thunk(compiled_function: Any) -> int:
    """The address of a function of slots, and of where the description of an exception goes, that calls a function
    compiled by Numba (its `CompileResult`) with the words in the slots, and returns its status."""
    from numba.core import types

    context = compiled_function.target_context
    description = compiled_function.fndesc
    kind = context.call_conv.get_function_type(description.restype, description.argtypes)
    assert description.restype == types.none
    address = compiled_function.library.get_pointer_to_function(description.llvm_func_name)
    module = ir.Module("pyschedule_thunk")
    function = ir.Function(module, ir.FunctionType(I32, [PTR, PTR.as_pointer()]), "pyschedule_thunk")
    b = ir.IRBuilder(function.append_basic_block("entry"))
    slots, where = function.args
    result, exception, *words = kind.args
    values = [b.alloca(result.pointee), b.bitcast(where, exception)]
    for place, wanted in enumerate(words):
        word = b.load(b.gep(slots, [I64(place)]))
        values.append(_as(b, word, wanted))
    b.ret(b.call(b.inttoptr(I64(address), kind.as_pointer()), values))
    return compiled(module, function.name)


def slot_count(compiled_function: Any) -> int:
    """The words of the arguments of a function compiled by Numba."""
    description = compiled_function.fndesc
    kind = compiled_function.target_context.call_conv.get_function_type(description.restype, description.argtypes)
    return len(kind.args) - 2


def _as(b: ir.IRBuilder, word: Any, wanted: ir.Type) -> Any:
    if isinstance(wanted, ir.PointerType):
        return b.inttoptr(word, wanted)
    if isinstance(wanted, ir.IntType):
        return word if wanted.width == 64 else b.trunc(word, wanted)
    if isinstance(wanted, ir.DoubleType):
        return b.bitcast(word, wanted)
    assert isinstance(wanted, ir.FloatType)
    return b.bitcast(b.trunc(word, I32), wanted)


#: What holds machine code in memory; it stays, as what was handed out may be called at any time.
_engines: list[Any] = []


def compiled(module: ir.Module, name: str) -> int:
    """The address of a function of a module."""
    from llvmlite import binding

    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    machine = binding.Target.from_default_triple().create_target_machine(opt=2, codemodel="jitdefault", jit=True)
    options = binding.create_pipeline_tuning_options(speed_level=2)
    binding.create_pass_builder(machine, options).getModulePassManager().run(
        parsed, binding.create_pass_builder(machine, options)
    )
    engine = binding.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    _engines.append(engine)
    return int(engine.get_function_address(name))
