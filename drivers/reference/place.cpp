#include "amanda/reference/call.h"
#include "place_hash.h"
#include "thread_state.h"

namespace amanda::reference {

OpId extended(OpId place, std::string_view label) {
  if (place == 0) return 0;
  OpId hash = place ^ 0xCBF29CE484222325ull;  // FNV-1a: the same in every process
  for (unsigned char c : label) hash = (hash ^ c) * 0x100000001B3ull;
  hash ^= hash >> 32;
  return hash ? hash : 1;
}

Place::Place(const std::string& label) : outer_(this_thread.place), labelled_(true) {
  this_thread.labels.push_back(label);
  this_thread.place = extended(outer_, label);
}

Place::Place() : outer_(this_thread.place), labelled_(false) { this_thread.place = 0; }

Place::~Place() {
  if (labelled_) this_thread.labels.pop_back();
  this_thread.place = outer_;
}

}  // namespace amanda::reference
