// The run of an operator that may write to its arguments.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "amanda/driver/backend.h"
#include "forward/boxed_operands.h"
#include "forward/boxed_operator.h"
#include "forward/random_state.h"

namespace amanda::pytorch {

// NOTE: [in-place operators]
// An unboxed caller of relu_(x) or add(..., out=x) ignores the kernel's results and continues with x. So an edited
// result must end up in x, but a plain copy into x would overwrite values that autograd saved of it. Therefore, if an
// edit is expected and autograd records, the operator runs on a private copy with x's gradient edge, and finish()
// assigns the edited value to x with a copy_ that autograd records too. That is correct for views, and for x's other
// holders.
//
// Earlier runs decide whether an edit is expected (RunHints::edit_result). While that is unknown, routines first see a
// trial run: the operator on a private copy, hidden from the user's modes and saved-tensor hooks, and with the random
// state restored afterwards. Then the operator runs for real, as it is or as above. A custom operator may do more than
// its schema declares, so it gets no trial run; an edit is assumed. There is no trial run if the program's own modes or
// subclasses would see it. If a routine first only looked and then edits, its first edit is refused while autograd
// records.
//
// If a routine raises after the run, StackCall::abandon() has the same effect as finish(): the tensor is changed, as it
// is if the operator ran on the tensor itself.
class InPlaceRun {
 public:
  /// The values that a trial run has shown to routines.
  struct Trial {
    /// The operators inside the operator: whether tools saw them, and edited their results.
    enum class Inner : uint8_t { kHidden, kShown, kEdited };

    c10::IValue result;
    std::optional<RandomState> random;  // before it
    Inner inner = Inner::kHidden;
    bool edited = false;  // the routines have edited what it shows
  };

  InPlaceRun(const OpRecord& record, const BoxedOperator& op, BoxedOperands& operands)
      : record_(record), op_(op), operands_(operands) {}

  /// Runs the operator: on its own arguments, on a private copy, or on trial.
  void run(RunHints hints);
  /// A replacement sets the results.
  void skip();
  /// True if only the trial has run.
  bool is_trial() const { return trial_.has_value(); }

  /// Throw Error (a reason only) if `given` cannot replace an argument, or a result, that the operator writes to.
  void check_argument(size_t position, const c10::IValue& old, const c10::IValue& given) const;
  void check_result(size_t position, const c10::IValue& old, const c10::IValue& given) const;
  /// The value that goes on the stack where a tool gives `given` in place of an argument.
  c10::IValue edit_argument(size_t position, const c10::IValue& old, c10::IValue given);
  /// A tool gives another value in place of a result.
  void edit_result(size_t position, const c10::IValue& old);
  /// Edits that routines of this thread have made.
  static void count_edits(size_t count);

  /// The steps of finish(). After a trial: end_trial(), and unless its result is kept, run_again() and put_edit_back().
  Trial end_trial();
  /// Runs the operator for real. Returns the result that the routines left.
  c10::IValue run_again(const Trial& trial);
  void put_edit_back(const Trial& trial, const c10::IValue& shown);
  /// In any case: the program's tensors get their values.
  void finish() {
    stage_ = Stage::kFinished;
    if (!originals_.empty() || !undeclared_.empty()) assign();
  }
  bool is_finished() const { return stage_ == Stage::kFinished; }

 private:
  /// An argument that the operator may write to although its schema calls it read-only, and that a tool has edited.
  struct UndeclaredWrite {
    c10::IValue original, given, copy;  // the program's, the tool's, and the operator's
    uint64_t version;                   // of the copy, before the run
  };
  /// kEdited: a tool has edited what the operator writes to.
  enum class Stage : uint8_t { kUnedited, kEdited, kFinished };

  void run_operator(RunHints hints);
  bool autograd_will_record() const;
  void run_on_private_copy(RunHints hints);
  void run_on_trial(RunHints hints);
  void check(size_t written, const c10::IValue& old, const c10::IValue& given) const;
  c10::IValue keep_undeclared(const c10::IValue& old, const c10::IValue& given);
  const c10::IValue* original(size_t position) const;
  void keep_original(size_t position, const c10::IValue& value);
  void note_edit();
  void assign();
  void assign_results();
  void assign_undeclared();

  const OpRecord& record_;
  const BoxedOperator& op_;
  BoxedOperands& operands_;
  Stage stage_ = Stage::kUnedited;
  // By argument position: the caller's value, if the stack holds another one.
  std::vector<std::pair<size_t, c10::IValue>> originals_;
  std::vector<c10::IValue> run_with_;  // the arguments, if it may have to run or assign again
  std::vector<UndeclaredWrite> undeclared_;
  std::optional<Trial> trial_;
};

}  // namespace amanda::pytorch
