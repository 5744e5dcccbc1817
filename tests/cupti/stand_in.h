// What tests ask of the library that stands in for CUPTI. None of it is CUPTI's.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {
/// Forgets everything, failures included.
void stand_in_reset();
/// From now on `function` returns `result`; 0 ends that.
void stand_in_fail(const char* function, int result);
/// Another client holds the subscription; null: none does.
void stand_in_hold(const char* subscriber);
/// The calling thread launches a kernel of that name. Its records are made, and delivered when flushed.
void stand_in_launch(const char* kernel, uint32_t stream);
void stand_in_copy(uint64_t bytes);
/// Asks for a buffer and never delivers it, as when another client's callbacks have taken the place of ours.
void stand_in_keep_a_buffer();
/// Delivers what was made, on a thread of the library's.
void stand_in_deliver();
size_t stand_in_depth();    // of the calling thread's external ids
size_t stand_in_enabled();  // kinds of activities
bool stand_in_subscribed();
}
