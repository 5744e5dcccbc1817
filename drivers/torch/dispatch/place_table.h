// Calls at places that this thread knows: one look-up finds the tools' actions there.
#pragma once

#include "amanda/driver/engine.h"
#include "base/op_types.h"
#include "base/stack_value.h"
#include "forward/forward_call.h"
#include "identity/identity.h"
#include "thread/keys.h"

namespace amanda::pytorch {

// NOTE: [known places] The tools' actions at a place do not change from run to run, unless some generation does. So a
// thread keeps a flat record with each place, and a hit needs no other look-up. The call is then run as Engine::on_op()
// would run it. Other cases are left to on_op(): tracers, modes and subclasses, programs without Python, operators of
// backward passes that a tool sees, coverage reports, recorders, and bookkeeping of the framework. Calls that still
// have an analysis to run are left to it, too. A record is made from the result of on_op(), right after the call, for
// the key that the call had before it ran.

/// The knowledge of this thread about a caught call.
struct Way {
  enum class Kind : uint8_t {
    kUnknown,  // ask the core
    kBelow,    // nothing is to be done but to run the operator, with Inside
    kKnown,    // observe_known()
  };
  Kind kind = Kind::kUnknown;
  bool observes_inner = false;
  ThreadKeys* thread = nullptr;
  ToolBits seeing = 0;              // unless unknown
  const Sight* sight = nullptr;     // unless unknown, and until the call runs
  const KnownCall* call = nullptr;  // if known, and until the call runs
  OpId id = 0;                      // if known
  RawPlace raw;                     // if some tool sees the call
  uint64_t scopes = 0;              // the serial number of the thread's scopes when it was caught
};

/// Sets `way`. `symbols`: true if some argument is a tracer's symbol.
void find_way(Way& way, KeyRole role, const OpRecord& record, c10::DispatchKeySet rest, bool symbols,
              c10::ArrayRef<OperandTensor> arguments);
/// Runs a known call. Returns true if its routines have run and changed nothing; the caller then runs the operator
/// itself, as on a way `kBelow`. Throws as observe() does.
bool observe_known(Way& way, ForwardCall& call);
/// Called after an unknown call was observed: makes the next call known, if possible.
void learn_place(const Way& way, ForwardCall& call);

/// For tests: with false, every call takes the slow path.
void use_known_places(bool on);
/// For tests: the number of places that this thread knows.
size_t count_known_places();

/// While the operator of a way `kBelow` runs: the tools that see it are inside it, and see its parts only if one asks.
class Inside {
 public:
  [[gnu::hot]] explicit Inside(const Way& way)
      : frame_(*way.thread->calls, way.seeing), nothing_(*way.thread->bits, !way.observes_inner) {}

 private:
  const OpFrame frame_;
  const CatchNothing nothing_;
};

}  // namespace amanda::pytorch
