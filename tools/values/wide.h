// Loops that a compiler vectorizes, compiled for wider vectors, too.
#pragma once

namespace amanda::tools::pytorch {

/// Calls `Loop`, which is always inlined, with the vectors that this processor has.
#if defined(__x86_64__) && defined(__GNUC__)
inline const bool has_avx2 = __builtin_cpu_supports("avx2");

template <auto Loop, class... Args>
[[gnu::target("avx2")]] auto with_avx2(Args... args) {
  return Loop(args...);
}
template <auto Loop, class... Args>
auto wide(Args... args) {
  return has_avx2 ? with_avx2<Loop>(args...) : Loop(args...);
}
#else
template <auto Loop, class... Args>
auto wide(Args... args) {
  return Loop(args...);
}
#endif

}  // namespace amanda::tools::pytorch
