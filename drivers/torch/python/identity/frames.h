// This thread's Python frames.
#pragma once

#define Py_BUILD_CORE 1
#include <Python.h>
#if PY_VERSION_HEX < 0x030F0000 && !defined(Py_GIL_DISABLED)
#include <internal/pycore_frame.h>
#if PY_VERSION_HEX >= 0x030E0000
#include <internal/pycore_interpframe.h>
#endif
#define AMANDA_FRAME_LAYOUT 1
#endif
#undef Py_BUILD_CORE

#include <cstdint>

namespace amanda::python {

/// The instruction that a frame executes, as a number: its address, which lies in the code object.
inline uint64_t instruction_at(PyCodeObject* code, int offset) {
  return reinterpret_cast<uint64_t>(code->co_code_adaptive) + static_cast<uint64_t>(offset);
}

/// True if the interpreter's own frames are read. False until a self-test at import has passed.
inline bool walks_directly = false;

#ifdef AMANDA_FRAME_LAYOUT
// The interpreter's own frames. No interpreter lock is needed: this thread's frames change only when this thread runs
// Python code.
using RawFrame = _PyInterpreterFrame;

/// Without the frames that the interpreter puts between those of C and of Python.
inline RawFrame* first_python_frame(RawFrame* frame) {
#if PY_VERSION_HEX >= 0x030E0000
  while (frame && frame->owner >= FRAME_OWNED_BY_INTERPRETER) frame = frame->previous;
#elif PY_VERSION_HEX >= 0x030C0000
  while (frame && frame->owner == FRAME_OWNED_BY_CSTACK) frame = frame->previous;
#endif
  return frame;
}

#if PY_VERSION_HEX >= 0x030E0000
/// The object, without the tag in the reference's lowest bits.
inline PyObject* object_at(_PyStackRef reference) {
  return reinterpret_cast<PyObject*>(reference.bits & ~uintptr_t{3});
}
#else
inline PyObject* object_at(PyObject* reference) { return reference; }
#endif

#if PY_VERSION_HEX >= 0x030D0000
inline RawFrame* innermost_frame(const PyThreadState* thread) { return first_python_frame(thread->current_frame); }
inline PyCodeObject* code_of(const RawFrame* frame) {
  return reinterpret_cast<PyCodeObject*>(object_at(frame->f_executable));
}
inline const _Py_CODEUNIT* running(const RawFrame* frame) { return frame->instr_ptr; }
#else
inline RawFrame* innermost_frame(const PyThreadState* thread) {
  return first_python_frame(thread->cframe->current_frame);
}
inline PyCodeObject* code_of(const RawFrame* frame) { return frame->f_code; }
inline const _Py_CODEUNIT* running(const RawFrame* frame) { return frame->prev_instr; }
#endif

inline RawFrame* outer_frame(const RawFrame* frame) { return first_python_frame(frame->previous); }
inline uint64_t instruction_of(const RawFrame* frame) { return reinterpret_cast<uint64_t>(running(frame)); }
inline PyObject* globals_of(const RawFrame* frame) { return frame->f_globals; }
inline int offset_of(const RawFrame* frame) {
  return static_cast<int>(running(frame) - _PyCode_CODE(code_of(frame))) * static_cast<int>(sizeof(_Py_CODEUNIT));
}
inline PyObject* first_local(const RawFrame* frame) { return object_at(frame->localsplus[0]); }
inline bool is_generators(const RawFrame* frame) { return frame->owner == FRAME_OWNED_BY_GENERATOR; }
#endif

}  // namespace amanda::python
